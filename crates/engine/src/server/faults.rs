//! `/admin/faults`: the table of faults, and how a body switches them.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use crate::faults::{CorruptBlock, CrashAfter, Faults, SlowStep, TransferCut};
use crate::kv_events::faults::{DropEvents, DropMode};
use axum::Json;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// Bounds that keep a typing error from lasting for ever.
const MAX_DELAY_US: i64 = 60_000_000;
const MAX_CRASH_SECONDS: i64 = 86_400;
const MAX_SKEW_MS: i64 = 366 * 86_400_000;

/// One fault: a line of the table in `docs/operating/reference-engine.md` and its reader.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// What the body gives it. `null` always switches it off.
    pub(crate) takes: &'static str,
    pub(crate) does: &'static str,
    /// Reads the field of this name.
    set: fn(&Fields, &str, &mut Faults) -> Result<(), ApiError>,
}

/// All faults. A new one is a field of [`Faults`], a line here and its line in the document (a test compares them).
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        name: "no_respond",
        takes: "true or false",
        does: "accepts and never answers; streams stop where they are, like a frozen process",
        set: |fields, name, faults| fields.flag(name).map(|on| faults.no_respond = on),
    },
    Kind {
        name: "torn_stream_after_tokens",
        takes: "a count",
        does: "cuts each stream after so many tokens, without finish reason and `[DONE]`",
        set: |fields, name, faults| fields.count(name).map(|count| faults.torn_stream_after_tokens = count),
    },
    Kind {
        name: "torn_stream_clean",
        takes: "true or false",
        does: "a torn stream ends as a well-formed HTTP body instead of a broken connection",
        set: |fields, name, faults| fields.flag(name).map(|on| faults.torn_stream_clean = on),
    },
    Kind {
        name: "step_delay_us",
        takes: "0 to 60000000",
        does: "every step takes at least so many microseconds, in place of `--step-delay-ms`",
        set: |fields, name, faults| {
            let us = ranged(fields, name, 0, MAX_DELAY_US)?;
            faults.step_delay_us = us.map(i64::cast_unsigned);
            Ok(())
        },
    },
    Kind {
        name: "slow_step",
        takes: "one of `{\"factor\": 1 to 1000}`, `{\"us\": 0 to 60000000}`",
        does: "every step takes so many times as long, or so many microseconds more",
        set: |fields, name, faults| slow_step(fields, name).map(|slow| faults.slow_step = slow),
    },
    Kind {
        name: "kv_pressure",
        takes: "0 to 1",
        does: "keeps this share of the KV pages away from everybody; requests keep the pages they hold",
        set: |fields, name, faults| {
            faults.kv_pressure = fields.number(name, 0.0, 1.0)?.unwrap_or(0.0);
            Ok(())
        },
    },
    Kind {
        name: "http_status",
        takes: "400 to 599",
        does: "answers generation requests with this status",
        set: |fields, name, faults| {
            faults.http_status = ranged(fields, name, 400, 599)?.map(|status| status as u16);
            Ok(())
        },
    },
    Kind {
        name: "crash_after",
        takes: "one of `{\"tokens\": N}`, `{\"steps\": N}`, `{\"seconds\": N}`",
        does: "aborts the process when so much more was generated, computed or waited",
        set: |fields, name, faults| crash_after(fields, name).map(|crash| faults.crash_after = crash),
    },
    Kind {
        name: "clock_skew_ms",
        takes: "-31622400000 to 31622400000",
        does: "added to every point in time that answers report: `created`, `meta_info`, `/v1/loads`, KV events",
        set: |fields, name, faults| {
            faults.clock_skew_ms = ranged(fields, name, -MAX_SKEW_MS, MAX_SKEW_MS)?.unwrap_or(0);
            Ok(())
        },
    },
    Kind {
        name: "drop_events",
        takes: "N, or `{\"every\": N, \"mode\": MODE}`",
        does: "drops every Nth batch of KV events: `live`, the replay has it; `lost`, its number is missing for ever; \
               `silent`, not even that",
        set: |fields, name, faults| drop_events(fields, name).map(|drop| faults.drop_events = drop),
    },
    Kind {
        name: "wrong_seq",
        takes: "`\"reset\"` or `{\"jump\": N}`",
        does: "numbers KV events from 0 again as after a restart, or N further on, once; `null` arms it again",
        set: |fields, name, faults| typed(fields, name).map(|wrong| faults.wrong_seq = wrong),
    },
    Kind {
        name: "transfer_error",
        takes: "`{\"nth\": N, \"after_pages\": N}`, both optional",
        does: "cuts the connection of the Nth KV transfer sent from now on (of every one) after so many pages (0)",
        set: |fields, name, faults| transfer_cut(fields, name).map(|cut| faults.transfer_error = cut),
    },
    Kind {
        name: "corrupt_block",
        takes: "`{\"nth\": N}`, optional",
        does: "flips a bit of the Nth KV page read from the offload tier from now on (of every one)",
        set: |fields, name, faults| corrupt_block(fields, name).map(|corrupt| faults.corrupt_block = corrupt),
    },
];

/// The faults in force.
pub(crate) fn show(state: &State) -> Result<Json<Faults>, ApiError> {
    enabled(state)?;
    Ok(Json(state.faults.current()))
}

