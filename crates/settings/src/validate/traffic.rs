//! The rules of traffic scheduling: curves that fall, classes that keep their order, waits that end.

use super::number::Numbers;
use crate::problem::Problem;
use crate::tree::{Quota, QuotaPoint, Slo, TenantTraffic, Traffic};
use std::collections::BTreeSet;

/// Points of one curve at most.
const MOST_POINTS: usize = 64;

pub(super) fn check(traffic: &Traffic, found: &mut Vec<Problem>) {
    let mut check = Numbers { found };
    let t = traffic;
    check.wait_ms("traffic.target_wait_ms", t.target_wait_ms);
    check.at_most_ms("traffic.level_rise_ms", t.level_rise_ms);
    check.at_most_ms("traffic.level_fall_ms", t.level_fall_ms);
    check.fraction("traffic.hysteresis", t.hysteresis);
    check.wait_ms("traffic.burst_ms", t.burst_ms);
    check.wait_ms("traffic.demand_memory_ms", t.demand_memory_ms);
    check.above_zero("traffic.queue.requests", t.queue.requests);
    check.above_zero("traffic.queue.bytes", t.queue.bytes);
    check.above_zero("traffic.queue.tokens", t.queue.tokens);
    check.wait_ms("traffic.engine_queue_ms", t.engine_queue_ms);
    check.above_zero("traffic.engine_queue_tokens", t.engine_queue_tokens);
    check.wait_ms("traffic.long_prefill_ms", t.long_prefill_ms);
    check.wait_ms("traffic.max_wait_ms", t.max_wait_ms);
    check.wait_ms("traffic.aging_ms", t.aging_ms);
    check.at_least_zero("traffic.decode_token_cost", t.decode_token_cost);
    check.fraction("traffic.retry_fraction", t.retry_fraction);
    weights(t, &mut check);
    slo(&t.slo, &mut check);
    quota(&t.quota, &mut check);
    tenants(&t.tenants, &mut check);
}

fn weights(traffic: &Traffic, check: &mut Numbers<'_>) {
    let weights = &traffic.weights;
    for (name, weight) in [("high", weights.high), ("medium", weights.medium), ("low", weights.low)] {
        // A weight of zero would starve.
        check.between(&format!("traffic.weights.{name}"), weight.into(), 1, 1_000_000);
    }
}

fn slo(slo: &Slo, check: &mut Numbers<'_>) {
    check.positive("traffic.slo.high", slo.high);
    check.positive("traffic.slo.medium", slo.medium);
    check.positive("traffic.slo.low", slo.low);
    if slo.base.is_empty() || slo.base.len() > MOST_POINTS {
        check.say("traffic.slo.base", format!("must have 1 to {MOST_POINTS} entries"));
    }
    for (index, point) in slo.base.iter().enumerate() {
        check.wait_ms(&format!("traffic.slo.base[{index}].first_token_ms"), point.first_token_ms);
    }
    if slo.base.windows(2).any(|pair| pair[0].prompt_tokens >= pair[1].prompt_tokens) {
        check.say("traffic.slo.base", "must rise in `prompt_tokens` from entry to entry");
    }
}

fn quota(quota: &Quota, check: &mut Numbers<'_>) {
    let curves = [("high", &quota.high), ("medium", &quota.medium), ("low", &quota.low)];
    let before = check.found.len();
    for (name, points) in curves {
        curve(&format!("traffic.quota.{name}"), points, check);
    }
    if check.found.len() > before {
        return;
    }
    for ((higher, above), (lower, below)) in [(curves[0], curves[1]), (curves[1], curves[2])] {
        // Both are straight between these levels.
        let mut levels = above.iter().chain(below).map(|point| point.level);
        if levels.any(|level| share(below, level) > share(above, level) + 1e-9) {
            check.say(
                &format!("traffic.quota.{lower}"),
                format!("must not be above `traffic.quota.{higher}` at any level"),
            );
        }
    }
}

fn curve(path: &str, points: &[QuotaPoint], check: &mut Numbers<'_>) {
    if points.is_empty() || points.len() > MOST_POINTS {
        check.say(path, format!("must have 1 to {MOST_POINTS} points"));
    }
    for (index, point) in points.iter().enumerate() {
        check.fraction(&format!("{path}[{index}].level"), point.level);
        check.fraction(&format!("{path}[{index}].share"), point.share);
    }
    if points.windows(2).any(|pair| pair[0].level >= pair[1].level) {
        check.say(path, "must rise in `level` from point to point");
    }
    if points.windows(2).any(|pair| pair[0].share < pair[1].share) {
        check.say(path, "must not rise in `share`: a fuller fleet never gives more");
    }
}

/// Straight between points, flat outside.
fn share(points: &[QuotaPoint], level: f64) -> f64 {
    let after = points.partition_point(|point| point.level < level);
    match (after.checked_sub(1).map(|before| points[before]), points.get(after)) {
        (Some(a), Some(b)) => a.share + (b.share - a.share) * (level - a.level) / (b.level - a.level),
        (None, Some(end)) => end.share,
        (Some(end), None) => end.share,
        (None, None) => 1.0,
    }
}

fn tenants(tenants: &[TenantTraffic], check: &mut Numbers<'_>) {
    let mut seen = BTreeSet::new();
    for (index, tenant) in tenants.iter().enumerate() {
        let path = |field: &str| format!("traffic.tenants[{index}].{field}");
        if tenant.name.is_empty() {
            check.say(&path("name"), "must not be empty");
        } else if !seen.insert(&tenant.name) {
            check.say(&path("name"), "is listed already; list a tenant once");
        }
        check.between(&path("weight"), tenant.weight.into(), 1, 1_000_000);
        if let Some(rate) = tenant.tokens_per_s {
            check.positive(&path("tokens_per_s"), rate);
        }
        if let Some(ms) = tenant.first_token_ms {
            check.wait_ms(&path("first_token_ms"), ms);
        }
        // Classes are ordered from high to low.
        if tenant.lowest_class < tenant.highest_class {
            check.say(&path("lowest_class"), "must not be above `highest_class`");
        }
    }
}
