//! What two engines compare before they exchange KV.
//!
//! KV fits together when both engines compute the same bits for the same tokens: that needs equal weights, and also equal
//! kernels and an equal page layout. So the fingerprint is taken from what a model *does*: the KV pages and logits of a
//! fixed prompt that is spread over the vocabulary. Costs one prefill of a few hundred tokens.

use super::kv::TILE;
use super::{KvStore, Model, Run, Want};
use plimsoll_cache::Digest;
use sha2::{Digest as _, Sha256};

/// Tokens of the prompt; a model with a shorter context gets fewer.
const TOKENS: usize = 16 * TILE;

impl Model {
    /// Equal for models that compute the same KV, whatever their context length.
    pub fn fingerprint(&mut self) -> Digest {
        let count = TOKENS.min(self.config().context_tokens);
        let vocab = self.config().vocab_tokens;
        let tokens: Vec<u32> = (0..count).map(|at| (at * vocab / count) as u32).collect();
        let pages: Vec<u32> = (0..count.div_ceil(TILE) as u32).collect();
        let mut kv = KvStore::new(self.config(), pages.len(), TILE);
        let output = self.forward(&[Run { tokens: &tokens, start: 0, pages: &pages, want: Want::Logits }], &mut kv);
        let mut hash = Sha256::new();
        let mut bytes = Vec::new();
        for page in &pages {
            // It exists; positions beyond the prompt are zero.
            if kv.read_page(*page, &mut bytes).is_ok() {
                hash.update(&bytes);
            }
        }
        for logit in &output.logits {
            hash.update(logit.to_le_bytes());
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Model, ModelConfig};

    #[test]
    fn equal_weights_have_equal_fingerprints_and_others_do_not() {
        let of = |config: ModelConfig| Model::new(config).fingerprint();
        let plain = ModelConfig::default();
        assert_eq!(of(plain.clone()), of(plain.clone()));
        assert_eq!(of(plain.clone()), of(ModelConfig { context_tokens: 1024, ..plain.clone() }));
        assert_ne!(of(plain.clone()), of(ModelConfig { seed: 7, ..plain.clone() }));
        assert_ne!(of(plain.clone()), of(ModelConfig { layers: 1, ..plain }));
    }
}
