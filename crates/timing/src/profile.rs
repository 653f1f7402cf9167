//! The constants of one GPU, model and parallelism, as a small TOML file with the source of each.

use crate::curve::Curve;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How well a profile's times are founded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Founded {
    /// Kernel times measured on this GPU with this shape.
    Measured,
    /// From bandwidths, rates and parameter counts.
    ClosedForm,
    /// A closed form whose constants come from another set-up.
    Extrapolated,
}

impl Founded {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Founded::Measured => "measured",
            Founded::ClosedForm => "closed form",
            Founded::Extrapolated => "extrapolated",
        }
    }
}

impl fmt::Display for Founded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a decode kernel cuts its work, which decides what unequal lengths cost.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "family", deny_unknown_fields)]
pub enum Kernel {
    /// Work-conserving: time follows the sum of lengths (FA3 on Hopper, FlashInfer, MLA tile schedulers). `skew` is the
    /// share of the way from the mean to the longest that remains: 0.03 to 0.05 measured.
    K0 { skew: f64 },
    /// One piece for each sequence and KV head; the longest may be left for last (FA2 on variable lengths).
    K1,
    /// Everything padded to the longest.
    K2,
}

/// Everything that a step's time depends on, but the step.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `gpu-model-parallelism`, as users write it.
    pub name: String,
    /// For people.
    pub summary: String,
    pub founded: Founded,
    pub machine: Machine,
    pub model: ModelShape,
    pub serving: Serving,
    pub step: Step,
    /// Matrix products and all-reduces of one layer, by new tokens in the step.
    pub dense: Curve,
    /// The language-model head, by rows.
    pub head: Curve,
    pub decode: Decode,
    pub prefill: Prefill,
    pub kernel: Kernel,
}

/// One GPU, and how many of them make a rank and an instance.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub gpu: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Peak memory bandwidth of one GPU, GB/s.
    pub bandwidth_gb_s: f64,
    /// GPUs of one rank.
    pub tensor_parallel: u32,
    /// Ranks that step together.
    pub data_parallel: u32,
}

/// The model as one GPU sees it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    pub layers: u32,
    /// Query heads on one GPU.
    pub heads: f64,
    /// KV heads on one GPU.
    pub kv_heads: f64,
    /// Mean of the key's and the value's dimensions.
    pub head_dim: f64,
    /// Bytes that attention reads per cached token and layer on one GPU.
    pub kv_bytes_token_layer: f64,
}

/// What the instance holds and how it is usually set.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Serving {
    /// KV bytes per token on all GPUs of a rank together, each stored once.
    pub kv_bytes_token: u64,
    /// Tokens of KV that fit on one rank.
    pub kv_tokens: u64,
    pub context_tokens: u64,
    /// Tokens of one KV page.
    pub page_tokens: u64,
    /// Tokens computed in one step of a rank.
    pub token_budget: u64,
    /// Requests in one step of a rank.
    pub max_running: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Host time of a step that nothing overlaps.
    pub host_us: f64,
    /// Norms, rotary positions, activation: per layer.
    pub layer_us: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// Per layer.
    pub c0_us: f64,
    /// Per layer, request and KV head.
    pub c1_us: f64,
    /// Share of the peak bandwidth at which keys and values are read.
    pub efficiency: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Prefill {
    /// Per layer.
    pub c0_us: f64,
    /// Rate of long prompts on one GPU.
    pub tflops: f64,
    /// Tokens by which a chunk's triangle is wider than half its length, for what tiles compute in vain.
    pub diagonal_tokens: f64,
    /// Rows of the tile that one SM computes alone: a step waits for the largest. 0 where nothing waits for one.
    #[serde(default = "tile_rows")]
    pub tile_rows: f64,
}

/// Of the prefill kernels that were measured.
fn tile_rows() -> f64 {
    128.0
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("there is no timing profile {name:?}; use one of {known}")]
    Unknown { name: String, known: String },
    #[error("{file}: {what}")]
    Syntax { file: String, what: String },
    #[error("{file}: {key}: {rule}")]
    Value { file: String, key: &'static str, rule: &'static str },
}

