//! Who is asking: API keys to tenants.
//!
//! Keys are stored as SHA-256 and compared in constant time over all entries, so that neither the store nor the
//! response time gives one away.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use plimsoll_core::ErrorCode;
use plimsoll_settings::Auth;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::api_error::ApiError;

/// Tenant of requests where no keys are configured.
pub const DEFAULT_TENANT: &str = "default";

/// The key table of the current settings.
#[derive(Debug)]
pub struct Keys {
    entries: Vec<([u8; 32], Arc<str>)>,
    default_tenant: Arc<str>,
}

impl Keys {
    /// Entries whose hash is not 64 hex digits are left out; validation has refused them before.
    #[must_use]
    pub fn new(auth: &Auth) -> Self {
        let entries =
            auth.keys.iter().filter_map(|key| Some((from_hex(&key.sha256)?, Arc::from(key.tenant.as_str())))).collect();
        Keys { entries, default_tenant: Arc::from(DEFAULT_TENANT) }
    }

    /// True where requests must carry a key.
    #[must_use]
    pub fn required(&self) -> bool {
        !self.entries.is_empty()
    }

    /// The tenant of a request.
    ///
    /// # Errors
    /// `unauthorized` where keys are configured and the request has none of them.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Arc<str>, ApiError> {
        if self.entries.is_empty() {
            return Ok(self.default_tenant.clone());
        }
        let Some(presented) = presented_key(headers) else {
            return Err(ApiError::new(
                ErrorCode::Unauthorized,
                "no API key in the request: send `Authorization: Bearer KEY`",
            ));
        };
        let hash: [u8; 32] = Sha256::digest(presented).into();
        let mut found = 0u32;
        for (i, (stored, _)) in (1u32..).zip(&self.entries) {
            found.conditional_assign(&i, stored.ct_eq(&hash));
        }
        match found.checked_sub(1).and_then(|i| self.entries.get(i as usize)) {
            Some((_, tenant)) => Ok(tenant.clone()),
            None => Err(ApiError::new(ErrorCode::Unauthorized, "this API key is not known here")),
        }
    }
}

fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(7)?;
        return scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii()).filter(|k| !k.is_empty());
    }
    headers.get("x-api-key").map(http::HeaderValue::as_bytes).filter(|k| !k.is_empty())
}

/// True when the bearer token in the headers is `token`, compared in constant time.
#[must_use]
pub fn bearer_is(headers: &HeaderMap, token: &str) -> bool {
    let presented: [u8; 32] = Sha256::digest(presented_key(headers).unwrap_or_default()).into();
    let wanted: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    bool::from(presented.ct_eq(&wanted)) && !token.is_empty()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use plimsoll_settings::ApiKey;

    fn keys() -> Keys {
        let hash = |key: &str| Sha256::digest(key.as_bytes()).iter().map(|b| format!("{b:02x}")).collect::<String>();
        Keys::new(&Auth {
            keys: vec![
                ApiKey { sha256: hash("alpha"), tenant: "a".into() },
                ApiKey { sha256: hash("beta").to_uppercase(), tenant: "b".into() },
            ],
        })
    }

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn keys_name_their_tenant() {
        let keys = keys();
        assert_eq!(&*keys.tenant(&with("authorization", "Bearer alpha")).unwrap(), "a");
        assert_eq!(&*keys.tenant(&with("authorization", "bearer beta")).unwrap(), "b");
        assert_eq!(&*keys.tenant(&with("x-api-key", "beta")).unwrap(), "b");
    }

    #[test]
    fn anything_else_is_refused() {
        let keys = keys();
        for headers in [
            HeaderMap::new(),
            with("authorization", "Bearer gamma"),
            with("authorization", "Bearer "),
            with("authorization", "Basic alpha"),
            with("authorization", "alpha"),
        ] {
            assert_eq!(keys.tenant(&headers).unwrap_err().code, ErrorCode::Unauthorized);
        }
        assert!(Keys::new(&Auth::default()).tenant(&HeaderMap::new()).is_ok());
        assert!(!bearer_is(&HeaderMap::new(), ""), "an empty token never opens anything");
    }
}
