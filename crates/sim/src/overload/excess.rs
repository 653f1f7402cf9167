//! Windows that the load alone makes incidents of, whoever controls it.
//!
//! Where a class and those above it ask for more than the engines can do, that class misses promises, unless one above it does in its
//! stead. About this many windows (times classes) are lost to any control that serves higher classes first; what a run lost beyond them it
//! lost by itself. Not exactly: a window's work may wait for the next one, and what is too much may be less than 1 % of a class's
//! requests.

use super::plan::Plan;
use plimsoll_core::Class;
use std::collections::BTreeMap;

/// How many windows of this length, by class.
#[must_use]
pub fn windows_of_load(plan: &Plan, window_s: f64) -> BTreeMap<Class, u64> {
    let mut asked: BTreeMap<u64, BTreeMap<Class, u64>> = BTreeMap::new();
    for ask in &plan.asks {
        *asked.entry((ask.at / window_s) as u64).or_default().entry(ask.class).or_default() += ask.cost_tokens();
    }
    let mut windows: BTreeMap<Class, u64> = Class::ALL.map(|class| (class, 0)).into();
    for (window, classes) in &asked {
        let seconds = (plan.seconds - *window as f64 * window_s).clamp(0.0, window_s);
        let mut tokens = 0;
        for class in Class::ALL {
            // Who asked for nothing misses nothing.
            let Some(more) = classes.get(&class) else { continue };
            tokens += more;
            if tokens as f64 > plan.capacity_tokens_per_s * seconds {
                *windows.entry(class).or_default() += 1;
            }
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overload::Ask;

    #[test]
    fn a_class_is_lost_where_it_and_those_above_ask_for_too_much() {
        let ask = |at: f64, class: Class, prompt_tokens: u64| Ask {
            at,
            tenant: 0,
            session: 1,
            prompt_tokens: prompt_tokens + 50,
            hit_tokens: 60,
            output_tokens: 10,
            class,
            promised_s: 2.0,
        };
        // Ten tokens a second. The first window is full to the last token, in the second low is too much, in the third medium and
        // with it low, the fourth is half a window and high alone is too much; in the fifth nobody else asks.
        let asks = vec![
            ask(1.0, Class::High, 60),
            ask(2.0, Class::Low, 40),
            ask(11.0, Class::High, 60),
            ask(12.0, Class::Low, 41),
            ask(21.0, Class::High, 60),
            ask(22.0, Class::Medium, 41),
            ask(23.0, Class::Low, 10),
            ask(31.0, Class::High, 51),
        ];
        let plan = Plan { asks, capacity_tokens_per_s: 10.0, seconds: 35.0, crowd: 0.0..1.0, repeats: 0 };
        let windows = windows_of_load(&plan, 10.0);
        assert_eq!(windows, [(Class::High, 1), (Class::Medium, 1), (Class::Low, 2)].into());
    }
}