impl Profile {
    /// Reads a profile; `file` names it in errors.
    ///
    /// # Errors
    /// Names the file and the key that is missing, unknown or out of range.
    pub fn parse(file: &str, text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text).map_err(|error| ProfileError::Syntax {
            file: file.to_owned(),
            what: error.to_string().trim().to_owned(),
        })?;
        match profile.complaint() {
            Some((key, rule)) => Err(ProfileError::Value { file: file.to_owned(), key, rule }),
            None => Ok(profile),
        }
    }

    fn complaint(&self) -> Option<(&'static str, &'static str)> {
        let above = |value: f64| value.is_finite() && value > 0.0;
        let from = |value: f64| value.is_finite() && value >= 0.0;
        let skew = match self.kernel {
            Kernel::K0 { skew } => (0.0..=1.0).contains(&skew),
            Kernel::K1 | Kernel::K2 => true,
        };
        const ABOVE: &str = "must be above 0";
        const FROM: &str = "must not be negative";
        let rules = [
            ("machine.sms", self.machine.sms > 0, ABOVE),
            ("machine.bandwidth_gb_s", above(self.machine.bandwidth_gb_s), ABOVE),
            ("machine.tensor_parallel", self.machine.tensor_parallel > 0, ABOVE),
            ("machine.data_parallel", self.machine.data_parallel > 0, ABOVE),
            ("model.layers", self.model.layers > 0, ABOVE),
            ("model.heads", above(self.model.heads), ABOVE),
            ("model.kv_heads", above(self.model.kv_heads), ABOVE),
            ("model.head_dim", above(self.model.head_dim), ABOVE),
            ("model.kv_bytes_token_layer", above(self.model.kv_bytes_token_layer), ABOVE),
            ("serving.kv_bytes_token", self.serving.kv_bytes_token > 0, ABOVE),
            ("serving.kv_tokens", self.serving.kv_tokens > 0, ABOVE),
            ("serving.page_tokens", self.serving.page_tokens > 0, ABOVE),
            ("serving.context_tokens", self.serving.context_tokens > 1, "must be above 1"),
            ("serving.max_running", self.serving.max_running > 0, ABOVE),
            (
                "serving.token_budget",
                self.serving.token_budget >= self.serving.max_running,
                "must be at least max_running",
            ),
            ("step.host_us", from(self.step.host_us), FROM),
            ("step.layer_us", from(self.step.layer_us), FROM),
            ("decode.c0_us", from(self.decode.c0_us), FROM),
            ("decode.c1_us", from(self.decode.c1_us), FROM),
            (
                "decode.efficiency",
                above(self.decode.efficiency) && self.decode.efficiency <= 1.0,
                "must be above 0, at most 1",
            ),
            ("prefill.c0_us", from(self.prefill.c0_us), FROM),
            ("prefill.tflops", above(self.prefill.tflops), ABOVE),
            ("prefill.diagonal_tokens", from(self.prefill.diagonal_tokens), FROM),
            ("prefill.tile_rows", from(self.prefill.tile_rows), FROM),
            ("kernel.skew", skew, "must be from 0 to 1"),
        ];
        let curves = [("dense", self.dense.complaint()), ("head", self.head.complaint())];
        let curve = curves.into_iter().find_map(|(key, complaint)| complaint.map(|rule| (key, rule)));
        rules.into_iter().find(|(_, holds, _)| !holds).map(|(key, _, rule)| (key, rule)).or(curve)
    }

    /// GPUs of the whole instance.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.machine.tensor_parallel * self.machine.data_parallel
    }

    /// The rate at which decode attention reads keys and values, on one GPU.
    pub(crate) fn kv_bytes_per_us(&self) -> f64 {
        self.machine.bandwidth_gb_s * 1e3 * self.decode.efficiency
    }
}
