//! Bounds between classes that leave a class no room, and models listed twice.

use super::number::Numbers;
use crate::tree::Classes;
use std::collections::BTreeSet;

pub(super) fn check(classes: &Classes, check: &mut Numbers<'_>) {
    bounds("classes", classes, check);
    let mut seen = BTreeSet::new();
    for (index, own) in classes.models.iter().enumerate() {
        let path = format!("classes.models[{index}]");
        if own.name.trim().is_empty() {
            check.say(&format!("{path}.name"), "must not be empty");
        } else if !seen.insert(&own.name) {
            check.say(&format!("{path}.name"), "is listed already; list a model once");
        }
        bounds(&path, &classes.of(&own.name), check);
    }
}

fn bounds(path: &str, of: &Classes, check: &mut Numbers<'_>) {
    check.fraction(&format!("{path}.high_hit_fraction"), of.high_hit_fraction);
    check.fraction(&format!("{path}.low_hit_fraction"), of.low_hit_fraction);
    if of.low_uncached_tokens < of.high_uncached_tokens {
        check.say(&format!("{path}.low_uncached_tokens"), format!("must not be below `{path}.high_uncached_tokens`"));
    }
    if of.low_hit_fraction > of.high_hit_fraction {
        check.say(&format!("{path}.low_hit_fraction"), format!("must not be above `{path}.high_hit_fraction`"));
    }
}
