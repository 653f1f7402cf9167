//! What events call the pages of one sequence.
//!
//! Not always the page's digest: SGLang's default format seeds the chain with the salt alone and leaves `extra_key` out
//! (two extra keys then publish equal names for KV that is never shared, which [`super::Log`] counts); an adapter's pages
//! are hashed once more with its namespace; the `dynamo` format does that with every namespace; vLLM hashes
//! differently altogether.

use super::{Label, Owner};
use plimsoll_cache::block_hash::{dynamo_event_hash, event_hash, salt_seed};
use plimsoll_cache::vllm_hash::{self, ExtraKey};
use plimsoll_cache::{Chain, Digest, EventHash};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Whose rule makes the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// SGLang, `"format": "default"`.
    #[default]
    Sglang,
    /// SGLang, `"format": "dynamo"`.
    Dynamo,
    /// vLLM with `--prefix-caching-hash-algo sha256_cbor`.
    Vllm,
}

/// The names of a growing sequence's full pages.
#[derive(Clone, Debug)]
pub struct Names {
    owner: Arc<Owner>,
    page_tokens: usize,
    chain: Rule,
    names: Vec<EventHash>,
}

#[derive(Clone, Debug)]
enum Rule {
    /// The names are the digests of the sequence's own chain: nothing is hashed twice.
    Shared,
    /// A chain with another seed.
    Own {
        chain: Chain,
        scheme: Scheme,
    },
    Vllm {
        last: Digest,
    },
}

impl Names {
    #[must_use]
    pub fn new(scheme: Scheme, owner: Arc<Owner>, page_tokens: usize) -> Self {
        let chain = match scheme {
            Scheme::Vllm => Rule::Vllm { last: vllm_hash::none_digest(vllm_hash::NONE_SEED) },
            _ if owner.namespace.is_default() => Rule::Shared,
            _ => {
                let seed = owner.namespace.cache_salt.as_deref().map(salt_seed);
                Rule::Own { chain: Chain::new(page_tokens, seed), scheme }
            }
        };
        Names { owner, page_tokens, chain, names: Vec::new() }
    }

    /// Names the full pages of `tokens` that have no name yet. `identity` is the sequence's page chain over the same
    /// tokens.
    pub fn extend(&mut self, identity: &Chain, tokens: &[u32]) {
        match &mut self.chain {
            Rule::Shared => {
                self.names.extend(identity.digests().iter().skip(self.names.len()).map(event_hash));
            }
            Rule::Own { chain, scheme } => {
                chain.extend(tokens);
                let space = &self.owner.namespace;
                let extra = space.sglang_extra_key();
                for digest in &chain.digests()[self.names.len()..] {
                    let plain = event_hash(digest);
                    self.names.push(match scheme {
                        Scheme::Dynamo => dynamo_event_hash(plain, extra.as_deref(), space.cache_salt.as_deref()),
                        _ if space.lora.is_some() => dynamo_event_hash(plain, extra.as_deref(), None),
                        _ => plain,
                    });
                }
            }
            Rule::Vllm { last } => {
                for page in tokens.chunks_exact(self.page_tokens).skip(self.names.len()) {
                    let extra = vllm_extra_keys(&self.owner, self.names.is_empty());
                    *last = vllm_hash::block_digest(last, page, &extra);
                    self.names.push(vllm_hash::event_hash(last).cast_signed());
                }
            }
        }
    }

    /// Everything about page `index`, which must have a name.
    #[must_use]
    pub fn label(&self, index: usize, tokens: &[u32]) -> Label {
        Label {
            name: self.names[index],
            parent: index.checked_sub(1).map(|before| self.names[before]),
            tokens: tokens[index * self.page_tokens..][..self.page_tokens].into(),
            owner: Arc::clone(&self.owner),
        }
    }
}

/// What vLLM hashes besides the tokens. It has no `extra_key`; ours goes into the first block, as a salt does.
fn vllm_extra_keys(owner: &Owner, first: bool) -> Vec<ExtraKey<'_>> {
    let space = &owner.namespace;
    let lora = space.lora.as_deref().map(|name| ExtraKey::Lora { name, path: name });
    let salt = space.cache_salt.as_deref().filter(|_| first).map(ExtraKey::CacheSalt);
    let extra = space.extra_key.as_deref().filter(|_| first);
    let extra = extra.map(|value| ExtraKey::Other { tag: "extra_key", value });
    [lora, salt, extra].into_iter().flatten().collect()
}
