//! What a client's own word on the class counts.
//!
//! Taking it as it comes lets one client put everything it sends before everybody else's; not taking it leaves batch work
//! among the interactive. So: lower is always granted, higher up to what the tenant may.

use super::ClassVerdict;
use plimsoll_core::Class;

/// The class that a request gets which would be `verdict` by itself and asks for `asked`, of a tenant that may ask for
/// `ceiling` at most.
#[must_use]
pub fn grant(verdict: ClassVerdict, asked: Option<Class>, ceiling: Class) -> ClassVerdict {
    let Some(asked) = asked else { return verdict };
    // `Class` is ordered from high to low.
    let granted = asked.max(ceiling.min(verdict.class));
    match granted.cmp(&verdict.class) {
        std::cmp::Ordering::Greater => ClassVerdict { class: granted, rule: "asked_lower" },
        std::cmp::Ordering::Less => ClassVerdict { class: granted, rule: "asked_higher" },
        std::cmp::Ordering::Equal => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_is_granted_and_higher_up_to_the_ceiling() {
        for by_itself in Class::ALL {
            let verdict = ClassVerdict { class: by_itself, rule: "between" };
            for ceiling in Class::ALL {
                assert_eq!(grant(verdict, None, ceiling), verdict);
                for asked in Class::ALL {
                    let granted = grant(verdict, Some(asked), ceiling);
                    let expected = match asked {
                        asked if asked >= by_itself => asked,
                        // Higher than by itself: as far as the tenant may, and never lower than by itself for asking.
                        asked => asked.max(ceiling).min(by_itself),
                    };
                    assert_eq!(granted.class, expected, "{by_itself} asks {asked} under {ceiling}");
                    assert_eq!(granted.rule == "between", expected == by_itself);
                }
            }
        }
    }
}
