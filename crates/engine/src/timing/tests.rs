//! The schedule against made-up clocks: what a run takes is the model's sum, whatever this machine does.

use super::*;
use crate::EngineConfig;
use crate::core::tests::{Ask, asks, config, params, plain, sequence};
use crate::lockstep::Lockstep;
use crate::request::Task;
use crate::sequence::RidSet;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;

/// Time that passes only when it is looked at (computing takes time) or slept through.
#[derive(Clone, Debug)]
struct VirtualClock(Arc<Mutex<Virtual>>);

#[derive(Debug)]
struct Virtual {
    start: Instant,
    now: Instant,
    /// Passes at every look.
    tick: Duration,
    looks: u64,
    /// Passes once more at this look.
    hiccup: Option<(u64, Duration)>,
    /// Every sleep ends this much late.
    oversleep: Duration,
}

impl VirtualClock {
    fn new(tick: Duration) -> Self {
        let start = Instant::now();
        VirtualClock(Arc::new(Mutex::new(Virtual {
            start,
            now: start,
            tick,
            looks: 0,
            hiccup: None,
            oversleep: Duration::ZERO,
        })))
    }

    fn elapsed(&self) -> Duration {
        let inner = self.0.lock();
        inner.now - inner.start
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        let mut inner = self.0.lock();
        inner.looks += 1;
        let hiccup = inner.hiccup.filter(|(at, _)| *at == inner.looks).map_or(Duration::ZERO, |(_, long)| long);
        let passed = inner.tick + hiccup;
        inner.now += passed;
        inner.now
    }

    fn sleep_until(&self, at: Instant) {
        let mut inner = self.0.lock();
        if at > inner.now {
            inner.now = at + inner.oversleep;
        }
    }
}

fn timing(name: &str, speedup: f64) -> Timing {
    Timing { profile: plimsoll_timing::find(name).unwrap(), speedup }
}

/// Runs everything to its end; time passes in steps only. Returns what the steps should have taken by the ranks' account.
fn run(config: &EngineConfig, clock: &VirtualClock, asks: &[(Ask, usize)]) -> (Lockstep, Duration) {
    let mut lockstep = Lockstep::with_clock(config, Box::new(clock.clone())).unwrap();
    let rids = RidSet::default();
    let mut boxes = Vec::new();
    for (index, (ask, rank)) in asks.iter().enumerate() {
        let (sequence, mailbox) =
            sequence(config, &rids, index, Task::Generate(params(ask.max_new_tokens)), &ask.prompt);
        lockstep.ranks[*rank].submit(sequence);
        boxes.push(mailbox);
    }
    while !lockstep.is_idle() {
        lockstep.step(Duration::ZERO);
    }
    let stats = lockstep.ranks[0].stats;
    (lockstep, Duration::from_nanos(stats.busy_ns + stats.idle_ns))
}

fn on_rank_0(asks: Vec<Ask>) -> Vec<(Ask, usize)> {
    asks.into_iter().map(|ask| (ask, 0)).collect()
}

/// The schedule is known here: one prompt in two chunks, then one token a step.
#[test]
fn a_known_schedule_takes_the_models_sum() {
    let timing = timing("h100-llama3-70b-tp8", 4.0);
    let ask = plain(1, 40, 10);
    let config = EngineConfig { timing: Some(timing.clone()), ..config(20, 4, 30) };
    let step = |fill: &dyn Fn(&mut StepShape)| {
        let mut shape = StepShape::default();
        fill(&mut shape);
        Duration::from_secs_f64(timing.profile.step_time(&shape).as_secs_f64() / 4.0)
    };
    let mut sum = step(&|shape| shape.add_prefill(30, 0, false)) + step(&|shape| shape.add_prefill(10, 30, true));
    sum += (41..50).map(|length| step(&|shape| shape.add_decode(length))).sum::<Duration>();
    for tick_us in [0, 5, 400] {
        let clock = VirtualClock::new(Duration::from_micros(tick_us));
        let (lockstep, accounted) = run(&config, &clock, &on_rank_0(ask.clone()));
        let stats = lockstep.ranks[0].stats;
        assert_eq!((stats.joint_steps, stats.late_steps, accounted), (11, 0, sum));
        // The looks before the first step and after the last one are not a part of any.
        let over = clock.elapsed() - sum;
        assert!(over <= 2 * Duration::from_micros(tick_us), "{tick_us}: {over:?} over {sum:?}");
        assert_eq!(stats.decode_moments[0], 9);
        let decode_us = (sum - step(&|shape| shape.add_prefill(30, 0, false))).as_micros() as u64;
        assert!(stats.decode_moments[2] < decode_us, "an engine's reports are the model's too");
    }
}

