//! Spans in OTLP's JSON form: ids as hex, 64-bit numbers as strings.
//!
//! Source: OpenTelemetry protocol specification 1, "JSON Protobuf Encoding".

use plimsoll_core::Outcome;
use plimsoll_gateway::spans::RequestSpan;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const KIND_SERVER: u8 = 2;
const STATUS_ERROR: u8 = 2;

/// The body of one `POST /v1/traces`.
pub(super) fn request(spans: &[RequestSpan]) -> Value {
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "plimsoll"), text("service.version", env!("CARGO_PKG_VERSION"))]},
        "scopeSpans": [{
            "scope": {"name": "plimsoll_gateway"},
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
}

fn span(span: &RequestSpan) -> Value {
    let mut attributes = vec![text("http.route", span.route)];
    attributes.extend(span.attributes.iter().map(|(name, value)| attribute(name, value)));
    let events: Vec<_> =
        span.events.iter().map(|(name, at)| json!({"timeUnixNano": nanos(*at), "name": name})).collect();
    let mut all = json!({
        "traceId": format!("{:032x}", span.context.trace_id),
        "spanId": format!("{:016x}", span.context.span_id),
        "name": format!("POST {}", span.route),
        "kind": KIND_SERVER,
        "startTimeUnixNano": nanos(span.start),
        "endTimeUnixNano": nanos(span.end),
        "attributes": attributes,
        "events": events,
        "status": status(span.outcome),
    });
    if let Some(parent) = span.context.parent_span_id {
        all["parentSpanId"] = format!("{parent:016x}").into();
    }
    all
}

/// A client that went away, or sent what nobody can serve, is no error of the server's (semantic conventions for HTTP).
fn status(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Completed | Outcome::Cancelled | Outcome::EngineRejected => json!({}),
        other => json!({"code": STATUS_ERROR, "message": other.as_str()}),
    }
}

fn attribute(name: &str, value: &str) -> Value {
    match value.parse::<i64>() {
        Ok(_) if name.ends_with("_tokens") || name.ends_with(".attempts") => {
            json!({"key": name, "value": {"intValue": value}})
        }
        _ => text(name, value),
    }
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

fn nanos(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_gateway::trace_context::TraceContext;
    use std::time::Duration;

    #[test]
    fn a_span_has_the_form_that_collectors_read() {
        let start = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let context = TraceContext { trace_id: 0xabc, parent_span_id: Some(0x11), span_id: 0x22, sampled: true };
        let body = request(&[RequestSpan {
            context,
            route: "/v1/completions",
            start,
            end: start + Duration::from_nanos(5),
            outcome: Outcome::Stalled,
            attributes: vec![("gen_ai.usage.input_tokens", "12".into()), ("plimsoll.tenant", "7".into())],
            events: vec![("gen_ai.first_token", start)],
        }]);
        let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "00000000000000000000000000000abc");
        assert_eq!(span["spanId"], "0000000000000022");
        assert_eq!(span["parentSpanId"], "0000000000000011");
        assert_eq!(span["endTimeUnixNano"], "1700000000000000005");
        assert_eq!(span["status"], json!({"code": 2, "message": "stalled"}));
        assert_eq!(span["attributes"][1], json!({"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}}));
        assert_eq!(span["attributes"][2], json!({"key": "plimsoll.tenant", "value": {"stringValue": "7"}}));
        assert_eq!(span["events"][0]["name"], "gen_ai.first_token");
    }
}
