//! A request's class as the engine's own scheduler understands it.
//!
//! What the gateway decides ends at the engine's queue unless the engine orders it alike. SGLang and vLLM both take an
//! integer `priority`, in opposite senses, and only when started so: one that does not expect it may refuse the request. So
//! it is set where the engine says that it takes it, or the operator says so (`engines[].priority_order`), and nowhere else.
//!
//! All values lie within ten of each other: SGLang preempts, and computes again, what runs when more than that lies between it and
//! one that waits, and its preemption has had faults enough (reference on SGLang, 5 and 8). Within its class a client's
//! own `priority` still says before or after the others; more, and any client would be of any class.

use crate::fleet::EngineHandle;
use crate::flow::Flow;
use plimsoll_core::Class;
use plimsoll_pools::capability::PriorityOrder;

/// Between two classes. A client's own step is one, to either side.
const STEP: i64 = 4;

/// The `priority` to send; `None` leaves the body as it came.
pub(crate) fn of(flow: &Flow, engine: &EngineHandle) -> Option<i64> {
    number(order(engine), flow.class, flow.wishes.priority)
}

fn order(engine: &EngineHandle) -> PriorityOrder {
    use plimsoll_settings::PriorityOrder as Named;
    match engine.priority_order() {
        Some(Named::HigherFirst) => PriorityOrder::HigherFirst,
        Some(Named::LowerFirst) => PriorityOrder::LowerFirst,
        Some(Named::None) => PriorityOrder::None,
        None => engine.capability.load().as_ref().map_or(PriorityOrder::Unknown, |capability| capability.priority),
    }
}

fn number(order: PriorityOrder, class: Class, own: Option<i32>) -> Option<i64> {
    let from_high = match class {
        Class::High => 0,
        Class::Medium => 1,
        Class::Low => 2,
    };
    let band = match order {
        PriorityOrder::HigherFirst => STEP * (2 - from_high),
        PriorityOrder::LowerFirst => STEP * from_high,
        PriorityOrder::None | PriorityOrder::Unknown => return None,
    };
    Some(band + i64::from(own.unwrap_or(0).signum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_their_order_in_either_sense_and_nobody_is_preempted() {
        let ways = [(PriorityOrder::HigherFirst, -1), (PriorityOrder::LowerFirst, 1)];
        for (order, sign) in ways {
            let own = |class, own| number(order, class, own).unwrap() * sign;
            let worst =
                |class| [None, Some(i32::MIN), Some(i32::MAX)].map(|n| own(class, n)).into_iter().max().unwrap();
            let best = |class| [None, Some(i32::MIN), Some(i32::MAX)].map(|n| own(class, n)).into_iter().min().unwrap();
            assert!(worst(Class::High) < best(Class::Medium) && worst(Class::Medium) < best(Class::Low));
            assert!(worst(Class::Low) - best(Class::High) <= 10, "SGLang would preempt");
        }
        // In the engine's own sense.
        assert_eq!(number(PriorityOrder::LowerFirst, Class::High, Some(-9)), Some(-1));
        assert_eq!(number(PriorityOrder::HigherFirst, Class::High, Some(-9)), Some(7));
    }

    #[test]
    fn where_it_is_not_known_to_be_taken_none_is_sent() {
        for order in [PriorityOrder::None, PriorityOrder::Unknown] {
            assert_eq!(number(order, Class::High, Some(3)), None);
        }
    }
}