#[test]
fn late_sleeps_and_a_slow_step_are_caught_up() {
    let config = EngineConfig { timing: Some(timing("h100-llama3-8b", 1.0)), ..config(20, 4, 64) };
    let clock = VirtualClock::new(Duration::from_micros(100));
    clock.0.lock().oversleep = Duration::from_micros(90);
    clock.0.lock().hiccup = Some((40, Duration::from_millis(50)));
    let (lockstep, accounted) = run(&config, &clock, &on_rank_0(plain(3, 30, 60)));
    let stats = lockstep.ranks[0].stats;
    // 50 ms are some six steps of 8 ms.
    assert!((2..15).contains(&stats.late_steps), "{}", stats.late_steps);
    assert_eq!(stats.lost_ns, 0);
    let over = clock.elapsed().saturating_sub(accounted);
    assert!(over <= Duration::from_micros(290), "{over:?}");
}

#[test]
fn a_machine_that_cannot_keep_up_is_counted_and_not_waited_for() {
    let config = EngineConfig { timing: Some(timing("h100-llama3-8b", 20.0)), ..config(20, 4, 64) };
    // A step is 0.4 ms here and computes for 4 looks.
    let clock = VirtualClock::new(Duration::from_millis(1));
    let (lockstep, accounted) = run(&config, &clock, &on_rank_0(plain(2, 30, 200)));
    let stats = lockstep.ranks[0].stats;
    assert_eq!(stats.late_steps, stats.joint_steps);
    let behind = clock.elapsed() - accounted - Duration::from_nanos(stats.lost_ns);
    assert!(stats.lost_ns > 0 && behind <= MOST_BEHIND + Duration::from_millis(8), "{behind:?}");
}

#[test]
fn a_pause_is_not_caught_up() {
    let clock = VirtualClock::new(Duration::ZERO);
    let mut pacer = Pacer::default();
    let step = Duration::from_millis(5);
    pacer.wait(&clock, clock.now(), step);
    assert_eq!(clock.elapsed(), step);
    clock.0.lock().now += Duration::from_secs(60);
    pacer.resume();
    pacer.wait(&clock, clock.now(), step);
    assert_eq!(clock.elapsed(), Duration::from_secs(60) + 2 * step);
    assert_eq!((pacer.late_steps, pacer.lost), (0, Duration::ZERO));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Any requests on any number of ranks: as long as computing is quicker than the model, time is the sum over steps of
    /// the slowest rank, and a rank waits for what it does not use of that.
    #[test]
    fn time_is_the_sum_of_the_slowest(
        asks in asks(),
        ranks in prop::collection::vec(0usize..4, 7),
        dp_size in 1usize..5,
        tick_us in 0u64..200,
    ) {
        let asks: Vec<_> = asks.into_iter().zip(ranks).map(|(ask, rank)| (ask, rank % dp_size)).collect();
        let config = EngineConfig { timing: Some(timing("h200-qwen3-235b-dp8", 2.0)), dp_size, ..config(40, 4, 64) };
        let clock = VirtualClock::new(Duration::from_micros(tick_us));
        let (lockstep, accounted) = run(&config, &clock, &asks);
        prop_assert_eq!(lockstep.ranks[0].stats.late_steps, 0);
        let over = clock.elapsed() - accounted;
        prop_assert!(over <= 2 * Duration::from_micros(tick_us), "{:?}", over);
        for core in &lockstep.ranks {
            let stats = core.stats;
            prop_assert_eq!(Duration::from_nanos(stats.busy_ns + stats.idle_ns), accounted);
            prop_assert_eq!(stats.busy_ns > 0, stats.steps > 0);
        }
    }
}
