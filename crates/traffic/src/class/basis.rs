//! All that the class of a request follows from, so that a record of it can be classified again (design rule 7).

use super::{ClassRules, ClassVerdict, Past, classify, grant};
use plimsoll_core::Class;
use serde::{Deserialize, Serialize};

/// The request's numbers, its client's word and its tenant's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    pub rules: ClassRules,
    pub input_tokens: u64,
    /// `None`: nothing is known of hits.
    pub predicted_hit_tokens: Option<u64>,
    pub past: Past,
    /// What its client asked for.
    pub asked: Option<Class>,
    /// The tenant's; `None` where traffic scheduling is off.
    pub bounds: Option<Bounds>,
}

/// What a tenant may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// It has rules of its own, by name: its clients may ask for as high a class as it may have.
    pub named: bool,
    /// Classes that its requests go down from what their work says; up where negative.
    #[serde(default)]
    pub shift: i8,
    /// No request of it is of a higher class than this.
    pub highest: Class,
    /// And none of a lower one.
    pub lowest: Class,
}

impl Bounds {
    fn shifted(self, by_itself: ClassVerdict) -> ClassVerdict {
        let at = (by_itself.class as i8).saturating_add(self.shift).clamp(0, Class::ALL.len() as i8 - 1);
        match Class::ALL[at as usize] {
            class if class == by_itself.class => by_itself,
            class => ClassVerdict { class, rule: "tenant" },
        }
    }

    #[must_use]
    pub fn clamp(self, class: Class) -> Class {
        // Classes are ordered from high to low.
        class.max(self.highest).min(self.lowest.max(self.highest))
    }
}

impl Basis {
    /// What its work says and its client asks, within what its tenant may.
    #[must_use]
    pub fn decide(&self) -> ClassVerdict {
        let by_itself = classify(&self.rules, self.input_tokens, self.predicted_hit_tokens, self.past);
        let Some(bounds) = self.bounds else { return grant(by_itself, self.asked, by_itself.class) };
        let by_itself = bounds.shifted(by_itself);
        let ceiling = if bounds.named { bounds.highest } else { by_itself.class };
        let granted = grant(by_itself, self.asked, ceiling);
        match bounds.clamp(granted.class) {
            class if class == granted.class => granted,
            class => ClassVerdict { class, rule: "tenant" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::Class::{High, Low, Medium};

    #[test]
    fn work_then_word_then_bounds() {
        let all = Bounds { named: false, shift: 0, highest: High, lowest: Low };
        let of = |input_tokens, asked, bounds| Basis {
            rules: ClassRules::default(),
            input_tokens,
            predicted_hit_tokens: Some(0),
            past: Past::default(),
            asked,
            bounds,
        };
        for (input, asked, bounds, class, rule) in [
            (5_000, None, None, Medium, "between"),
            (5_000, Some(Low), None, Low, "asked_lower"),
            (5_000, Some(High), None, Medium, "between"),
            (5_000, Some(High), Some(all), Medium, "between"),
            (5_000, Some(High), Some(Bounds { named: true, ..all }), High, "asked_higher"),
            (50_000, Some(High), Some(Bounds { named: true, highest: Medium, ..all }), Medium, "asked_higher"),
            (10, None, Some(Bounds { highest: Medium, ..all }), Medium, "tenant"),
            (50_000, None, Some(Bounds { lowest: Medium, ..all }), Medium, "tenant"),
            (50_000, None, Some(Bounds { highest: Low, lowest: High, named: true, ..all }), Low, "long_and_cold"),
            (50_000, None, Some(Bounds { shift: -1, ..all }), Medium, "tenant"),
            (10, None, Some(Bounds { shift: -1, ..all }), High, "few_uncached_tokens"),
            (10, None, Some(Bounds { shift: 1, ..all }), Medium, "tenant"),
            (50_000, None, Some(Bounds { shift: 1, ..all }), Low, "long_and_cold"),
            // Shifted first, then what it may: one up from low is medium, and no higher than medium.
            (5_000, None, Some(Bounds { shift: -1, highest: Medium, ..all }), Medium, "tenant"),
            (10, Some(High), Some(Bounds { named: true, shift: 1, ..all }), High, "asked_higher"),
        ] {
            let verdict = of(input, asked, bounds).decide();
            assert_eq!((verdict.class, verdict.rule), (class, rule), "{input} {asked:?} {bounds:?}");
        }
    }
}
