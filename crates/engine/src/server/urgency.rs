//! Deadlines and priority of a request, in the spellings that users already send.
//!
//! | where | name | means |
//! |---|---|---|
//! | header | `x-request-deadline-ms` | so much is left of the sender's own budget; goes before the next three |
//! | header | `x-slo-ttft-ms`, `x-llm-d-slo-ttft-ms`, `x-sgl-ttft-slo-ms` | time from arrival to the first token; the first that is present counts |
//! | header | `x-slo-tpot-ms`, `x-llm-d-slo-tpot-ms` | time between tokens |
//! | header | `x-sgl-tps-slo` | the same, as tokens per second |
//! | body | `priority` | an integer; SGLang's sense: higher first, unless the engine says otherwise |

use super::errors::ApiError;
use super::fields::Fields;
use crate::urgency::Urgency;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Longest time that a header may name: a day.
const MOST_MS: f64 = 86_400_000.0;
const DEADLINE: &str = "x-request-deadline-ms";
const TTFT: [&str; 3] = ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms", "x-sgl-ttft-slo-ms"];
const TPOT: [&str; 2] = ["x-slo-tpot-ms", "x-llm-d-slo-tpot-ms"];
const TPS: &str = "x-sgl-tps-slo";

/// What the headers say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SloHeaders(Urgency);

impl SloHeaders {
    /// Together with the body.
    pub(crate) fn and_body(self, fields: &Fields) -> Result<Urgency, ApiError> {
        Ok(Urgency { priority: fields.integer("priority")?, ..self.0 })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SloHeaders {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        read(&parts.headers).map(SloHeaders)
    }
}

fn read(headers: &HeaderMap) -> Result<Urgency, ApiError> {
    // All are read, so that a wrong one is told even where another one counts.
    let left = number(headers, DEADLINE, 0.0)?;
    let mut ttft = None;
    for name in TTFT {
        ttft = ttft.or(number(headers, name, 1.0)?);
    }
    let mut tpot = None;
    for name in TPOT {
        tpot = tpot.or(number(headers, name, 0.001)?);
    }
    let tps = number(headers, TPS, 0.001)?;
    let tpot = tpot.or(tps.map(|tokens| 1e3 / tokens));
    let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    Ok(Urgency { ttft: left.or(ttft).map(time), tpot: tpot.map(time), priority: None })
}

fn number(headers: &HeaderMap, name: &str, least: f64) -> Result<Option<f64>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
    match number {
        Some(number) if (least..=MOST_MS).contains(&number) => Ok(Some(number)),
        _ => Err(ApiError {
            code: "invalid_header",
            ..ApiError::field(name, format!("expected a number from {least} to {MOST_MS}"))
        }),
    }
}
