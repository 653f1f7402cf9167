//! Tokenizers and chat templates of the models that the settings name one for.
//!
//! With them the gateway knows the token ids of a text prompt, and so its length and which engine holds it. A model without one works
//! as before: its length is an estimate, and its prompts are placed by load alone.

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use plimsoll_core::EngineKind;
use plimsoll_protocol::chat_template::messages::{SGLANG_JOINT, VLLM_JOINT};
use plimsoll_protocol::prompt::{Context, TextIds, text_ids};
use plimsoll_protocol::request::Api;
use plimsoll_protocol::tokenizer::SegmentCache;
use plimsoll_protocol::tokenizer::folder::ModelText;
use plimsoll_settings::Settings;
use std::collections::BTreeMap;
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

/// By model name.
#[derive(Clone, Debug, Default)]
pub struct ModelTexts(BTreeMap<String, Arc<ModelText>>);

impl ModelTexts {
    /// Reads what the settings name.
    ///
    /// # Errors
    /// The first folder that cannot be used, with the model's name.
    pub fn load(settings: &Settings) -> Result<Self, String> {
        let open = |model: &plimsoll_settings::Model| {
            let text = ModelText::open(&model.tokenizer, usize::MAX)
                .map_err(|error| format!("the tokenizer of model `{}`: {error}", model.name))?;
            Ok((model.name.clone(), Arc::new(text)))
        };
        settings.models.iter().map(open).collect::<Result<_, String>>().map(ModelTexts)
    }

    /// Token ids of a text prompt. `None` without a tokenizer for the model, or where they cannot be known.
    pub(crate) async fn ids(&self, asked: Asked<'_>, body: &Bytes) -> Option<TextIds> {
        let text = match asked.model {
            Some(model) => self.0.get(model)?,
            None if self.0.len() == 1 => self.0.first_key_value()?.1,
            None => return None,
        };
        let joint = if asked.kind == EngineKind::Vllm { VLLM_JOINT } else { SGLANG_JOINT };
        let (text, body, api) = (text.clone(), body.clone(), asked.api);
        let (cache, owner) = (asked.cache.clone(), asked.tenant.clone());
        let small = body.len() <= SMALL_BYTES;
        let work = move || {
            let now = TimeZone::system().to_datetime(Timestamp::now());
            text_ids(&Context { text: &text, cache: &cache, owner: &owner, joint, now }, api, &body)
        };
        // A panic in a tokenizer costs the hit, not the request.
        if small { work() } else { tokio::task::spawn_blocking(work).await.ok().flatten() }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
