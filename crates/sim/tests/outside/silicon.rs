//! OC3: SGLang on H100 in a closed loop, 84 measured points of Qwen3-32B.
//!
//! No table of this model is at hand; its products are scaled from Llama's by parameters per GPU, all-reduces by bytes. The rest is
//! the simulator: admission, chunked prefill, KV that is too small for the largest points.

use crate::shared::Csv;
use plimsoll_core::Nanos;
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_sim::engine::EngineShape;
use plimsoll_sim::gateway::GatewayConfig;
use plimsoll_sim::{Config, FleetConfig, Nobody, run};
use plimsoll_timing::curve::Curve;
use plimsoll_timing::{Profile, find};
use plimsoll_workload::{After, Call, Prompt, Run, Session};
use std::collections::BTreeMap;

/// Parameters of one layer: hidden size, all heads, KV heads, MLP.
const fn layer(hidden: f64, heads: f64, kv: f64, mlp: f64) -> f64 {
    hidden * 128.0 * (2.0 * heads + 2.0 * kv) + 3.0 * hidden * mlp
}

const QWEN: f64 = layer(5_120.0, 64.0, 8.0, 25_600.0);
const LLAMA_70B: f64 = layer(8_192.0, 64.0, 8.0, 28_672.0);
const LLAMA_8B: f64 = layer(4_096.0, 32.0, 8.0, 14_336.0);

#[derive(Default)]
struct Measured {
    gemm: BTreeMap<u64, f64>,
    allreduce: BTreeMap<u64, f64>,
    head: BTreeMap<u64, f64>,
}

fn at(map: &BTreeMap<u64, f64>, x: f64) -> f64 {
    let (at, us) = (map.keys().map(|key| *key as f64).collect(), map.values().copied().collect());
    Curve { at, us }.at(x)
}

fn tables(test: &str) -> Option<BTreeMap<(String, u64), Measured>> {
    let mut tables: BTreeMap<(String, u64), Measured> = BTreeMap::new();
    for row in Csv::read(test, "perf/derived_llama3_nonattn_iteration.csv")?.rows() {
        if row.text("system") != "h100_sxm" {
            continue;
        }
        let of = tables.entry((row.text("model").to_owned(), row.number("tp") as u64)).or_default();
        let m = row.number("m") as u64;
        of.gemm.insert(m, row.number("gemm_layer_us"));
        of.allreduce.insert(m, row.number("allreduce_layer_us"));
        of.head.insert(m, row.number("lm_head_us"));
    }
    Some(tables)
}

/// Qwen3-32B on so many H100.
fn profile(tables: &BTreeMap<(String, u64), Measured>, tp: u64) -> Profile {
    let of = |model: &str, tp: u64| &tables[&(model.to_owned(), tp)];
    // Per GPU, rising: the tables that there are.
    let known = [
        (LLAMA_70B / 8.0, of("70B", 8)),
        (LLAMA_8B / 2.0, of("8B", 2)),
        (LLAMA_70B / 4.0, of("70B", 4)),
        (LLAMA_8B, of("8B", 1)),
    ];
    let own = QWEN / tp as f64;
    let nearest = known.iter().min_by(|a, b| (a.0 / own).ln().abs().total_cmp(&(b.0 / own).ln().abs())).unwrap();
    let allreduce = |m: f64| match tp {
        1 => 0.0,
        2 => at(&of("8B", 2).allreduce, m * 5_120.0 / 4_096.0),
        4 => at(&of("70B", 4).allreduce, m * 5_120.0 / 8_192.0),
        _ => at(&of("70B", 8).allreduce, m * 5_120.0 / 8_192.0),
    };
    let knots: Vec<u64> = nearest.1.gemm.keys().copied().collect();
    let dense = knots.iter().map(|m| at(&nearest.1.gemm, *m as f64) * own / nearest.0 + allreduce(*m as f64));
    let head_of = of("70B", if tp >= 8 { 8 } else { 4 });
    let head_scale = 151_936.0 * 5_120.0 / (128_256.0 * 8_192.0) * (if tp >= 8 { 8.0 } else { 4.0 }) / tp as f64;
    let head_knots: Vec<u64> = head_of.head.keys().copied().filter(|m| *m <= 512).collect();
    let mut profile = find("h100-llama3-70b-tp8").unwrap();
    profile.machine.tensor_parallel = tp as u32;
    profile.model.layers = 64;
    profile.model.heads = 64.0 / tp as f64;
    profile.model.kv_heads = 8.0 / tp as f64;
    profile.model.kv_bytes_token_layer = 4.0 * 128.0 * 8.0 / tp as f64;
    profile.serving.kv_bytes_token = 262_144;
    let weights = 2.0 * (64.0 * QWEN + 2.0 * 151_936.0 * 5_120.0);
    profile.serving.kv_tokens = ((0.88 * 80e9 * tp as f64 - weights) / 262_144.0).max(0.0) as u64 / 1_000 * 1_000;
    profile.dense = Curve { at: knots.iter().map(|m| *m as f64).collect(), us: dense.collect() };
    profile.head = Curve {
        at: head_knots.iter().map(|m| *m as f64).collect(),
        us: head_knots.iter().map(|m| at(&head_of.head, *m as f64) * head_scale).collect(),
    };
    profile
}

