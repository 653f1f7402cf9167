//! Between text and tokens: tokenizer and chat template of the model that is served, the tiny one's or a folder's.
//!
//! Conversations are rendered to text and then tokenised, as stock engines do it, so that a gateway which renders them
//! itself reaches the same token ids.

use crate::model::ModelConfig;
use crate::tokenizer::{IM_END, Tokenizer, VOCAB};
use plimsoll_protocol::chat_template::ChatTemplate;
use plimsoll_protocol::tokenizer::{Detokenizer, FolderError, ModelText, Pieces, TokenizerError};
use std::path::Path;
use std::sync::{Arc, LazyLock};

pub mod export;
#[cfg(test)]
mod tests;

/// Cheap to clone. The default is the tiny model's.
#[derive(Clone, Debug)]
pub struct Text(Arc<Inner>);

#[derive(Debug)]
enum Inner {
    Tiny { tokenizer: Tokenizer, pieces: Arc<Pieces>, template: Option<Box<ChatTemplate>> },
    Folder(Box<ModelText>),
}

/// ChatML with tools in Qwen's manner. The prompt of turn *n + 1* starts with the prompt and the answer of turn *n*:
/// multi-turn prefix reuse.
pub const TINY_TEMPLATE: &str = include_str!("../data/chat_template.jinja");

static TINY: LazyLock<Text> = LazyLock::new(|| {
    let tokenizer = Tokenizer::new();
    let pieces = Arc::new(Pieces::byte_level((0..VOCAB as u32).map(crate::tokenizer::bytes)));
    let specials = vec![("eos_token".to_owned(), "<|im_end|>".to_owned())];
    let template = ChatTemplate::compile(TINY_TEMPLATE, specials);
    debug_assert!(template.is_ok(), "{template:?}");
    Text(Arc::new(Inner::Tiny { tokenizer, pieces, template: template.ok().map(Box::new) }))
});

impl Default for Text {
    fn default() -> Self {
        TINY.clone()
    }
}

impl Text {
    /// Reads `tokenizer.json` and what belongs to it from a model's folder.
    ///
    /// # Errors
    /// Names the file: missing, broken, or with ids that the model does not have.
    pub fn open(folder: &Path, model: &ModelConfig) -> Result<Self, FolderError> {
        Ok(Text(Arc::new(Inner::Folder(Box::new(ModelText::open(folder, model.vocab_tokens)?)))))
    }

    /// Whether it is the tiny model's own.
    #[must_use]
    pub fn is_tiny(&self) -> bool {
        matches!(&*self.0, Inner::Tiny { .. })
    }

    /// The id that ends an answer by the tokenizer's own account.
    #[must_use]
    pub fn end_token(&self) -> Option<u32> {
        match &*self.0 {
            Inner::Tiny { .. } => Some(IM_END),
            Inner::Folder(text) => text.eos_token,
        }
    }

    /// Token ids. `add_special_tokens` adds what the tokenizer puts around plain prompts, such as `<bos>`.
    ///
    /// # Errors
    /// When a pattern of the tokenizer gives up on the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        match &*self.0 {
            Inner::Tiny { tokenizer, .. } => Ok(tokenizer.encode(text)),
            Inner::Folder(own) => own.tokenizer.encode(text, add_special_tokens),
        }
    }

    /// Text of token ids, special tokens written out. Bytes that are not UTF-8 become U+FFFD, unknown ids nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream(false);
        ids.iter().for_each(|id| stream.push(*id));
        stream.finish();
        stream.into_text()
    }

    /// Decodes an answer token by token.
    #[must_use]
    pub fn stream(&self, skip_special_tokens: bool) -> Detokenizer {
        match &*self.0 {
            Inner::Tiny { pieces, .. } => Detokenizer::over(Arc::clone(pieces), skip_special_tokens),
            Inner::Folder(text) => text.tokenizer.detokenizer(skip_special_tokens),
        }
    }

    /// The bytes that a token stands for; nothing for unknown ids.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match &*self.0 {
            Inner::Tiny { .. } => crate::tokenizer::bytes(id).0,
            Inner::Folder(text) => text.tokenizer.token_bytes(id),
        }
    }

    /// The chat template for a conversation with or without tools. `None`: the model takes no conversations.
    #[must_use]
    pub fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        match &*self.0 {
            Inner::Tiny { template, .. } => template.as_deref(),
            Inner::Folder(text) => text.template(with_tools),
        }
    }
}
