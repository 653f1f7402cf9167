//! Which requests may share KV.
//!
//! KV depends on the tokens before it and on the adapter that computed it; and tenants may want to share nothing, not even
//! the time that a hit saves. So a request's `extra_key`, `cache_salt` and adapter seed its page chain, exactly as
//! SGLang seeds the keys of its L3 storage: pages of different namespaces never have the same digest, in memory, in an
//! offload store or on the way to another engine.

use plimsoll_cache::Digest;
use plimsoll_cache::block_hash::namespace_seed;
use std::borrow::Cow;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Longest `cache_salt`, `extra_key` and `session_id`, in bytes: they are repeated in every KV event.
pub(crate) const MAX_KEY_BYTES: usize = 1024;

/// What a request's KV belongs to. The default shares with every other default one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace {
    pub extra_key: Option<Arc<str>>,
    pub cache_salt: Option<Arc<str>>,
    /// Name of the adapter that computes the KV.
    pub lora: Option<Arc<str>>,
}

impl Namespace {
    /// Nothing set: the chain starts with nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Namespace::default()
    }

    /// Seed of the page chain: of SGLang's storage keys, the same for every engine with the same adapters.
    #[must_use]
    pub fn seed(&self) -> Option<Digest> {
        namespace_seed(self.sglang_extra_key().as_deref(), self.cache_salt.as_deref())
    }

    /// SGLang's extra key: the request's, then the id of the adapter.
    #[must_use]
    pub fn sglang_extra_key(&self) -> Option<Cow<'_, str>> {
        match (&self.extra_key, &self.lora) {
            (extra, None) => extra.as_deref().map(Cow::Borrowed),
            (None, Some(lora)) => Some(Cow::Owned(lora_id(lora))),
            (Some(extra), Some(lora)) => Some(Cow::Owned(format!("{extra}{}", lora_id(lora)))),
        }
    }
}

/// 32 hex digits, as SGLang's adapter ids are, but made from the name: an adapter's weights follow from its name here,
/// so that two engines may share its KV.
fn lora_id(name: &str) -> String {
    let digest = plimsoll_cache::block_hash::salt_seed(&format!("plimsoll-lora-v1 {name}"));
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
