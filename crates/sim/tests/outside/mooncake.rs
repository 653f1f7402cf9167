//! OC6 and OC7: Mooncake's own figures for the conversation trace (FAST'25, figures 5 and 10), on its kind of node.

use crate::shared::{Csv, file};
use plimsoll_core::Nanos;
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::engine::EngineShape;
use plimsoll_sim::gateway::GatewayConfig;
use plimsoll_sim::tier::TierConfig;
use plimsoll_sim::{Config, FleetConfig, Input, InputOptions, Nobody, Report, Source, run};
use plimsoll_timing::curve::Curve;
use plimsoll_timing::{Kernel, Profile, find};

/// Llama 70B on 8 A800: the A100's kernels (their links differ, their arithmetic does not).
fn a800(test: &str) -> Option<Profile> {
    let mut profile = find("h100-llama3-70b-tp8").unwrap();
    let (mut dense, mut head) = (Curve { at: vec![], us: vec![] }, Curve { at: vec![], us: vec![] });
    for row in Csv::read(test, "perf/derived_llama3_nonattn_iteration.csv")?.rows() {
        if (row.text("system"), row.text("model"), row.text("tp")) != ("a100_sxm", "70B", "8") {
            continue;
        }
        dense.at.push(row.number("m"));
        dense.us.push(row.number("gemm_layer_us") + row.number("allreduce_layer_us"));
        if row.number("m") <= 256.0 {
            head.at.push(row.number("m"));
            head.us.push(row.number("lm_head_us"));
        }
    }
    (profile.dense, profile.head) = (dense, head);
    (profile.machine.sms, profile.machine.bandwidth_gb_s) = (108, 2_039.0);
    // Workload notes, section 2: FA2 decode, and 163 and 198 TFLOPS at 4,096 and 16,384 tokens.
    (profile.decode.c0_us, profile.decode.c1_us, profile.decode.efficiency) = (19.0, 0.0, 0.5);
    (profile.prefill.tflops, profile.prefill.diagonal_tokens) = (213.0, 1_262.0);
    profile.kernel = Kernel::K0 { skew: 0.04 };
    profile.serving.context_tokens = 1 << 20;
    Some(profile)
}

/// Only the prompts: every answer is its first token.
fn prompts(test: &str) -> Option<Source<'static>> {
    let path = file(test, "traces/mooncake_conversation.jsonl.zst")?;
    let input = Input::open(&path, InputOptions::default()).unwrap();
    Some(Box::new(input.map(|session| {
        session.map(|mut session| {
            session.calls[0].output_tokens = 1;
            session
        })
    })))
}

fn serve(
    test: &str,
    nodes: u32,
    kv_tokens: Option<u64>,
    policy: Policy,
    cache_view: bool,
    pool: Option<TierConfig>,
) -> Option<Report> {
    let mut profile = a800(test)?;
    profile.serving.kv_tokens = kv_tokens.unwrap_or(profile.serving.kv_tokens);
    let shape = EngineShape::of(&profile.serving, 512);
    let mut fleet = FleetConfig::of(profile, nodes, shape);
    fleet.pool = pool;
    let config = Config::new(
        fleet,
        GatewayConfig {
            scheduler: SchedulerConfig { policy: policy.kind(), seed: 1, ..SchedulerConfig::default() },
            placement: policy.placement(1, 512),
            cache_view,
            ..GatewayConfig::default()
        },
    );
    Some(run(config, prompts(test)?, &mut Nobody).unwrap())
}

/// Mooncake's store: the memory of the nodes, read at 100 GB/s (87 measured on 4 links of 200 Gb).
fn pool(tokens: u64) -> TierConfig {
    TierConfig { capacity_tokens: tokens, bytes_per_s: 87e9, latency: Nanos::from_millis(1) }
}

#[test]
fn oc6_four_ways_to_choose_a_prefill_node() {
    const TEST: &str = "OC6";
    let own = |kind| Policy::Own(kind);
    // The paper's cases; of 16 nodes 8 prefill. Local caches are those of a node's memory, 3 M tokens.
    let local = Some(3_000_000);
    let cases = [
        ("random", Policy::Random, false, None, 19.65),
        ("load", own(PolicyKind::LeastWait), false, None, 5.27),
        ("local cache", own(PolicyKind::LeastWait), true, None, 3.58),
        ("global cache", own(PolicyKind::LeastWait), true, Some(pool(24_000_000)), 3.07),
    ];
    let mut found = Vec::new();
    for (name, policy, cache_view, pool, published) in cases {
        let Some(report) = serve(TEST, 8, local, policy, cache_view, pool) else { return };
        println!(
            "OC6 {name}: TTFT {:.2} s, published {published}; hit {:.1} %, busy {:.0} %",
            report.ttft_ms.mean / 1e3,
            report.tokens.hit_rate * 100.0,
            report.busy_share * 100.0
        );
        found.push((report.ttft_ms.mean / 1e3, published));
    }
    assert!(found.windows(2).all(|pair| pair[0].0 > pair[1].0), "order: {found:?}");
    for pair in found.windows(2) {
        let (ratio, published) = (pair[0].0 / pair[1].0, pair[0].1 / pair[1].1);
        println!("OC6 ratio {ratio:.2}, published {published:.2}");
    }
    for pair in found.windows(2) {
        let (ratio, published) = (pair[0].0 / pair[1].0, pair[0].1 / pair[1].1);
        assert!((1.0 / 1.5..=1.5).contains(&(ratio / published)), "{ratio} {published}");
    }
}

#[test]
fn oc7_one_pool_against_caches_of_their_own() {
    const TEST: &str = "OC7";
    // How requests are sent to nodes with caches of their own is not printed. Blind to caches is the least that a scheduler can
    // do, the least wait with their contents in it the most; what was published must lie between.
    let policy = Policy::Own(PolicyKind::LeastWait);
    let own = Some(3_000_000);
    let Some(blind) = serve(TEST, 10, own, policy, false, None) else { return };
    let Some(drawn) = serve(TEST, 10, own, Policy::Own(PolicyKind::PowerOfTwo), true, None) else { return };
    let Some(aware) = serve(TEST, 10, own, policy, true, None) else { return };
    let Some(pooled) = serve(TEST, 10, own, policy, false, Some(pool(30_000_000))) else { return };
    let against = |name: &str, local: &Report| {
        let hit = pooled.tokens.hit_rate / local.tokens.hit_rate;
        let time = pooled.prefill_share * pooled.duration_s / (local.prefill_share * local.duration_s);
        println!(
            "OC7 {name}: hit {:.1} %, pooled {:.1} %: x{hit:.2} (published x2.22); prefill time x{time:.2} (x0.76)",
            local.tokens.hit_rate * 100.0,
            pooled.tokens.hit_rate * 100.0
        );
        (hit, time)
    };
    // Documented placements of others, for orientation: none is said to be the paper's.
    for other in [Policy::CacheThreshold, Policy::DynamoCost, Policy::StickyUntilSaturated] {
        let Some(local) = serve(TEST, 10, own, other, true, None) else { return };
        against(other.as_str(), &local);
    }
    let (blind, drawn, aware) = (against("blind", &blind), against("of two", &drawn), against("aware", &aware));
    assert!(aware.0 < 2.22 && 2.22 < blind.0, "{aware:?} {blind:?}");
    assert!(aware.1 > 0.76 && 0.76 > blind.1, "{aware:?} {blind:?}");
    assert!(drawn.0 < blind.0 && drawn.0 > aware.0);
    assert!((blind.1 / 0.76 - 1.0).abs() <= 0.25, "{}", blind.1);
}
