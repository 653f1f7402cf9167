//! What clients put into headers: ids, deadlines, credentials, trace contexts.
//!
//! Input: lines of `name: value`; lines that no HTTP reader would let through are left out.

use http::{HeaderMap, HeaderName, HeaderValue};
use plimsoll_gateway::auth::{Keys, bearer_is};
use plimsoll_gateway::headers::{
    REQUEST_ID, TRACEPARENT, check_size, client_request_id, towards_client, towards_engine,
};
use plimsoll_gateway::trace_context::TraceContext;
use plimsoll_protocol::wishes::{SPELLINGS, Wishes};
use plimsoll_settings::{ApiKey, Auth, Limits};

const KEY: &str = "alpha";
const KEY_SHA256: &str = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";

pub fn run(data: &[u8]) {
    let headers = read(data);
    ids(&headers);
    wishes(&headers);
    credentials(&headers);
    trace(&headers);
    forwarding(&headers);
}

fn read(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(1_000) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

fn ids(headers: &HeaderMap) {
    match client_request_id(headers) {
        Ok(None) => assert!(!headers.contains_key(&REQUEST_ID)),
        Ok(Some(id)) => assert!((1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)),
        Err(_) => assert!(headers.contains_key(&REQUEST_ID)),
    }
}

/// A wish is heard where one is sent, and only there; a value that is refused is one of a header that is there.
fn wishes(headers: &HeaderMap) {
    let sent = SPELLINGS.iter().any(|spelling| headers.contains_key(spelling.name));
    match Wishes::read(headers, None, None) {
        Ok(wishes) => {
            assert_eq!(wishes != Wishes::default(), sent, "{wishes:?}");
            assert!([wishes.ttft, wishes.tpot, wishes.remaining].into_iter().flatten().all(|time| time.0 > 0));
        }
        Err(error) => assert!(headers.contains_key(error.name()), "{error}"),
    }
}

/// Only the key itself opens, whatever stands around it.
fn credentials(headers: &HeaderMap) {
    let open = Keys::new(&Auth { keys: Vec::new() });
    assert!(open.tenant(headers).is_ok());
    let keys = Keys::new(&Auth { keys: vec![ApiKey { sha256: KEY_SHA256.into(), tenant: "t".into() }] });
    let has_key = headers.iter().any(|(name, value)| {
        let key = value.as_bytes().rsplit(|byte| *byte == b' ' || *byte == b'\t').next();
        (*name == http::header::AUTHORIZATION || name == "x-api-key") && key == Some(KEY.as_bytes())
    });
    let admitted = keys.tenant(headers).is_ok();
    assert!(has_key || !admitted, "admitted without the key");
    assert_eq!(bearer_is(headers, KEY), admitted);
    assert!(!bearer_is(headers, ""), "an empty token opens");
}

fn trace(headers: &HeaderMap) {
    let context = TraceContext::continue_or_start(headers.get(&TRACEPARENT), (4, 6), true);
    assert!(context.trace_id != 0 && context.span_id != 0 && context.parent_span_id != Some(0));
    let sent = context.header();
    let text = sent.to_str().unwrap_or_default();
    assert_eq!(text.len(), 55, "{text}");
    let again = TraceContext::continue_or_start(Some(&sent), (4, 6), !context.sampled);
    assert_eq!((again.trace_id, again.parent_span_id), (context.trace_id, Some(context.span_id)));
    assert_eq!(again.sampled, context.sampled);
}

fn forwarding(headers: &HeaderMap) {
    for strip in [false, true] {
        let out = towards_engine(headers, strip);
        assert!(out.len() <= headers.len());
        for name in ["connection", "transfer-encoding", "content-length", "host", "accept-encoding", "expect"] {
            assert!(!out.contains_key(name), "{name} crosses");
        }
        assert!(!strip || !out.contains_key("authorization") && !out.contains_key("x-api-key"));
        one_hop_stays(headers, &out);
    }
    one_hop_stays(headers, &towards_client(headers));
    let _ = check_size(headers, &Limits::default());
}

/// Nothing that `connection:` names crosses.
fn one_hop_stays(headers: &HeaderMap, out: &HeaderMap) {
    for value in headers.get_all("connection") {
        let Ok(value) = value.to_str() else { continue };
        for token in value.split(',').map(str::trim).filter(|token| !token.is_empty()) {
            assert!(!out.contains_key(token), "{token} crosses");
        }
    }
}
