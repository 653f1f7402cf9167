//! Decides from the answers of a probe which engine this is.

use crate::capability::{ModelInfo, Product};
use crate::prometheus;
use plimsoll_core::EngineKind;
use serde_json::Value;

/// What the answers showed so far.
#[derive(Default)]
pub(super) struct Clues<'a> {
    pub(super) paths: Option<&'a [String]>,
    /// `owned_by` of the listed models.
    pub(super) owner: Option<Product>,
    /// `owned_by` names somebody else.
    pub(super) foreign_owner: bool,
    /// `/server_info` or `/model_info` answered as SGLang does.
    pub(super) sglang_info: bool,
    /// `/version` answered as vLLM does.
    pub(super) version: bool,
    pub(super) metrics_prefix: Option<Product>,
}

impl Clues<'_> {
    /// The strongest clue wins: what only one engine has, then what it says of itself, then what it counts.
    pub(super) fn verdict(&self) -> Option<Product> {
        if self.sglang_info {
            return Some(Product::Sglang);
        }
        let lists = |path| super::lists(self.paths, path);
        if lists("/generate") && (lists("/server_info") || lists("/get_server_info") || lists("/model_info")) {
            return Some(Product::Sglang);
        }
        if self.owner.is_some() {
            return self.owner;
        }
        if lists("/version") && lists("/v1/completions") {
            return Some(Product::Vllm);
        }
        self.metrics_prefix.or_else(|| (self.version && !self.foreign_owner).then_some(Product::Vllm))
    }

    pub(super) fn speaks_openai(&self) -> bool {
        let lists = |path| super::lists(self.paths, path);
        lists("/v1/chat/completions") || lists("/v1/completions") || lists("/v1/embeddings")
    }
}

pub(super) fn kind_of(product: Product) -> EngineKind {
    match product {
        Product::Sglang => EngineKind::Sglang,
        Product::Vllm => EngineKind::Vllm,
        Product::LlamaCpp | Product::Other => EngineKind::Openai,
    }
}

pub(super) fn default_product(kind: EngineKind) -> Product {
    match kind {
        EngineKind::Sglang => Product::Sglang,
        EngineKind::Vllm => Product::Vllm,
        EngineKind::Openai => Product::Other,
    }
}

pub(super) fn name(product: Product) -> &'static str {
    match product {
        Product::Sglang => "SGLang",
        Product::Vllm => "vLLM",
        Product::LlamaCpp => "llama.cpp",
        Product::Other => "another server",
    }
}

/// Whose metrics these are.
pub(super) fn metrics_prefix(text: &str) -> Option<Product> {
    prometheus::samples(text).find_map(|sample| match sample.name.split_once(':')?.0 {
        "sglang" => Some(Product::Sglang),
        "vllm" => Some(Product::Vllm),
        "llamacpp" => Some(Product::LlamaCpp),
        _ => None,
    })
}

/// `/v1/models` as far as it can be read.
pub(super) struct ListedModels {
    /// The answer has a `data` list, even an empty one.
    pub(super) is_list: bool,
    pub(super) owner: Option<Product>,
    pub(super) foreign_owner: bool,
    pub(super) models: Vec<ModelInfo>,
}

impl ListedModels {
    pub(super) fn read(answer: &Value) -> Self {
        let data = answer.get("data").and_then(Value::as_array);
        let entries = data.map_or(&[][..], Vec::as_slice);
        let owners = || entries.iter().filter_map(|entry| entry.get("owned_by")?.as_str());
        let owner = owners().find_map(|owner| match owner {
            "sglang" => Some(Product::Sglang),
            "vllm" => Some(Product::Vllm),
            "llamacpp" => Some(Product::LlamaCpp),
            _ => None,
        });
        let models = entries.iter().filter_map(model).collect();
        ListedModels {
            is_list: data.is_some(),
            owner,
            foreign_owner: owner.is_none() && owners().next().is_some(),
            models,
        }
    }
}

fn model(entry: &Value) -> Option<ModelInfo> {
    let id = entry.get("id")?.as_str().filter(|id| !id.is_empty())?;
    Some(ModelInfo {
        id: id.to_owned(),
        parent: entry.get("parent").and_then(Value::as_str).map(str::to_owned),
        context_tokens: entry.get("max_model_len").and_then(Value::as_u64),
    })
}
