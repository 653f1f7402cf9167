//! What the two legs tell each other besides pages.

use crate::sampling::logprobs::TokenLogprobs;
use crate::transfer::TransferError;
use serde::{Deserialize, Serialize};

/// A note on the wire, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    /// Decode calls: which room, and which prompt it expects to find in it.
    Open {
        room: u64,
        prompt_tokens: usize,
        /// Digest of the prompt's last page, in hexadecimal: it covers the whole prompt and its namespace.
        prompt: String,
    },
    /// Prefill has the request.
    Paired,
    /// Decode holds pages for the prompt, and has the first of them.
    Ready { have_pages: usize },
    /// Prefill's last word before the end: the first token.
    First(First),
    /// Decode owns the request.
    Landed,
}

/// The first output token, which prefill chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct First {
    pub(crate) token: u32,
    /// Prompt tokens that prefill did not compute.
    pub(crate) cached_tokens: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprobs: Option<Bits>,
}

/// Log-probabilities as the bits of their floats, so that they arrive as they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bits {
    of_token: u32,
    top: Vec<(u32, u32)>,
    asked: Vec<(u32, u32)>,
}

impl First {
    pub(crate) fn new(token: u32, cached_tokens: usize, logprobs: Option<&TokenLogprobs>) -> Self {
        let bits = |list: &[(u32, f32)]| list.iter().map(|(id, value)| (*id, value.to_bits())).collect();
        let logprobs = logprobs.map(|logprobs| Bits {
            of_token: logprobs.logprob.to_bits(),
            top: bits(&logprobs.top),
            asked: bits(&logprobs.asked),
        });
        First { token, cached_tokens, logprobs }
    }

    pub(crate) fn logprobs(&self) -> Option<TokenLogprobs> {
        let floats = |list: &[(u32, u32)]| list.iter().map(|(id, bits)| (*id, f32::from_bits(*bits))).collect();
        self.logprobs.as_ref().map(|bits| TokenLogprobs {
            id: self.token,
            logprob: f32::from_bits(bits.of_token),
            top: floats(&bits.top),
            asked: floats(&bits.asked),
        })
    }
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Plain data: it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, TransferError> {
        serde_json::from_slice(bytes)
            .map_err(|_| TransferError::Malformed("a note that is none of a prefill's or decode's"))
    }
}
