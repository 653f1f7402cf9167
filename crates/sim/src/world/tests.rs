//! Whole runs: the same bytes, nothing lost, nothing stuck.

use super::*;
use crate::engine::Reserve;
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_workload::{SessionGenerator, Shape};

fn config(policy: PolicyKind, instances: u32, seed: u64, single_steps: bool) -> Config {
    let profile = plimsoll_timing::find("h100-llama3-8b").unwrap();
    let shape = EngineShape { reserve: Reserve::Prompt, ..EngineShape::of(&profile.serving, 64) };
    Config {
        fleet: FleetConfig { instances, ranks: 1, gpus_per_instance: 1, shape, time: Box::new(profile) },
        gateway: GatewayConfig {
            scheduler: SchedulerConfig { policy, seed, record_candidates: 0, ..SchedulerConfig::default() },
            ..GatewayConfig::default()
        },
        poll: Nanos::from_millis(500),
        longest_pause: Some(Nanos::from_secs(20)),
        slo: Slo::default(),
        single_steps,
        setup: Setup::default(),
    }
}

fn sessions(seed: u64, count: usize) -> Source<'static> {
    let shape = Shape { turn_limit: 12, context_limit_tokens: 100_000, arrival_gap_s: 2.0, ..Shape::default() };
    Box::new(SessionGenerator::new(seed, shape).take(count).map(Ok))
}

#[test]
fn the_same_question_gives_the_same_bytes_and_another_seed_others() {
    let report = |seed| run(config(PolicyKind::LeastDelay, 3, seed, false), sessions(7, 30), &mut Nobody).unwrap();
    let (first, again, other) = (report(1).to_json(), report(1).to_json(), report(2).to_json());
    assert!(first == again, "two runs of one question differ");
    assert!(first != other, "the seed does not matter");
    assert!(Report::from_json(&first).unwrap().to_json() == first, "what was read is not what was written");
}

#[test]
fn steps_one_by_one_give_the_same_report() {
    let report = |single| run(config(PolicyKind::PowerOfTwo, 3, 1, single), sessions(5, 20), &mut Nobody).unwrap();
    assert!(report(true) == report(false), "a run is not the sum of its steps");
}

#[test]
fn every_request_is_answered_once_and_counted_once() {
    #[derive(Default)]
    struct Count(std::collections::BTreeSet<u64>, u64);
    impl Watcher for Count {
        fn finished(&mut self, one: &Finished) {
            assert!(self.0.insert(one.number), "{} twice", one.number);
            assert!(one.arrived_ns < one.first_token_ns && one.first_token_ns <= one.ended_ns);
            self.1 += one.output_tokens;
        }
    }
    for policy in [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::RoundRobin, PolicyKind::PowerOfTwo] {
        let calls: usize = sessions(3, 25).map(|session| session.unwrap().calls.len()).sum();
        let mut count = Count::default();
        let report = run(config(policy, 4, 1, false), sessions(3, 25), &mut count).unwrap();
        let refused: u64 = report.requests.refused.values().sum();
        assert_eq!(report.requests.arrived, calls as u64);
        assert_eq!(report.requests.completed + refused, calls as u64);
        assert_eq!(count.0.len() as u64, report.requests.completed);
        assert_eq!(report.tokens.output, count.1);
        let by_instance: u64 = report.instances.iter().map(|instance| instance.output_tokens).sum();
        assert_eq!(by_instance, count.1);
        assert_eq!(report.itl_ms.count + report.ttft_ms.count, count.1, "a gap for every token but the first");
        assert_eq!(
            report.tokens.prompt - report.tokens.cached,
            report.tokens.prefilled,
            "no preemption, nothing twice"
        );
    }
}

#[test]
fn a_policy_that_knows_caches_finds_more_in_them() {
    let hit = |policy| run(config(policy, 6, 1, false), sessions(11, 40), &mut Nobody).unwrap().tokens.hit_rate;
    let (aware, blind) = (hit(PolicyKind::LeastDelay), hit(PolicyKind::RoundRobin));
    assert!(aware > blind + 0.1, "{aware} {blind}");
}

#[test]
fn an_error_of_the_source_ends_the_run() {
    let source = sessions(1, 2).chain([Err("file line 3: no".to_owned())]);
    let error = run(config(PolicyKind::LeastDelay, 1, 1, false), Box::new(source), &mut Nobody).unwrap_err();
    assert_eq!(error, RunError::Input("file line 3: no".to_owned()));
}

#[test]
fn a_fleet_without_engines_refuses_and_ends() {
    let report = run(config(PolicyKind::LeastDelay, 0, 1, false), sessions(1, 3), &mut Nobody).unwrap();
    assert_eq!(report.requests.completed, 0);
    assert_eq!(report.requests.refused.values().sum::<u64>(), report.requests.arrived);
}