/// Changes the faults that the body names, keeps the others, and answers with all. `null` switches one off; a body with
/// anything wrong in it changes nothing.
pub(crate) fn change(state: &State, body: &[u8]) -> Result<Json<Faults>, ApiError> {
    enabled(state)?;
    let faults = changed(state.faults.current(), body)?;
    state.faults.set(faults.clone());
    state.engine.handle().look();
    Ok(Json(faults))
}

fn enabled(state: &State) -> Result<(), ApiError> {
    let hidden = || ApiError::new(404, "not_found", "faults are not enabled on this engine: start it with --faults");
    if state.config.faults { Ok(()) } else { Err(hidden()) }
}

fn changed(mut faults: Faults, body: &[u8]) -> Result<Faults, ApiError> {
    let Ok(Value::Object(map)) = serde_json::from_slice::<Value>(body) else {
        return Err(ApiError::new(400, "invalid_json", "send a JSON object of faults"));
    };
    let fields = Fields::parse(body)?;
    for name in map.keys() {
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else { return Err(unknown(name)) };
        (kind.set)(&fields, name, &mut faults)?;
    }
    Ok(faults)
}

/// Less alike than this, a name was not meant.
const ALIKE: f64 = 0.85;

fn unknown(name: &str) -> ApiError {
    let near = |kind: &&Kind| strsim::jaro_winkler(&name.to_lowercase(), kind.name);
    let nearest = KINDS.iter().max_by(|a, b| near(a).total_cmp(&near(b))).filter(|kind| near(kind) >= ALIKE);
    let hint = match nearest {
        Some(Kind { name, takes, does, .. }) => format!("did you mean {name} ({takes})? It {does}"),
        None => format!("there are {}", KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")),
    };
    ApiError::field(name, format!("is not a fault of this engine: {hint}"))
}

/// An integer between two bounds, both included.
fn ranged(fields: &Fields, name: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
    match fields.integer(name)? {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::field(name, format!("{value} is not between {low} and {high}")))
        }
        value => Ok(value),
    }
}

fn slow_step(fields: &Fields, name: &str) -> Result<Option<SlowStep>, ApiError> {
    if fields.get(name).is_none() {
        return Ok(None);
    }
    let slow = fields.object(name)?;
    let factor = slow.number("factor", 1.0, 1000.0)?.map(SlowStep::Factor);
    let us = ranged(&slow, "us", 0, MAX_DELAY_US)?.map(|us| SlowStep::Us(us.cast_unsigned()));
    match (factor, us) {
        (Some(one), None) | (None, Some(one)) => Ok(Some(one)),
        _ => Err(ApiError::field(name, "give exactly one of factor and us")),
    }
}

/// A bare number drops live.
fn drop_events(fields: &Fields, name: &str) -> Result<Option<DropEvents>, ApiError> {
    let drop = match fields.get(name).map(Value::as_u64) {
        Some(Some(every)) => Some(DropEvents { every, mode: DropMode::Live }),
        _ => typed(fields, name)?,
    };
    match drop {
        Some(DropEvents { every: 0, .. }) => Err(ApiError::field(name, "0 is not at least 1")),
        drop => Ok(drop),
    }
}

/// Whatever serde reads.
fn typed<T: serde::de::DeserializeOwned>(fields: &Fields, name: &str) -> Result<Option<T>, ApiError> {
    let parse =
        |value: &Value| serde_json::from_value(value.clone()).map_err(|error| ApiError::field(name, error.to_string()));
    fields.get(name).map(parse).transpose()
}

fn crash_after(fields: &Fields, name: &str) -> Result<Option<CrashAfter>, ApiError> {
    if fields.get(name).is_none() {
        return Ok(None);
    }
    let after = fields.object(name)?;
    let tokens = ranged(&after, "tokens", 1, i64::MAX)?.map(|n| CrashAfter::Tokens(n.cast_unsigned()));
    let steps = ranged(&after, "steps", 1, i64::MAX)?.map(|n| CrashAfter::Steps(n.cast_unsigned()));
    let seconds = ranged(&after, "seconds", 0, MAX_CRASH_SECONDS)?.map(|n| CrashAfter::Seconds(n.cast_unsigned()));
    let mut given = [tokens, steps, seconds].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(one), None) => Ok(Some(one)),
        _ => Err(ApiError::field(name, "give exactly one of tokens, steps and seconds")),
    }
}

fn corrupt_block(fields: &Fields, name: &str) -> Result<Option<CorruptBlock>, ApiError> {
    if fields.get(name).is_none() {
        return Ok(None);
    }
    let nth = ranged(&fields.object(name)?, "nth", 1, i64::MAX)?.map(i64::cast_unsigned);
    Ok(Some(CorruptBlock { nth }))
}

fn transfer_cut(fields: &Fields, name: &str) -> Result<Option<TransferCut>, ApiError> {
    if fields.get(name).is_none() {
        return Ok(None);
    }
    let cut = fields.object(name)?;
    let nth = ranged(&cut, "nth", 1, i64::MAX)?.map(i64::cast_unsigned);
    let after_pages = ranged(&cut, "after_pages", 0, i64::MAX)?.map_or(0, i64::cast_unsigned);
    Ok(Some(TransferCut { nth, after_pages }))
}
