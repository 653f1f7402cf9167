//! What unequal lengths cost a kernel that does not cut sequences (family K1), against 654 measured batches of two GPUs.

use plimsoll_timing::{Kernel, Profile, StepShape, find};
use std::path::PathBuf;

/// A batch of `requests`, `long` of them with `long_tokens`, the others with `short_tokens`.
struct Batch {
    requests: u64,
    long: u64,
    short_tokens: u64,
    long_tokens: u64,
    /// Microseconds if all had the mean length, and as it was.
    mean_us: f64,
    skewed_us: f64,
}

fn batches(test: &str, name: &str) -> Option<Vec<Batch>> {
    let root = std::env::var_os("PLIMSOLL_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let Ok(text) = std::fs::read_to_string(root.join("perf").join(name)) else {
        println!("skipped: {test} (no PLIMSOLL_SHARED)");
        return None;
    };
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |wanted: &str| head.iter().position(|name| *name == wanted).unwrap();
    let columns = ["n", "nb", "kvs", "kv_big", "t_mean_us", "t_skew_us"].map(column);
    let (regime, chunk) = (column("regime"), column("pc"));
    let mut found = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[regime] != "pure" || cells[chunk] != "0" {
            continue;
        }
        let [requests, long, short, long_tokens, mean_us, skewed_us] =
            columns.map(|column| cells[column].parse::<f64>().unwrap());
        found.push(Batch {
            requests: requests as u64,
            long: long as u64,
            short_tokens: short as u64,
            long_tokens: long_tokens as u64,
            mean_us,
            skewed_us,
        });
    }
    Some(found)
}

fn p90(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 9 / 10]
}

fn check(name: &str, sms: u32, bandwidth_gb_s: f64, peak_at: u64) {
    let Some(batches) = batches("unequal lengths cost what was measured", name) else { return };
    assert!(batches.len() > 300, "{}", batches.len());
    let mut profile = Profile { kernel: Kernel::K1, ..find("h100-llama3-8b").unwrap() };
    profile.machine.sms = sms;
    profile.machine.bandwidth_gb_s = bandwidth_gb_s;
    let penalty = |batch: &Batch| {
        let mut shape = StepShape::default();
        for index in 0..batch.requests {
            shape.add_decode(if index < batch.long { batch.long_tokens } else { batch.short_tokens });
        }
        profile.cost(&shape).skew_us / f64::from(profile.model.layers) / batch.mean_us
    };
    let measured = p90(batches.iter().map(|batch| batch.skewed_us / batch.mean_us - 1.0).collect());
    let modelled = p90(batches.iter().map(penalty).collect());
    println!("{name}: penalty at p90 {:.1} %, measured {:.1} %", modelled * 100.0, measured * 100.0);
    assert!((modelled - measured).abs() <= 0.05, "{name}: {modelled:.3}, measured {measured:.3}");
    // Both are worst where there are just too many sequences to be cut.
    let sizes = [2, 4, 8, 16, 32, 64, 128, 256];
    let worst = |of: &dyn Fn(&Batch) -> f64| {
        let at = |size: u64| p90(batches.iter().filter(|batch| batch.requests == size).map(of).collect());
        sizes.into_iter().max_by(|a, b| at(*a).total_cmp(&at(*b))).unwrap()
    };
    assert_eq!(worst(&|batch| batch.skewed_us / batch.mean_us - 1.0), peak_at);
    assert_eq!(worst(&penalty), peak_at);
}

#[test]
fn unequal_lengths_cost_what_was_measured() {
    check("RTXPRO6000_meta-llama_Llama-3.1-8B_bf16_tp1.skew.csv", 188, 1792.0, 64);
    check("RTX4090_meta-llama_Llama-3.1-8B_bf16_tp1.skew.csv", 128, 1008.0, 32);
}
