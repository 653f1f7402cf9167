//! Ranks share a step and nothing else: answers do not depend on the rank, and nobody's time is lost from the account.

use super::*;
use crate::clock::Clock;
use crate::core::tests::{Ask, alone, asks, config, params, plain, sequence, taken};
use crate::request::Task;
use crate::sequence::RidSet;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Runs all asks, each on its rank. Returns the answers of those that stayed.
/// A clock that goes on by a millisecond whenever it is looked at: every rank's work takes as long as every other's.
#[derive(Debug)]
struct Ticking {
    start: Instant,
    looks: AtomicU32,
}

impl Clock for Ticking {
    fn now(&self) -> Instant {
        self.start + Duration::from_millis(1) * self.looks.fetch_add(1, Ordering::Relaxed)
    }

    fn sleep_until(&self, _: Instant) {}
}

fn together(config: &EngineConfig, asks: &[(Ask, usize)]) -> (Vec<Option<Vec<u32>>>, Lockstep) {
    let clock = Ticking { start: Instant::now(), looks: AtomicU32::new(0) };
    let mut lockstep = Lockstep::with_clock(config, Box::new(clock)).unwrap();
    let rids = RidSet::default();
    let mut boxes = vec![None; asks.len()];
    for step in 0..20_000 {
        for (index, (ask, rank)) in asks.iter().enumerate() {
            if ask.at == step {
                let task = Task::Generate(params(ask.max_new_tokens));
                let (sequence, mailbox) = sequence(config, &rids, index, task, &ask.prompt);
                lockstep.ranks[*rank].submit(sequence);
                boxes[index] = Some(mailbox);
            }
            if ask.leaves == Some(step) {
                lockstep.ranks[*rank].abort(Some(&format!("r{index}")));
            }
        }
        lockstep.step(Duration::ZERO);
        for core in &lockstep.ranks {
            core.scheduler.check().unwrap();
        }
        if lockstep.is_idle() && asks.iter().all(|(ask, _)| ask.at <= step) {
            break;
        }
    }
    assert!(lockstep.is_idle(), "the engine did not come to rest");
    assert!(lockstep.ranks.iter().all(|core| core.scheduler.blocks.held() == 0));
    let answers = boxes.iter().zip(asks).map(|(mailbox, (ask, _))| match ask.leaves {
        Some(_) => None,
        None => mailbox.as_ref().map(|mailbox| taken(mailbox).ids),
    });
    (answers.collect(), lockstep)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any spread over any number of ranks, with batching, chunking, prefix hits, preemption and aborts in each.
    #[test]
    fn answers_do_not_depend_on_the_rank_or_its_neighbours(
        asks in asks(),
        ranks in prop::collection::vec(0usize..5, 7),
        dp_size in 1usize..5,
        pages in 10usize..40,
        max_running in 1usize..6,
        budget in 6usize..80,
    ) {
        let config = EngineConfig { dp_size, ..config(pages, max_running, budget) };
        let asks: Vec<_> = asks.into_iter().zip(ranks).map(|(ask, rank)| (ask, rank % dp_size)).collect();
        let (answers, lockstep) = together(&config, &asks);
        for ((ask, _), answer) in asks.iter().zip(answers) {
            if let Some(answer) = answer {
                prop_assert_eq!(answer, alone(ask));
            }
        }
        account(&lockstep);
    }
}

/// Every rank's time is busy or idle, and all together have spent the same. Returns that sum.
fn account(lockstep: &Lockstep) -> u64 {
    let first = lockstep.ranks[0].stats;
    for core in &lockstep.ranks {
        assert_eq!(core.stats.joint_steps, first.joint_steps);
        assert_eq!(core.stats.busy_ns + core.stats.idle_ns, first.busy_ns + first.idle_ns);
        assert!(core.stats.steps <= core.stats.joint_steps);
    }
    first.busy_ns + first.idle_ns
}

#[test]
fn a_rank_without_work_waits_for_the_others_all_the_time() {
    let config = EngineConfig { dp_size: 3, ..config(40, 4, 64) };
    // Rank 0 decodes long, rank 1 briefly, rank 2 does nothing.
    let mut asks = plain(2, 40, 40);
    asks[1].max_new_tokens = 5;
    let asks: Vec<_> = asks.into_iter().enumerate().map(|(rank, ask)| (ask, rank)).collect();
    let (_, lockstep) = together(&config, &asks);
    let sum = account(&lockstep);
    let [long, brief, none] = [0, 1, 2].map(|rank| lockstep.ranks[rank].stats);
    assert!(sum > 0);
    assert_eq!((none.busy_ns, none.idle_ns, none.steps), (0, sum, 0));
    // Of the forty steps five were the brief one's too.
    assert_eq!((long.idle_ns, brief.idle_ns), (0, 35_000_000));
    assert!(brief.steps < long.steps);
    assert_eq!(long.steps, long.joint_steps);
    // One after the other, not together: as long as both need.
    assert_eq!(long.joint_steps, 40);
}

#[test]
fn a_pause_is_neither_busy_nor_idle() {
    let config = EngineConfig { dp_size: 2, ..config(40, 4, 64) };
    let mut lockstep = Lockstep::new(&config).unwrap();
    lockstep.step(Duration::from_millis(1));
    assert_eq!(account(&lockstep), 0);
    assert_eq!(lockstep.ranks[0].stats.joint_steps, 0);
    let (sequence, _mailbox) = sequence(&config, &RidSet::default(), 0, Task::Generate(params(3)), &[300; 10]);
    lockstep.ranks[1].submit(sequence);
    while !lockstep.is_idle() {
        lockstep.step(Duration::from_millis(2));
    }
    assert_eq!(lockstep.ranks[0].stats.joint_steps, 3);
    assert!(account(&lockstep) >= 6_000_000, "a step takes at least what it is told");
}

#[test]
fn a_slowed_step_takes_its_time_and_says_so() {
    let config = config(40, 4, 64);
    let mut lockstep = Lockstep::new(&config).unwrap();
    assert!(
        lockstep.begin(Duration::ZERO, Some(SlowStep::Us(1_000_000_000))).is_none(),
        "nothing to do is done at once"
    );
    let (sequence, _mailbox) = sequence(&config, &RidSet::default(), 0, Task::Generate(params(4)), &[300; 10]);
    lockstep.ranks[0].submit(sequence);
    let mut spent = |slow: SlowStep| {
        let started = Instant::now();
        let begun = lockstep.begin(Duration::ZERO, Some(slow)).unwrap();
        lockstep.end(begun);
        started.elapsed()
    };
    assert!(spent(SlowStep::Us(20_000)) >= Duration::from_millis(20));
    // Many times what a step of this model can take in no time at all.
    assert!(spent(SlowStep::Factor(1000.0)) >= Duration::from_millis(1));
    assert!(lockstep.ranks[0].stats.busy_ns >= 21_000_000);
}
