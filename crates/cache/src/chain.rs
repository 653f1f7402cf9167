//! A prompt's token ids as the names its blocks have in an engine's events.
//!
//! Names differ by engine family. SGLang's and vLLM's `sha256_cbor` names follow from the tokens alone and are taken as they are. vLLM's
//! default names depend on a Python process and mean nothing outside it; for those, and for any format that is not known, blocks get
//! names of our own made from the tokens that events carry.

use crate::block_hash::{self, page_digest, salt_seed};
use crate::vllm_hash::{self, ExtraKey};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How a publisher names blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameFormat {
    /// SGLang's page digests, first 8 bytes.
    Sglang,
    /// vLLM with `--prefix-caching-hash-algo sha256_cbor` and no hash seed, last 8 bytes.
    VllmCbor,
    /// Names that mean nothing here; ours stand for them.
    Own,
}

impl NameFormat {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            NameFormat::Sglang => "sglang",
            NameFormat::VllmCbor => "vllm_sha256_cbor",
            NameFormat::Own => "own",
        }
    }
}

/// What separates KV of equal tokens. Requests of different namespaces never match each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    pub cache_salt: Option<&'a str>,
    pub lora: Option<&'a str>,
    /// SGLang's: not part of its event names, so that requests which carry one cannot be matched on events at all.
    pub extra_key: Option<&'a str>,
}

/// Names of the full blocks of a prompt. `None` where this namespace has no names in that format.
#[must_use]
pub fn names(format: NameFormat, block_tokens: u32, namespace: Namespace<'_>, tokens: &[u32]) -> Option<Vec<u64>> {
    let blocks = tokens.chunks_exact(block_tokens.max(1) as usize);
    if namespace.extra_key.is_some() {
        return None;
    }
    match format {
        NameFormat::Sglang => {
            if namespace.lora.is_some() {
                return None;
            }
            let mut previous = namespace.cache_salt.map(salt_seed);
            let name = |block: &[u32]| {
                let digest = page_digest(previous.as_ref(), block);
                previous = Some(digest);
                block_hash::event_hash(&digest) as u64
            };
            Some(blocks.map(name).collect())
        }
        NameFormat::VllmCbor => {
            if namespace.lora.is_some() {
                // The adapter's path is part of its names, and a router does not know it.
                return None;
            }
            let mut previous = vllm_hash::none_digest(vllm_hash::NONE_SEED);
            let mut salt = namespace.cache_salt.map(ExtraKey::CacheSalt);
            let name = |block: &[u32]| {
                previous = vllm_hash::block_digest(&previous, block, salt.take().as_slice());
                vllm_hash::event_hash(&previous)
            };
            Some(blocks.map(name).collect())
        }
        NameFormat::Own => {
            let mut previous = own_root(namespace);
            let name = |block: &[u32]| {
                previous = own_name(previous, block);
                previous
            };
            Some(blocks.map(name).collect())
        }
    }
}

/// What stands before the first block of a namespace.
#[must_use]
pub(crate) fn own_root(namespace: Namespace<'_>) -> u64 {
    let seed = |hash: u64, tag: u64, text: Option<&str>| match text {
        // Tag and length first, so that ("ab", "c") and ("a", "bc") differ.
        Some(text) => xxh3_64_with_seed(text.as_bytes(), hash ^ (tag << 56 | text.len() as u64)),
        None => hash,
    };
    seed(seed(0x706c_696d_736f_6c6c, 1, namespace.cache_salt), 2, namespace.lora)
}

/// Our name of a block behind another.
#[must_use]
pub(crate) fn own_name(previous: u64, block: &[u32]) -> u64 {
    let mut bytes = smallvec::SmallVec::<[u8; 512]>::new();
    for token in block {
        bytes.extend_from_slice(&token.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, previous)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sglang_names_are_those_of_its_events() {
        // `reference/sglang.md` 3.6.
        let tokens: Vec<u32> = (1..=8).collect();
        let plain = names(NameFormat::Sglang, 4, Namespace::default(), &tokens).unwrap();
        assert_eq!(plain, [(-3_488_128_144_981_237_669i64) as u64, 5_674_439_469_042_975_057]);
        let salted = Namespace { cache_salt: Some("tenant-a"), ..Namespace::default() };
        assert_eq!(names(NameFormat::Sglang, 4, salted, &tokens[..4]).unwrap(), [3_718_046_898_735_569_995]);
    }

    #[test]
    fn namespaces_share_nothing() {
        let tokens: Vec<u32> = (1..=64).collect();
        let spaces = [
            Namespace::default(),
            Namespace { cache_salt: Some("a"), ..Namespace::default() },
            Namespace { cache_salt: Some("b"), ..Namespace::default() },
            Namespace { lora: Some("a"), ..Namespace::default() },
            Namespace { cache_salt: Some("a"), lora: Some("a"), extra_key: None },
            Namespace { extra_key: Some("a"), ..Namespace::default() },
        ];
        for format in [NameFormat::Sglang, NameFormat::VllmCbor, NameFormat::Own] {
            let all: Vec<Vec<u64>> = spaces.iter().filter_map(|space| names(format, 16, *space, &tokens)).collect();
            assert!(all.len() >= 3, "{format:?}");
            for (at, one) in all.iter().enumerate() {
                assert_eq!(one.len(), 4);
                assert!(all[at + 1..].iter().all(|other| one.iter().zip(other).all(|(a, b)| a != b)), "{format:?}");
            }
        }
    }

    #[test]
    fn a_name_covers_everything_before_it() {
        let tokens: Vec<u32> = (1..=64).collect();
        let mut changed = tokens.clone();
        changed[20] = 999;
        for format in [NameFormat::Sglang, NameFormat::VllmCbor, NameFormat::Own] {
            let [one, other] = [&tokens, &changed].map(|t| names(format, 16, Namespace::default(), t).unwrap());
            assert_eq!(one.iter().zip(&other).map(|(a, b)| a == b).collect::<Vec<_>>(), [true, false, false, false]);
        }
    }
}
