//! Choices made again from their records.

use crate::fleet::{Fleet, target};
use plimsoll_core::LoadReport;
use plimsoll_load::replay::{Again, ReplayError, choose};
use plimsoll_load::{AttemptEnd, HeldTokens, Placed, PolicyKind, SchedulerConfig};

const POLICIES: [PolicyKind; 4] =
    [PolicyKind::LeastDelay, PolicyKind::LeastWait, PolicyKind::PowerOfTwo, PolicyKind::RoundRobin];

fn again(placed: &Placed) -> Result<Again, ReplayError> {
    choose(placed.basis.as_ref().unwrap(), "any name", &placed.candidates)
}

/// A fleet of unequal loads, a full engine among them, with cached prompts.
fn busy(policy: PolicyKind, instances: u32, record_candidates: usize) -> Fleet {
    let config = SchedulerConfig { policy, seed: 7, record_candidates, ..SchedulerConfig::default() };
    let mut fleet = Fleet::with(config, instances);
    for id in 0..instances {
        let waiting_uncached_tokens = Some(u64::from(id * 7_919 % 5) * 100);
        let running_requests = Some(u64::from(id % 3));
        fleet.report(id, LoadReport { waiting_uncached_tokens, running_requests, ..LoadReport::default() });
    }
    fleet.report(
        2,
        LoadReport { used_kv_tokens: Some(9_999), capacity_kv_tokens: Some(10_000), ..LoadReport::default() },
    );
    fleet
}

#[test]
fn every_choice_of_every_rule_is_made_again() {
    for policy in POLICIES {
        let (mut fleet, mut drawn) = (busy(policy, 8, 8), 0);
        for turn in 0..200u32 {
            fleet.hits = vec![(
                target(turn % 8),
                HeldTokens { device_tokens: 200, host_tokens: u64::from(turn), shared_tokens: 0 },
            )];
            let placed = if turn % 3 == 0 { fleet.serve(AttemptEnd::Ok) } else { fleet.place() };
            let again = again(&placed).unwrap();
            assert_eq!((again.target, again.reason), (placed.target, placed.reason), "{policy:?}, choice {turn}");
            assert!(again.scores.iter().all(|(_, then, now)| then == now), "{policy:?}, choice {turn}");
            drawn += u32::from(placed.reason == plimsoll_load::Reason::TieDraw);
        }
        let draws = matches!(policy, PolicyKind::LeastDelay | PolicyKind::LeastWait);
        assert_eq!(drawn > 20, draws, "{policy:?}: ties were drawn {drawn} times");
    }
}

#[test]
fn a_record_that_was_changed_gives_another_choice_or_other_scores() {
    let mut fleet = busy(PolicyKind::LeastDelay, 8, 8);
    fleet.hits = vec![(target(5), HeldTokens::on_device(900))];
    let mut placed = fleet.place();
    assert_eq!(placed.target, target(5));
    let chosen = placed.candidates.iter_mut().find(|one| one.target == target(5)).unwrap();
    chosen.hit_tokens = 0;
    let again = again(&placed).unwrap();
    assert_ne!(again.target, placed.target);
    assert!(again.scores.iter().any(|(target, then, now)| *target == placed.target && now > then));
}

/// Best first is what a record keeps: enough for a least score that is alone, not for a turn or a draw among more.
#[test]
fn a_choice_of_which_too_little_is_recorded_is_not_made_up() {
    for policy in POLICIES {
        let config = SchedulerConfig { policy, record_candidates: 3, ..SchedulerConfig::default() };
        let placed = Fleet::with(config, 20).place();
        let short = Err(ReplayError::TooFew { recorded: 3, offered: 20 });
        assert_eq!(again(&placed), short, "{policy:?}: many ties");
    }
    let mut fleet = busy(PolicyKind::LeastWait, 20, 3);
    fleet.hits = vec![(target(5), HeldTokens::on_device(900))];
    let placed = fleet.place();
    assert_eq!(again(&placed).unwrap().target, placed.target);
}
