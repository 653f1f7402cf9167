//! OC14: how long a stream stands still while it moves does not depend on how much it holds.

use plimsoll_core::{InstanceId, Nanos, Rank, Target};
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_sim::engine::EngineShape;
use plimsoll_sim::gateway::GatewayConfig;
use plimsoll_sim::world::{Move, Mover, Running};
use plimsoll_sim::{Config, FleetConfig, Nobody, run};
use plimsoll_timing::find;
use plimsoll_workload::{Call, Prompt, Run, Session};

/// Moves the one request as soon as it decodes.
#[derive(Debug, Default)]
struct Once(bool);

impl Mover for Once {
    fn moves(&mut self, _now: Nanos, _ranks: &[(Target, u64)], running: &[Running], _under_way: usize) -> Vec<Move> {
        let Some(one) = running.first().filter(|_| !self.0) else { return Vec::new() };
        self.0 = true;
        let other = 1 - one.target.instance.0;
        vec![Move { key: one.key, to: Target { instance: InstanceId(other), rank: Rank(0) } }]
    }
}

#[test]
fn oc14_a_pause_does_not_grow_with_the_context() {
    let mut pauses = Vec::new();
    for tokens in [1_000u64, 4_000, 16_000, 32_000, 64_000, 100_000] {
        let profile = find("h100-llama3-70b-tp8").unwrap();
        let shape = EngineShape::of(&profile.serving, 64);
        let call = Call {
            after: Vec::new(),
            prompt: Prompt { block_tokens: 64, runs: vec![Run { first: 0, len: tokens / 64 }], tail: None },
            echo_tokens: 0,
            max_output_tokens: None,
            output_tokens: 1_500,
            recorded: None,
        };
        let session = Session { id: String::new(), start: Nanos::ZERO, prefix_blocks: None, calls: vec![call] };
        let config = Config {
            mover: Some(Box::<Once>::default()),
            ..Config::new(
                FleetConfig::of(profile, 2, shape),
                GatewayConfig {
                    scheduler: SchedulerConfig { policy: PolicyKind::LeastDelay, ..SchedulerConfig::default() },
                    ..GatewayConfig::default()
                },
            )
        };
        let report = run(config, Box::new([Ok(session)].into_iter()), &mut Nobody).unwrap();
        assert_eq!((report.moves.moved, report.moves.aborted, report.requests.completed), (1, 0, 1));
        let pause = report.moves.pause_ms.max;
        println!(
            "OC14 {tokens} tokens: {} copied, stands still for {pause:.2} ms; a step takes {:.2} ms",
            report.moves.copied_tokens, report.itl_ms.p50
        );
        pauses.push(pause);
    }
    let (most, least) = (pauses.iter().copied().fold(0.0, f64::max), pauses.iter().copied().fold(f64::MAX, f64::min));
    assert!(most / least <= 1.5, "{pauses:?}");
}
