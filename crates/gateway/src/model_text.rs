//! Tokenizers and chat templates of the models that the settings name one for.
//!
//! With them the gateway knows the token ids of a text prompt, and so its length and which engine holds it. A model without one works
//! as before: its length is an estimate, and its prompts are placed by load alone.

use crate::owned::ask::{self, Ask};
use crate::owned::reasoning::ReasoningRule;
use crate::owned::{Owned, Ownership};
use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use plimsoll_core::EngineKind;
use plimsoll_protocol::chat_template::messages::{SGLANG_JOINT, VLLM_JOINT};
use plimsoll_protocol::prompt::{Context, TextIds, text_ids};
use plimsoll_protocol::request::{Api, RequestFacts};
use plimsoll_protocol::tokenizer::folder::ModelText;
use plimsoll_protocol::tokenizer::{SegmentCache, Tokenizer};
use plimsoll_settings::{Settings, TokenMode};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bodies up to this size are tokenised where they arrive: a few milliseconds at the most. Others go to a thread that may block.
const SMALL_BYTES: usize = 16 << 10;

/// A room for token ids of `capacity_bytes`, with a secret of its own.
#[must_use]
pub(crate) fn segment_cache(capacity_bytes: u64) -> Arc<SegmentCache> {
    let mut secret = [0; 32];
    for half in secret.chunks_mut(16) {
        half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    }
    Arc::new(SegmentCache::new(capacity_bytes, secret))
}

/// Whose prompt it is, and for which model.
pub(crate) struct Asked<'a> {
    pub api: Api,
    pub model: Option<&'a str>,
    /// The family of the model's engines, as far as they are alike.
    pub kind: EngineKind,
    pub tenant: &'a Arc<str>,
    pub cache: &'a Arc<SegmentCache>,
}

/// One model's text side and who makes its tokens.
#[derive(Debug)]
struct Served {
    text: ModelText,
    mode: TokenMode,
    /// What `generation_config.json` says.
    generation: Map<String, Value>,
    reasoning: Option<ReasoningRule>,
}

/// By model name.
#[derive(Clone, Debug, Default)]
pub struct ModelTexts(BTreeMap<String, Arc<Served>>);

/// A prompt's ids, and whether they may be the gateway's own.
#[derive(Debug, Default)]
pub(crate) struct Prompted {
    /// `None` without a tokenizer for the model, or where they cannot be known.
    pub ids: Option<TextIds>,
    /// `None` where nobody asks for it.
    pub candidate: Option<Candidate>,
}

/// A request of a model whose tokens the gateway may own.
#[derive(Debug)]
pub(crate) struct Candidate {
    ask: Result<Ask, &'static str>,
    tokenizer: Tokenizer,
    mode: TokenMode,
    reasoning: Option<ReasoningRule>,
}

impl Candidate {
    pub(crate) fn ownership(self, ids: Option<Vec<u32>>) -> Ownership {
        match (self.ask, ids) {
            (Err(why), _) => Ownership::Engine(why),
            // An empty prompt is for the engine to refuse.
            (Ok(ask), Some(ids)) if !ids.is_empty() => {
                let Candidate { tokenizer, mode, reasoning, .. } = self;
                Ownership::Gateway(Arc::new(Owned { ask, ids, tokenizer, mode, reasoning }))
            }
            _ => Ownership::Engine("prompt"),
        }
    }
}

impl ModelTexts {
    /// Reads what the settings name.
    ///
    /// # Errors
    /// The first folder that cannot be used, with the model's name.
    pub fn load(settings: &Settings) -> Result<Self, String> {
        let open = |model: &plimsoll_settings::Model| {
            let text = ModelText::open(&model.tokenizer, usize::MAX)
                .map_err(|error| format!("the tokenizer of model `{}`: {error}", model.name))?;
            let generation =
                generation_config(&model.tokenizer).map_err(|why| format!("model `{}`: {why}", model.name))?;
            let reasoning = model.reasoning_parser.as_deref().map(ReasoningRule::named).transpose();
            let reasoning = reasoning.map_err(|why| format!("`reasoning_parser` of model `{}`: {why}", model.name))?;
            Ok((model.name.clone(), Arc::new(Served { text, mode: model.token_mode, generation, reasoning })))
        };
        settings.models.iter().map(open).collect::<Result<_, String>>().map(ModelTexts)
    }

    /// Token ids of a text prompt, and whether they may be sent in its place.
    pub(crate) async fn ids(&self, asked: Asked<'_>, facts: &RequestFacts, body: &Bytes) -> Prompted {
        let served = match asked.model {
            Some(model) => self.0.get(model),
            None if self.0.len() == 1 => self.0.first_key_value().map(|(_, served)| served),
            None => None,
        };
        let Some(served) = served.cloned() else { return Prompted::default() };
        let joint = if asked.kind == EngineKind::Vllm { VLLM_JOINT } else { SGLANG_JOINT };
        let (body, facts, api) = (body.clone(), facts.clone(), asked.api);
        let (cache, owner) = (asked.cache.clone(), asked.tenant.clone());
        let small = body.len() <= SMALL_BYTES;
        let work = move || {
            let now = TimeZone::system().to_datetime(Timestamp::now());
            let ids = text_ids(&Context { text: &served.text, cache: &cache, owner: &owner, joint, now }, api, &body);
            let candidate = (served.mode != TokenMode::Passthrough).then(|| Candidate {
                ask: ask::read(api, &facts, &body, &served.generation),
                tokenizer: served.text.tokenizer.clone(),
                mode: served.mode,
                reasoning: served.reasoning.clone(),
            });
            Prompted { ids, candidate }
        };
        // A panic in a tokenizer costs the hit, not the request.
        if small {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_default()
        } else {
            tokio::task::spawn_blocking(work).await.unwrap_or_default()
        }
    }

    /// Each model, whether its folder has a chat template, and who makes its tokens.
    pub fn described(&self) -> impl Iterator<Item = (&str, bool, TokenMode)> {
        self.0.iter().map(|(name, served)| (name.as_str(), served.text.chat.is_some(), served.mode))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A folder's `generation_config.json`; nothing where there is none.
fn generation_config(folder: &Path) -> Result<Map<String, Value>, String> {
    let file = folder.join("generation_config.json");
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(format!("{}: cannot be read: {error}", file.display())),
    };
    serde_json::from_str(&text).map_err(|error| format!("{}: is no JSON object: {error}", file.display()))
}
