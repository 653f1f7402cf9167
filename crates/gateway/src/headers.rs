//! Which headers cross the gateway, in both directions.
//!
//! Peers that forward an allow-list lose what their users rely on; this forwards everything but what belongs to one
//! connection (RFC 9110, 7.6.1), what names this hop's credentials, and `accept-encoding` (answers are read on the way).

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use plimsoll_core::ErrorCode;

use crate::api_error::ApiError;
use plimsoll_settings::Limits;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const ENGINE: HeaderName = HeaderName::from_static("x-plimsoll-engine");
pub const MODEL: HeaderName = HeaderName::from_static("x-plimsoll-model");
pub const DEADLINE_MS: HeaderName = HeaderName::from_static("x-request-deadline-ms");
pub const TTFT_MS: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Asks for [`CLASS`] and [`WAIT_MS`] with the answer.
pub const EXPLAIN: HeaderName = HeaderName::from_static("x-plimsoll-explain");
pub const CLASS: HeaderName = HeaderName::from_static("x-plimsoll-class");
pub const WAIT_MS: HeaderName = HeaderName::from_static("x-plimsoll-wait-ms");
/// How often OpenAI's SDKs have sent this request before.
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Longest `x-request-id` taken from a client, in bytes.
const REQUEST_ID_BYTES: usize = 128;

fn belongs_to_one_hop(name: &HeaderName) -> bool {
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, CONTENT_LENGTH, HOST, EXPECT]
        .contains(name)
        || *name == PROXY_AUTHENTICATE
        || *name == PROXY_AUTHORIZATION
}

/// Headers named by `connection:` belong to the hop too.
fn named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
}

/// The client's headers as the engine shall see them. `strip_credentials` where the client's key was meant for us.
#[must_use]
pub fn towards_engine(client: &HeaderMap, strip_credentials: bool) -> HeaderMap {
    // Nearly every request says `keep-alive` or nothing; only others are worth splitting.
    let names_more = client.get_all(CONNECTION).iter().any(|v| v != "keep-alive" && v != "close");
    let mut out = HeaderMap::with_capacity(client.len() + 4);
    for (name, value) in client {
        let ours = strip_credentials && (*name == AUTHORIZATION || *name == API_KEY);
        if ours || *name == ACCEPT_ENCODING || belongs_to_one_hop(name) || *name == DEADLINE_MS || *name == EXPLAIN {
            continue;
        }
        if names_more && named_by_connection(client, name) {
            continue;
        }
        out.append(name.clone(), value.clone());
    }
    out
}

/// The client says that it has sent this before.
#[must_use]
pub fn repeats(headers: &HeaderMap) -> bool {
    let count = headers.get(&RETRY_COUNT).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    count.is_some_and(|count| count > 0)
}

/// The client wants to know its class and wait.
#[must_use]
pub fn explain(headers: &HeaderMap) -> bool {
    headers.get(&EXPLAIN).is_some_and(|value| value != "0" && value != "false")
}

/// An engine's answer headers as the client shall see them.
#[must_use]
pub fn towards_client(engine: &HeaderMap) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(engine.len() + 2);
    for (name, value) in engine {
        if !belongs_to_one_hop(name) && !named_by_connection(engine, name) && *name != http::header::DATE {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

/// # Errors
/// `headers_too_large` for more or larger headers than the limits allow. The connection's own, looser bound has already
/// kept the worst away.
pub fn check_size(headers: &HeaderMap, limits: &Limits) -> Result<(), ApiError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if headers.len() > limits.header_count || bytes > limits.header_bytes {
        return Err(ApiError::new(
            ErrorCode::HeadersTooLarge,
            format!(
                "the request has {} headers of {bytes} bytes; allowed are {} of {} bytes",
                headers.len(),
                limits.header_count,
                limits.header_bytes
            ),
        ));
    }
    Ok(())
}

/// The client's own request id, or `None` where it sent none.
///
/// # Errors
/// `invalid_header` for one that is too long or not printable ASCII: it would end up in logs and other systems.
pub fn client_request_id(headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
    let Some(value) = headers.get(&REQUEST_ID) else { return Ok(None) };
    let bytes = value.as_bytes();
    if bytes.is_empty() || bytes.len() > REQUEST_ID_BYTES || !bytes.iter().all(u8::is_ascii_graphic) {
        return Err(ApiError::new(
            ErrorCode::InvalidHeader,
            format!("`x-request-id` must be 1 to {REQUEST_ID_BYTES} printable ASCII characters without spaces"),
        ));
    }
    Ok(Some(value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn custom_headers_cross_and_hop_headers_do_not() {
        let out = towards_engine(
            &map(&[
                ("x-custom", "1"),
                ("connection", "close, x-hop"),
                ("x-hop", "2"),
                ("te", "trailers"),
                ("host", "h"),
                ("accept-encoding", "gzip"),
                ("authorization", "Bearer k"),
            ]),
            false,
        );
        assert_eq!(out.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-custom", "authorization"]);
        assert!(
            !towards_engine(&map(&[("authorization", "Bearer k"), ("x-api-key", "k")]), true).contains_key("x-api-key")
        );
    }

    #[test]
    fn request_ids_are_bounded() {
        assert!(client_request_id(&map(&[])).unwrap().is_none());
        assert!(client_request_id(&map(&[("x-request-id", "abc-1")])).unwrap().is_some());
        assert!(client_request_id(&map(&[("x-request-id", "a b")])).is_err());
        assert!(client_request_id(&map(&[("x-request-id", "")])).is_err());
    }
}
