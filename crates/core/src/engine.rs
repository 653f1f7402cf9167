//! Which family of engine an instance belongs to, and what a leg of a request does there.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Adapter family. Found by probing unless a config names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum EngineKind {
    Sglang,
    Vllm,
    /// Any other server that speaks OpenAI's HTTP API (llama.cpp, TensorRT-LLM, ...).
    Openai,
}

impl EngineKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            EngineKind::Sglang => "sglang",
            EngineKind::Vllm => "vllm",
            EngineKind::Openai => "openai",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What one leg of a dispatch does. A plain request has one `Unified` leg; a prefill/decode pair has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LegRole {
    Unified,
    Prefill,
    Decode,
}
