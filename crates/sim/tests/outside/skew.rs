//! OC13: a kernel that does not cut sequences (K1), through the step time that the simulator uses.

use crate::shared::Csv;
use plimsoll_sim::step_time::{DecodeLoad, StepClock};
use plimsoll_timing::{Kernel, Profile, find};

fn p90(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 9 / 10]
}

fn check(gpu: &str, sms: u32, bandwidth_gb_s: f64, peak_at: u64) {
    let name = format!("perf/{gpu}_meta-llama_Llama-3.1-8B_bf16_tp1.skew.csv");
    let Some(rows) = Csv::read("OC13", &name) else { return };
    let mut k1 = Profile { kernel: Kernel::K1, ..find("h100-llama3-8b").unwrap() };
    (k1.machine.sms, k1.machine.bandwidth_gb_s) = (sms, bandwidth_gb_s);
    let layers = f64::from(k1.model.layers);
    let clocks =
        [Kernel::K1, Kernel::K0 { skew: 0.0 }].map(|kernel| StepClock::new(Box::new(Profile { kernel, ..k1.clone() })));
    // (requests, measured penalty, modelled penalty)
    let mut batches = Vec::new();
    for row in rows.rows().filter(|row| row.text("regime") == "pure" && row.number("pc") == 0.0) {
        let [requests, long, short, longest] = ["n", "nb", "kvs", "kv_big"].map(|name| row.number(name) as u64);
        let context_tokens = long * longest + (requests - long) * short;
        let load = DecodeLoad { requests, context_tokens, longest_tokens: longest };
        let [skewed, even] = clocks.each_ref().map(|clock| clock.decode(load).0.first_fs as f64 / 1e9);
        let mean_us = row.number("t_mean_us");
        let measured = row.number("t_skew_us") / mean_us - 1.0;
        batches.push((requests, measured, (skewed - even) / layers / mean_us));
    }
    assert!(batches.len() > 300, "{}", batches.len());
    let measured = p90(batches.iter().map(|batch| batch.1).collect());
    let modelled = p90(batches.iter().map(|batch| batch.2).collect());
    println!("OC13 {gpu}: penalty at p90 {:.1} %, measured {:.1} %", modelled * 100.0, measured * 100.0);
    assert!((0.10..=0.17).contains(&measured) && (modelled - measured).abs() <= 0.05);
    let worst = |of: fn(&(u64, f64, f64)) -> f64| {
        let at = |size: u64| p90(batches.iter().filter(|batch| batch.0 == size).map(of).collect());
        [2, 4, 8, 16, 32, 64, 128, 256].into_iter().max_by(|a, b| at(*a).total_cmp(&at(*b))).unwrap()
    };
    let (measured, modelled) = (worst(|batch| batch.1), worst(|batch| batch.2));
    println!("OC13 {gpu}: worst at {modelled} sequences, measured {measured}");
    assert_eq!((measured, modelled), (peak_at, peak_at));
}

#[test]
fn oc13_unequal_lengths_under_a_kernel_that_does_not_cut() {
    check("RTXPRO6000", 188, 1_792.0, 64);
    check("RTX4090", 128, 1_008.0, 32);
}
