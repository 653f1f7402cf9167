//! Reading a request body: bounded in bytes, over all requests, and in time.

use crate::api_error::ApiError;
use crate::body_budget::BodyHold;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use plimsoll_core::ErrorCode;
use plimsoll_settings::Limits;
use std::time::Duration;

/// Largest allocation made on the word of a `content-length` alone, in bytes.
const TRUSTED_BYTES: usize = 1 << 20;

/// The whole body.
///
/// # Errors
/// 413 for one that is or says it will be too large (before reading it), 415 for one that is not plain JSON, 408 for one
/// that does not arrive in time, 503 when all bodies together would take too much memory, 400 when it breaks off.
pub(crate) async fn read_body(
    limits: &Limits,
    headers: &HeaderMap,
    body: Incoming,
    hold: &mut BodyHold,
) -> Result<Bytes, ApiError> {
    check_headers(limits, headers)?;
    let announced = announced(headers);
    let limit = Duration::from_millis(limits.body_timeout_ms);
    match tokio::time::timeout(limit, collect(limits, body, announced, hold)).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::new(
            ErrorCode::RequestTimeout,
            format!("the request body did not arrive within {} ms", limits.body_timeout_ms),
        )),
    }
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_headers(limits: &Limits, headers: &HeaderMap) -> Result<(), ApiError> {
    if announced(headers).is_some_and(|bytes| bytes > limits.body_bytes as u64) {
        return Err(too_large(limits));
    }
    if headers.get(CONTENT_ENCODING).is_some_and(|v| v != "identity") {
        return Err(ApiError::new(ErrorCode::UnsupportedMediaType, "send the body without `content-encoding`"));
    }
    let json = headers.get(CONTENT_TYPE).is_none_or(|value| {
        value.to_str().is_ok_and(|value| {
            let kind = value.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json")
        })
    });
    if json {
        Ok(())
    } else {
        Err(ApiError::new(ErrorCode::UnsupportedMediaType, "send `content-type: application/json`"))
    }
}

fn too_large(limits: &Limits) -> ApiError {
    ApiError::new(ErrorCode::BodyTooLarge, format!("the body is larger than {} bytes", limits.body_bytes))
}

async fn collect(
    limits: &Limits,
    mut body: Incoming,
    announced: Option<u64>,
    hold: &mut BodyHold,
) -> Result<Bytes, ApiError> {
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| ApiError::new(ErrorCode::InvalidRequest, format!("the request body broke off: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let held = first.as_ref().map_or(all.len(), Bytes::len);
        if held + data.len() > limits.body_bytes {
            return Err(too_large(limits));
        }
        if !hold.grow(data.len(), limits.total_body_bytes) {
            return Err(ApiError::new(
                ErrorCode::NoCapacity,
                "too many request bytes are held at once (`limits.total_body_bytes`)",
            )
            .retry_after(1));
        }
        if first.is_none() && all.is_empty() {
            first = Some(data);
            continue;
        }
        if let Some(first) = first.take() {
            let wanted = usize::try_from(announced.unwrap_or(0)).unwrap_or(0).min(TRUSTED_BYTES);
            all.reserve(wanted.max(first.len() + data.len()));
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}
