//! OC1 and OC2: a real vLLM 0.19 on one GPU, request by request.

use crate::shared::{file, within};
use crate::tables::Tables;
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_sim::engine::{EngineShape, Reserve};
use plimsoll_sim::gateway::GatewayConfig;
use plimsoll_sim::{Config, Finished, FleetConfig, Input, InputOptions, Report, Watcher, run};

/// What vLLM's block size is; blocks are shared only with what was computed before a preemption.
const BLOCK_TOKENS: u64 = 16;

#[derive(Default)]
struct Exact {
    ttft_ms: Vec<f64>,
    tpot_ms: Vec<f64>,
    last_ns: u64,
}

impl Watcher for Exact {
    fn finished(&mut self, one: &Finished) {
        self.ttft_ms.push((one.first_token_ns - one.arrived_ns) as f64 / 1e6);
        self.tpot_ms.push((one.ended_ns - one.first_token_ns) as f64 / 1e6 / (one.output_tokens - 1).max(1) as f64);
        self.last_ns = self.last_ns.max(one.ended_ns);
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn p90(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 9 / 10]
}

fn serve(test: &str, tables: Tables, max_running: u64, kv_tokens: u64) -> Option<(Exact, Report)> {
    let trace = file(test, "traces/sharegpt300_lengths.csv")?;
    let options = InputOptions { block_tokens: BLOCK_TOKENS, ..InputOptions::default() };
    let input = Input::open(&trace, options).unwrap();
    let config = Config::new(
        FleetConfig::with(
            Box::new(tables),
            1,
            EngineShape {
                page_tokens: BLOCK_TOKENS,
                kv_tokens,
                context_tokens: 8_192,
                token_budget: 2_048,
                max_running,
                block_tokens: BLOCK_TOKENS,
                reserve: Reserve::Chunk,
                context_wait: None,
            },
        ),
        GatewayConfig {
            scheduler: SchedulerConfig { policy: PolicyKind::RoundRobin, ..SchedulerConfig::default() },
            cache_view: false,
            ..GatewayConfig::default()
        },
    );
    let mut exact = Exact::default();
    let report = run(config, Box::new(input), &mut exact).unwrap();
    assert_eq!(report.requests.completed, 300);
    Some((exact, report))
}

#[test]
fn oc1_vllm_on_an_rtx_pro_6000() {
    const TEST: &str = "OC1";
    let Some(mut tables) = Tables::read(TEST, "RTXPRO6000") else { return };
    (tables.skew, tables.host_us) = (0.05, 1_500.0);
    let Some((mut exact, report)) = serve(TEST, tables, 128, 530_000) else { return };
    assert_eq!(report.preemptions, 0);
    within("OC1 TTFT mean, ms", mean(&exact.ttft_ms), 7_097.0, 0.10);
    within("OC1 TTFT p90, ms", p90(&mut exact.ttft_ms), 16_853.0, 0.05);
    within("OC1 TPOT mean, ms", mean(&exact.tpot_ms), 32.5, 0.05);
    within("OC1 TPOT p90, ms", p90(&mut exact.tpot_ms), 36.5, 0.05);
    within("OC1 makespan, s", exact.last_ns as f64 / 1e9, 65.9, 0.05);
}

#[test]
fn oc2_vllm_on_an_rtx_4090_that_preempts() {
    const TEST: &str = "OC2";
    let Some(tables) = Tables::read(TEST, "RTX4090") else { return };
    let Some((mut exact, report)) = serve(TEST, tables, 256, 41_408) else { return };
    println!("OC2 preemptions: {}", report.preemptions);
    assert!(report.preemptions > 0);
    within("OC2 TTFT mean, ms", mean(&exact.ttft_ms), 65_457.0, 0.10);
    within("OC2 TTFT p90, ms", p90(&mut exact.ttft_ms), 121_122.0, 0.10);
    within("OC2 TPOT mean, ms", mean(&exact.tpot_ms), 32.4, 0.10);
    within("OC2 TPOT p90, ms", p90(&mut exact.tpot_ms), 38.1, 0.10);
    within("OC2 makespan, s", exact.last_ns as f64 / 1e9, 183.6, 0.10);
}