/// A client that asks again and again, with prompts that nobody else has.
fn client(number: u64, calls: u64, input: u64, output_tokens: u64) -> Session {
    let call = |nth: u64| Call {
        after: (nth > 0).then(|| After { call: nth as usize - 1, delay: Nanos::ZERO }).into_iter().collect(),
        prompt: Prompt {
            block_tokens: 64,
            runs: vec![Run { first: (number * calls + nth) * 1_024, len: input / 64 }],
            tail: None,
        },
        echo_tokens: 0,
        max_output_tokens: None,
        output_tokens,
        recorded: None,
    };
    Session { id: String::new(), start: Nanos::ZERO, prefix_blocks: None, calls: (0..calls).map(call).collect() }
}

fn tpot_ms(profile: &Profile, input: u64, output: u64, concurrency: u64) -> f64 {
    let config = Config {
        poll: Nanos::from_secs(1),
        ..Config::new(
            FleetConfig::of(profile.clone(), 1, EngineShape::of(&profile.serving, 64)),
            GatewayConfig {
                scheduler: SchedulerConfig { policy: PolicyKind::RoundRobin, ..SchedulerConfig::default() },
                cache_view: false,
                ..GatewayConfig::default()
            },
        )
    };
    let clients = (0..concurrency).map(|number| Ok(client(number, 8, input, output)));
    run(config, Box::new(clients), &mut Nobody).unwrap().tpot_ms.mean
}

#[test]
fn oc3_sglang_in_a_closed_loop() {
    let Some(tables) = tables("OC3") else { return };
    let Some(rows) = Csv::read("OC3", "perf/aic_silicon_e2e_h100_h200.csv") else { return };
    let mut errors = Vec::new();
    let mut by_tp: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in rows.rows() {
        let fits = row.text("model_path").contains("Qwen3-32B") && row.text("backend") == "sglang";
        if !fits || row.text("system") != "h100_sxm" || row.text("mode") != "agg" {
            continue;
        }
        let [input, output, concurrency, tp] =
            ["isl", "osl", "batch_size", "tp_size"].map(|name| row.number(name) as u64);
        let found = tpot_ms(&profile(&tables, tp), input, output, concurrency);
        let error = found / row.number("silicon_tpot_ms") - 1.0;
        errors.push(error.abs());
        by_tp.entry(tp).or_default().push(error);
    }
    for (tp, errors) in &mut by_tp {
        errors.sort_by(f64::total_cmp);
        let (count, worst) = (errors.len(), errors[errors.len() - 1]);
        println!(
            "OC3 TP{tp}: {count} rows, {:+.0} to {:+.0} %, median {:+.1} %",
            errors[0] * 100.0,
            worst * 100.0,
            errors[count / 2] * 100.0
        );
    }
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    println!("OC3 {} rows: median absolute error {:.1} %, allowed 15 %", errors.len(), median * 100.0);
    assert_eq!(errors.len(), 84);
    assert!(median <= 0.15, "{median}");
}
