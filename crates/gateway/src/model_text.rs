//! Tokenizers and chat templates of the models that the settings name one for.
//!
//! With them the gateway knows the token ids of a text prompt, and so its length and which engine holds it. A model without one works
//! as before: its length is an estimate, and its prompts are placed by load alone.

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use plimsoll_core::EngineKind;
use plimsoll_protocol::chat_template::messages::{SGLANG_JOINT, VLLM_JOINT};
use plimsoll_protocol::prompt::text_ids;
use plimsoll_protocol::request::{Api, PromptIds};
use plimsoll_protocol::tokenizer::folder::ModelText;
use plimsoll_settings::Settings;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bodies up to this size are tokenised where they arrive: a few milliseconds at the most. Others go to a thread that may block.
const SMALL_BYTES: usize = 16 << 10;

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
    pub(crate) async fn ids(&self, api: Api, model: Option<&str>, kind: EngineKind, body: &Bytes) -> Option<PromptIds> {
        let text = match model {
            Some(model) => self.0.get(model)?,
            None if self.0.len() == 1 => self.0.first_key_value()?.1,
            None => return None,
        };
        let joint = if kind == EngineKind::Vllm { VLLM_JOINT } else { SGLANG_JOINT };
        let (text, body) = (text.clone(), body.clone());
        let small = body.len() <= SMALL_BYTES;
        let work = move || text_ids(&text, api, &body, joint, TimeZone::system().to_datetime(Timestamp::now()));
        // A panic in a tokenizer costs the hit, not the request.
        if small { work() } else { tokio::task::spawn_blocking(work).await.ok().flatten() }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
