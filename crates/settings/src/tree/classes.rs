//! Bounds between the traffic classes, of all models and of single ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds between the traffic classes. Where cache hits cannot be predicted, no request is low and the two hit fractions have
/// no effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Classes {
    /// A request with at most this many uncached tokens is high.
    pub high_uncached_tokens: u64,
    /// A request whose predicted hit fraction is at least this is high.
    pub high_hit_fraction: f64,
    /// A request with more uncached tokens than this and a hit fraction under
    /// `classes.low_hit_fraction` is low.
    pub low_uncached_tokens: u64,
    /// See `classes.low_uncached_tokens`.
    pub low_hit_fraction: f64,
    /// A session that has found its KV in at least this many turns is not low when it has lost it: one prefill brings it back.
    /// Only where most of the prompt is what the turn before was.
    pub established_hit_rounds: u32,
    /// Other bounds of single models.
    pub models: Vec<ModelClasses>,
}

impl Default for Classes {
    fn default() -> Self {
        Classes {
            high_uncached_tokens: 2_000,
            high_hit_fraction: 0.8,
            low_uncached_tokens: 16_000,
            low_hit_fraction: 0.3,
            established_hit_rounds: 1,
            models: Vec::new(),
        }
    }
}

/// Bounds of one model; those left out are as in `classes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelClasses {
    /// The model, by a name that its engines serve.
    pub name: String,
    /// As `classes.high_uncached_tokens`.
    #[serde(default)]
    pub high_uncached_tokens: Option<u64>,
    /// As `classes.high_hit_fraction`.
    #[serde(default)]
    pub high_hit_fraction: Option<f64>,
    /// As `classes.low_uncached_tokens`.
    #[serde(default)]
    pub low_uncached_tokens: Option<u64>,
    /// As `classes.low_hit_fraction`.
    #[serde(default)]
    pub low_hit_fraction: Option<f64>,
    /// As `classes.established_hit_rounds`.
    #[serde(default)]
    pub established_hit_rounds: Option<u32>,
}

impl Classes {
    /// The bounds that hold for a model.
    #[must_use]
    pub fn of(&self, model: &str) -> Classes {
        let own = self.models.iter().find(|own| own.name == model);
        Classes {
            high_uncached_tokens: own.and_then(|own| own.high_uncached_tokens).unwrap_or(self.high_uncached_tokens),
            high_hit_fraction: own.and_then(|own| own.high_hit_fraction).unwrap_or(self.high_hit_fraction),
            low_uncached_tokens: own.and_then(|own| own.low_uncached_tokens).unwrap_or(self.low_uncached_tokens),
            low_hit_fraction: own.and_then(|own| own.low_hit_fraction).unwrap_or(self.low_hit_fraction),
            established_hit_rounds: own
                .and_then(|own| own.established_hit_rounds)
                .unwrap_or(self.established_hit_rounds),
            models: Vec::new(),
        }
    }
}
