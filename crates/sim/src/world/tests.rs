//! Whole runs: the same bytes, nothing lost, nothing stuck.

use super::*;
use crate::engine::{EngineShape, Reserve};
use crate::tier::TierConfig;
use plimsoll_load::{PolicyKind, SchedulerConfig};
use plimsoll_workload::{SessionGenerator, Shape};

fn config(policy: PolicyKind, instances: u32, seed: u64, single_steps: bool) -> Config {
    let profile = plimsoll_timing::find("h100-llama3-8b").unwrap();
    let shape = EngineShape { reserve: Reserve::Prompt, ..EngineShape::of(&profile.serving, 64) };
    Config {
        longest_pause: Some(Nanos::from_secs(20)),
        single_steps,
        ..Config::new(
            FleetConfig::of(profile, instances, shape),
            GatewayConfig {
                scheduler: SchedulerConfig { policy, seed, record_candidates: 0, ..SchedulerConfig::default() },
                ..GatewayConfig::default()
            },
        )
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

fn split(policy: PolicyKind) -> Config {
    let mut config = config(policy, 2, 1, false);
    config.fleet.decode_instances = 2;
    config
}

#[test]
fn prefill_and_decode_apart_answer_everything_too() {
    let together = run(config(PolicyKind::LeastDelay, 4, 1, false), sessions(3, 25), &mut Nobody).unwrap();
    let apart = run(split(PolicyKind::LeastDelay), sessions(3, 25), &mut Nobody).unwrap();
    assert_eq!(apart.requests.completed, together.requests.completed);
    assert_eq!(apart.tokens.output, together.tokens.output);
    assert_eq!(apart.itl_ms.count + apart.ttft_ms.count, apart.tokens.output);
    let roles: Vec<(&str, bool)> =
        apart.instances.iter().map(|one| (one.role.as_str(), one.prefilled_tokens > 0)).collect();
    assert_eq!(roles, [("prefill", true), ("prefill", true), ("decode", false), ("decode", false)]);
    // Answers of one token end where their prompt was computed.
    assert!(apart.instances[2].requests > 10 * apart.instances[0].requests);
    // A slow network is felt in the second token, not in the first.
    let mut slow = split(PolicyKind::LeastDelay);
    slow.fleet.network.bytes_per_s = 1e9;
    let slow = run(slow, sessions(3, 25), &mut Nobody).unwrap();
    assert!(slow.itl_ms.max > 3.0 * apart.itl_ms.max, "{} {}", slow.itl_ms.max, apart.itl_ms.max);
}

/// Found by hand: round robin went round both kinds at once, and prefill engines were offered as places to move to.
#[test]
fn apart_every_engine_gets_its_turn_and_running_requests_move_among_those_that_decode() {
    let mut apart = split(PolicyKind::RoundRobin);
    apart.mover = Some(Box::new(KvBalance { most_under_way: 4, ..KvBalance::default() }));
    apart.fleet.network.bytes_per_s = 400e9;
    let calls: usize = sessions(3, 60).map(|session| session.unwrap().calls.len()).sum();
    let report = run(apart, sessions(3, 60), &mut Nobody).unwrap();
    assert_eq!(report.requests.completed, calls as u64);
    let prefilled: Vec<u64> = report.instances.iter().map(|one| one.prefilled_tokens).collect();
    assert!(prefilled[0] > 0 && prefilled[1] > 0 && prefilled[2..] == [0, 0], "{prefilled:?}");
    assert!(report.instances[2..].iter().all(|one| one.share > 0.3), "{:?}", report.instances);
    assert!(report.moves.moved > report.moves.aborted, "{:?}", report.moves);
}

#[test]
fn an_engine_that_dies_loses_what_it_streams_and_nothing_else() {
    let mut dies = config(PolicyKind::LeastDelay, 3, 1, false);
    let again =
        StartUp(vec![("weights".to_owned(), Nanos::from_secs(30)), ("graphs".to_owned(), Nanos::from_secs(10))]);
    dies.changes = vec![
        (Nanos::from_secs(60), Change::Die { instance: 1 }),
        (Nanos::from_secs(70), Change::Return { instance: 1, start_up: again }),
    ];
    let calls: usize = sessions(3, 40).map(|session| session.unwrap().calls.len()).sum();
    #[derive(Default)]
    struct Of(Vec<(u64, u64)>);
    impl Watcher for Of {
        fn finished(&mut self, one: &Finished) {
            if one.instance == 1 {
                self.0.push((one.arrived_ns, one.ended_ns));
            }
        }
    }
    let mut of = Of::default();
    let report = run(dies, sessions(3, 40), &mut of).unwrap();
    let refused: u64 = report.requests.refused.values().sum();
    assert_eq!(report.requests.arrived, calls as u64);
    assert_eq!(report.requests.completed + report.requests.failed + refused, calls as u64);
    assert!(report.requests.failed > 0 && report.requests.failed < 20, "{}", report.requests.failed);
    // One set: what broke off has a first token and no answer, and is not refused.
    assert_eq!((report.ttft_ms.count, report.e2e_ms.count), (report.requests.completed, report.requests.completed));
    let classes = |of: fn(&crate::report::ClassFigures) -> u64| report.classes.values().map(of).sum::<u64>();
    assert_eq!((classes(|of| of.failed), classes(|of| of.refused)), (report.requests.failed, refused));
    assert_eq!(classes(|of| of.ttft_ms.count), report.requests.completed);
    let per_run = |of: &[f64]| (of.iter().sum::<f64>() * report.over_time.bin_s).round() as u64;
    assert_eq!(per_run(&report.over_time.failed_per_s), report.requests.failed);
    assert_eq!(per_run(&report.over_time.refused_per_s), refused);
    // Dead for ten seconds: then one less, and starting up it is counted again.
    let least = report.over_time.instances.iter().flatten().fold(f64::INFINITY, |least, now| least.min(*now));
    assert!((2.0..3.0).contains(&least), "{least}");
    assert_eq!(
        report.over_time.instances.iter().flatten().filter(|now| **now < 3.0).count() as f64 * report.over_time.bin_s,
        10.0,
        "{:?} {}",
        report.over_time.instances,
        report.over_time.bin_s
    );
    assert!((report.gpu_hours * 3_600.0 - 3.0 * report.duration_s).abs() < 0.1, "it is paid for all the time");
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    let second = 1_000_000_000;
    assert!(of.0.iter().all(|(_, ended)| *ended < 60 * second || *ended > 110 * second));
    assert!(of.0.iter().any(|(arrived, _)| *arrived > 110 * second), "it serves again");
}

#[test]
fn what_happens_after_the_end_is_said_to_change_nothing() {
    let mut late = config(PolicyKind::LeastDelay, 2, 1, false);
    late.changes = vec![
        (Nanos::from_secs(50_000), Change::Die { instance: 1 }),
        (Nanos::from_secs(1), Change::Slow { instance: 0, times: 2 }),
    ];
    let report = run(late, sessions(3, 5), &mut Nobody).unwrap();
    let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert!(note.ends_with("this changed nothing: at 50000 s engine 1 dies"), "{note}");
}

#[test]
fn a_slow_engine_gets_less_to_do_and_a_new_one_its_share() {
    let share = |changes: Vec<(Nanos, Change)>| {
        let mut config = config(PolicyKind::LeastDelay, 3, 1, false);
        config.changes = changes;
        run(config, sessions(3, 40), &mut Nobody).unwrap()
    };
    let even = share(Vec::new());
    let slow = share(vec![(Nanos::ZERO, Change::Slow { instance: 0, times: 5 })]);
    assert!(slow.instances[0].share < 0.7 * even.instances[0].share, "{}", slow.instances[0].share);
    let start_up = StartUp(vec![("image".to_owned(), Nanos::from_secs(20))]);
    let joined = share(vec![(Nanos::from_secs(10), Change::Join { start_up })]);
    assert_eq!(joined.instances.len(), 4);
    assert!(joined.instances[3].share > 0.1, "{}", joined.instances[3].share);
    // It is paid for from its start, not from when it serves.
    let paid_s = joined.gpu_hours * 3_600.0;
    assert!((paid_s - (4.0 * joined.duration_s - 10.0)).abs() < 2.0, "{paid_s} {}", joined.duration_s);
}

#[test]
fn a_pool_and_the_hosts_memory_save_prefill() {
    let serve = |host: Option<u64>, pool: Option<u64>| {
        let mut config = config(PolicyKind::RoundRobin, 4, 1, false);
        config.fleet.shape.kv_tokens = 131_072;
        let tier = |tokens| TierConfig { capacity_tokens: tokens, bytes_per_s: 20e9, latency: Nanos::from_millis(1) };
        (config.fleet.host, config.fleet.pool) = (host.map(tier), pool.map(tier));
        run(config, sessions(3, 40), &mut Nobody).unwrap()
    };
    let [none, host, pool] = [serve(None, None), serve(Some(4_000_000), None), serve(None, Some(16_000_000))];
    assert_eq!(none.tokens.loaded, 0);
    for more in [&host, &pool] {
        assert!(more.tokens.loaded > 0 && more.tokens.prefilled < none.tokens.prefilled);
        assert_eq!(more.requests.completed, none.requests.completed);
    }
    assert!(pool.tokens.hit_rate > host.tokens.hit_rate + 0.1, "{} {}", pool.tokens.hit_rate, host.tokens.hit_rate);
}

#[test]
fn moving_requests_evens_out_kv() {
    let serve = |mover: Option<Box<dyn Mover>>| {
        let mut config = config(PolicyKind::RoundRobin, 4, 1, false);
        config.mover = mover;
        run(config, sessions(3, 60), &mut Nobody).unwrap()
    };
    let (still, moved) = (serve(None), serve(Some(Box::new(KvBalance { most_under_way: 4, ..KvBalance::default() }))));
    assert_eq!(still.moves.moved, 0);
    assert!(moved.moves.moved > 10, "{:?}", moved.moves);
    assert_eq!(moved.moves.pause_ms.count, moved.moves.moved);
    assert_eq!(moved.requests.completed, still.requests.completed);
    assert_eq!(moved.tokens.output, still.tokens.output);
    assert_eq!(moved.itl_ms.count + moved.ttft_ms.count, moved.tokens.output);
    let spread = |report: &Report| {
        let of = report.over_time.fullest_over_mean.iter().flatten();
        of.clone().sum::<f64>() / of.count() as f64
    };
    assert!(spread(&moved) < spread(&still), "{} {}", spread(&moved), spread(&still));
}

#[test]
fn a_run_that_nothing_can_advance_is_told_with_its_state() {
    // A call that waits for itself.
    let waits = sessions(3, 3).map(|session| {
        session.map(|mut session| {
            session.calls[1].after[0].call = 1;
            session
        })
    });
    let error = run(config(PolicyKind::LeastDelay, 2, 1, false), Box::new(waits), &mut Nobody).unwrap_err();
    let RunError::Stuck { state } = error else { panic!("{error}") };
    assert!(state.contains("0 requests in flight") && state.contains("3 sessions under way"), "{state}");
}

#[test]
fn admission_refuses_under_overload_and_high_class_waits_less_for_it() {
    let serve = |admission: Option<Rules>| {
        let mut config = config(PolicyKind::LeastDelay, 1, 1, false);
        config.admission = admission;
        run(config, sessions(3, 150), &mut Nobody).unwrap()
    };
    let (open, guarded) = (serve(None), serve(Some(Rules::default())));
    for report in [&open, &guarded] {
        let refused: u64 = report.requests.refused.values().sum();
        assert_eq!(report.requests.completed + refused + report.requests.failed, report.requests.arrived);
    }
    let p90 = |report: &Report| report.classes["high"].ttft_ms.p90;
    assert!(p90(&guarded) < 0.8 * p90(&open), "{} {}", p90(&guarded), p90(&open));
}
