//! Who waits for whom.

use super::world::plain;
use super::*;
use crate::level::InstanceLoad;

fn engine() -> InstanceLoad {
    InstanceLoad { prefill_tokens_per_s: KNOWN, ..InstanceLoad::default() }
}

fn look(now: Nanos, instances: &[InstanceLoad]) -> PoolView<'_> {
    PoolView { taken_at: now, instances }
}

fn gone(decisions: &[Decision]) -> Vec<u128> {
    let go = |one: &Decision| matches!(one, Decision::Go { .. }).then(|| one.key().0);
    decisions.iter().filter_map(go).collect()
}

/// An empty view was room for everybody: the whole queue went to engines that were out.
#[test]
fn engines_that_are_all_out_do_not_drain_the_queue() {
    let mut admission = Admission::new(Rules { max_wait: seconds(30.0), ..Rules::default() });
    let busy = [InstanceLoad { backlog_tokens: 50_000, running: 1, ..engine() }; 2];
    let now = seconds(1.0);
    for key in 0..20 {
        let arrival = Arrival { key: RequestId(key), ..plain(Class::ALL[key as usize % 3], 500) };
        assert_eq!(admission.arrive(now, arrival, &look(now, &busy)), Verdict::Wait);
    }
    let out = [InstanceLoad { out: true, ..engine() }; 2];
    for tenths in 11..300 {
        let now = seconds(f64::from(tenths) / 10.0);
        assert_eq!(admission.dispatch(now, &look(now, &out)), []);
    }
    // One of them is back.
    let now = seconds(30.5);
    let half = [InstanceLoad { out: false, ..out[0] }];
    let went = gone(&admission.dispatch(now, &look(now, &half)));
    assert!((1..20).contains(&went.len()), "{went:?}");
    // The others' time is bounded all the same.
    let now = seconds(31.0);
    let refused = admission.dispatch(now, &look(now, &out));
    assert_eq!(refused.len() + went.len(), 20);
    assert!(
        refused.iter().all(|one| matches!(one, Decision::Refuse { refusal, .. } if refusal.rule == Rule::WaitBudget))
    );
    // With nobody waiting placement says at once what is wrong.
    let arrival = Arrival { key: RequestId(99), ..plain(Class::High, 500) };
    assert!(matches!(admission.arrive(now, arrival, &look(now, &out)), Verdict::Go(_)));
}
