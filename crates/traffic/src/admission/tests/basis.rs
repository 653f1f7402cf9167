//! Refusals follow from their records, and from no others.

use super::world::{World, plain};
use crate::admission::{Arrival, Recorded, Rule, Rules, TenantRules};
use plimsoll_core::{Class, Nanos};
use std::collections::BTreeMap;

/// A pool of 20,000 tokens a second that is asked for three times as much by all classes and some tenants. The first refusal by each rule.
fn refusals() -> BTreeMap<Rule, Recorded> {
    let tenant = |name: &str, rules: TenantRules| (name.to_owned(), rules);
    let slow = TenantRules { tokens_per_s: Some(1_000.0), ..TenantRules::default() };
    let rules = Rules { tenants: [tenant("slow", slow)].into(), max_wait: Nanos::from_secs(2), ..Rules::default() };
    let mut world = World::new(rules, &[Some(10_000.0), Some(10_000.0)]);
    let mut found = BTreeMap::new();
    for round in 0..2_000_u64 {
        for (every, class, tokens, tenant) in [
            (2, Class::High, 400, "t"),
            (20, Class::Medium, 4_000, "t"),
            (30, Class::Low, 12_000, "t"),
            (50, Class::Low, 6_000, "u"),
            (100, Class::High, 900, "slow"),
        ] {
            if round % every == 0 {
                let within = (round % 40 == 0).then(|| world.now + Nanos::from_millis(400));
                let by = within.filter(|_| class == Class::Medium);
                world.arrive(Arrival { tenant: tenant.into(), first_token_by: by, ..plain(class, tokens) });
            }
        }
        world.step();
    }
    for (_, refusal) in world.refusals() {
        found.entry(refusal.rule).or_insert_with(|| refusal.recorded());
    }
    found
}

#[test]
fn a_record_that_was_changed_does_not_follow_any_more() {
    let found = refusals();
    for rule in [Rule::QuotaClass, Rule::QuotaTenant, Rule::TenantRate, Rule::SloUnattainable, Rule::WaitBudget] {
        let recorded =
            found.get(&rule).unwrap_or_else(|| panic!("nobody was refused by {}: {:?}", rule.as_str(), found.keys()));
        assert_eq!(recorded.check(), Ok(true), "{recorded:?}");
        let mut changed = vec![Recorded { share: recorded.share + 0.01, ..*recorded }];
        let mut basis = recorded.basis;
        basis.alone = !basis.alone;
        changed.extend((recorded.share < 1.0).then_some(Recorded { basis, ..*recorded }));
        let mut basis = recorded.basis;
        match rule {
            Rule::QuotaClass => {
                basis.class_filled_tokens = 0.0;
                changed.push(Recorded { basis, ..*recorded });
            }
            Rule::QuotaTenant => {
                basis.tenant.as_mut().unwrap().filled_tokens = 0.0;
                changed.push(Recorded { basis, ..*recorded });
            }
            Rule::TenantRate => {
                basis.cost_tokens = 1;
                changed.push(Recorded { basis, ..*recorded });
            }
            Rule::SloUnattainable => {
                changed.push(Recorded { predicted: recorded.allowed.map(|time| Nanos(time.0 / 2)), ..*recorded });
                changed.push(Recorded { allowed: None, ..*recorded });
            }
            _ => changed.push(Recorded { waited: Nanos::from_millis(1_500), ..*recorded }),
        }
        for one in changed {
            assert!(one.check().is_err(), "{rule:?} still follows from {one:?}");
        }
    }
}
