//! SGLang's two load endpoints.
//!
//! `/v1/loads` (0.5.10 and later): `{"version", "timestamp", "loads": [...]}`, one entry per DP rank. What varies:
//! `num_waiting_uncached_tokens` and `num_total_tokens` came with 0.5.15, `aggregate` and `dp_rank_count` went.
//! `/get_load` (0.5.6 to 0.5.20): a bare list of `{dp_rank, num_reqs, num_waiting_reqs, num_tokens}`, where `num_reqs`
//! counts the waiting ones too, and `num_tokens` adds the whole lengths of the waiting prompts to what is held.
//!
//! `utilization` is never read: it is stuck at 0. An entry of zeros is passed on as it is; whether zero can be true
//! is for the ledger, which knows what is in flight.

use plimsoll_core::{LoadReport, Nanos, Rank};
use serde_json::Value;

/// One rank's entry with the engine's own time stamp of the snapshot, as text.
pub(crate) struct RankLoad {
    pub(crate) report: LoadReport,
    pub(crate) stamp: Option<String>,
}

/// Entries that name no rank are numbered by their position; entries that are no objects are passed over.
pub(crate) fn read_v1_loads(answer: &Value, now: Nanos) -> Option<Vec<RankLoad>> {
    let loads = answer.get("loads")?.as_array()?;
    let read = |(position, load): (usize, &Value)| {
        let count = |key: &str| count(load, key);
        let rank = rank(load, position)?;
        let waiting = count("num_waiting_reqs");
        let running = count("num_running_reqs").or_else(|| count("num_total_reqs")?.checked_sub(waiting?));
        let report = LoadReport {
            rank,
            received: now,
            running_requests: running,
            waiting_requests: waiting,
            waiting_uncached_tokens: count("num_waiting_uncached_tokens"),
            used_kv_tokens: count("num_used_tokens"),
            capacity_kv_tokens: count("max_total_num_tokens").filter(|n| *n > 0),
            max_running_requests: count("max_running_requests").filter(|n| *n > 0),
        };
        let stamp = load.get("timestamp").filter(|t| t.is_number() || t.is_string()).map(Value::to_string);
        Some(RankLoad { report, stamp })
    };
    Some(loads.iter().enumerate().filter_map(read).collect())
}

/// `capacity`: KV tokens of one rank, from the probe. It bounds the held tokens, which this endpoint overstates while
/// requests wait.
pub(crate) fn read_get_load(answer: &Value, capacity: Option<u64>, now: Nanos) -> Option<Vec<RankLoad>> {
    let read = |(position, load): (usize, &Value)| {
        let waiting = count(load, "num_waiting_reqs");
        let used = count(load, "num_tokens").map(|n| capacity.map_or(n, |capacity| n.min(capacity)));
        let report = LoadReport {
            rank: rank(load, position)?,
            received: now,
            running_requests: count(load, "num_reqs").and_then(|all| all.checked_sub(waiting?)),
            waiting_requests: waiting,
            used_kv_tokens: used,
            capacity_kv_tokens: capacity,
            ..LoadReport::default()
        };
        let stamp = load.get("ts_tic").filter(|t| t.is_number()).map(Value::to_string);
        Some(RankLoad { report, stamp })
    };
    Some(answer.as_array()?.iter().enumerate().filter_map(read).collect())
}

fn rank(load: &Value, position: usize) -> Option<Rank> {
    let rank = match load.as_object()?.get("dp_rank") {
        Some(rank) if !rank.is_null() => rank.as_u64()?,
        _ => position as u64,
    };
    u16::try_from(rank).ok().map(Rank)
}

/// A count that may be written as a float; anything negative is unknown.
fn count(load: &Value, key: &str) -> Option<u64> {
    let value = load.get(key)?;
    value.as_u64().or_else(|| value.as_f64().filter(|f| f.is_finite() && *f >= 0.0).map(|f| f as u64))
}
