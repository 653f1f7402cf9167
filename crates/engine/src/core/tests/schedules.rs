//! Whatever the policy makes of deadlines, priorities, preemption, departures and a pool that shrinks and grows: who is
//! served gets the answer that it gets alone, bit for bit, and nobody is left without an end.

use super::*;
use crate::scheduler::policy::{Order, SchedulePolicy};
use crate::urgency::Urgency;

/// What a request says about its hurry: no deadline, one that is surely met, or one that is hardly met.
fn urgency() -> impl Strategy<Value = Urgency> {
    let ttft = prop_oneof![Just(None), Just(Some(3_600_000)), (0u64..20).prop_map(Some)];
    (ttft, prop::option::of(0u64..40), prop::option::of(-20i64..20)).prop_map(|(ttft, tpot, priority)| Urgency {
        ttft: ttft.map(Duration::from_millis),
        tpot: tpot.map(Duration::from_millis),
        priority,
    })
}

fn order() -> impl Strategy<Value = Order> {
    (0usize..3, 0u64..50, any::<bool>(), 0u32..12).prop_map(|(policy, patience, low_priority_first, threshold)| Order {
        policy: SchedulePolicy::ALL[policy],
        patience: Duration::from_millis(patience),
        low_priority_first,
        preemption_threshold: threshold,
    })
}

/// Steps at which the share of pages that is kept away changes, in the end to nothing.
fn pressure() -> impl Strategy<Value = Vec<(usize, f32)>> {
    prop::collection::vec((0usize..60, 0f32..1.0), 0..5)
}

struct Lived {
    /// By ask: its end, unless its reader left.
    ends: Vec<Option<Update>>,
    retractions: u64,
}

fn live(config: &EngineConfig, asks: &[(Ask, Urgency)], pressure: &[(usize, f32)]) -> Lived {
    let mut core = Core::new(config);
    let rids = RidSet::default();
    let mut boxes: Vec<Option<Arc<Mailbox>>> = vec![None; asks.len()];
    let last = asks.iter().map(|(ask, _)| ask.at).chain(pressure.iter().map(|(at, _)| *at)).max().unwrap_or(0);
    for step in 0..20_000 {
        for (index, (ask, urgency)) in asks.iter().enumerate() {
            if ask.at == step {
                let task = Task::Generate(params(ask.max_new_tokens));
                let (mut sequence, mailbox) = sequence(config, &rids, index, task, &ask.prompt);
                sequence.urgency = *urgency;
                core.submit(sequence);
                boxes[index] = Some(mailbox);
            }
            if ask.leaves == Some(step)
                && let Some(mailbox) = &boxes[index]
            {
                leave(mailbox);
            }
        }
        let share =
            pressure.iter().filter(|(at, _)| *at <= step).max_by_key(|(at, _)| *at).map_or(0.0, |(_, share)| *share);
        core.press(if step > last { 0.0 } else { share });
        core.step();
        core.scheduler.check().unwrap();
        if core.scheduler.is_idle() && step > last {
            break;
        }
    }
    assert!(core.scheduler.is_idle(), "the engine did not come to rest");
    assert_eq!(core.scheduler.blocks.held(), 0);
    assert!(rids.lock().is_empty());
    let end = |(mailbox, (ask, _)): (&Option<Arc<Mailbox>>, &(Ask, Urgency))| match (mailbox, ask.leaves) {
        (Some(mailbox), None) => Some(taken(mailbox)),
        _ => None,
    };
    Lived { ends: boxes.iter().zip(asks).map(end).collect(), retractions: core.stats.retractions }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn greedy_answers_do_not_depend_on_the_schedule(
        asks in asks(),
        urgencies in prop::collection::vec(urgency(), 7),
        order in order(),
        pressure in pressure(),
        pages in 10usize..40,
        max_running in 1usize..6,
        budget in 6usize..80,
    ) {
        let config = EngineConfig { order, ..config(pages, max_running, budget) };
        let asks: Vec<(Ask, Urgency)> = asks.into_iter().zip(urgencies).collect();
        let lived = live(&config, &asks, &pressure);
        for ((ask, urgency), end) in asks.iter().zip(lived.ends) {
            let Some(end) = end else { continue };
            match end.finish {
                Some(Finish::Refused(Refusal::SloUnattainable(_))) => {
                    prop_assert!(order.policy == SchedulePolicy::Slo && urgency.has_goal());
                    prop_assert!(end.ids.is_empty(), "who has begun is not refused");
                }
                Some(Finish::Abort { .. } | Finish::Refused(_)) | None => prop_assert!(false, "{:?}", end.finish),
                Some(_) => prop_assert_eq!(end.ids, alone(ask)),
            }
        }
    }
}

/// The property above is about preemption, under every policy: here it surely happens.
#[test]
fn every_policy_preempts_and_recomputes_bit_for_bit() {
    for policy in SchedulePolicy::ALL {
        let order = Order { policy, ..Order::default() };
        let config = EngineConfig { order, ..config(12, 4, 128) };
        let asks: Vec<(Ask, Urgency)> = plain(4, 40, 60)
            .into_iter()
            .enumerate()
            .map(|(index, ask)| {
                (ask, Urgency { priority: Some(index as i64 * 20), ttft: Some(Duration::from_secs(3_600)), tpot: None })
            })
            .collect();
        // The pool shrinks in the middle, too.
        let lived = live(&config, &asks, &[(20, 0.4), (40, 0.0)]);
        assert!(lived.retractions > 0, "{policy:?}");
        for ((ask, _), end) in asks.iter().zip(lived.ends) {
            assert_eq!(end.map(|end| end.ids).as_ref(), Some(&alone(ask)), "{policy:?}");
        }
    }
}
