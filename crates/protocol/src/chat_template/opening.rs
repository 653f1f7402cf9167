//! What a template puts at a prompt's end only because an answer is to begin.
//!
//! The next turn of a session need not begin with the whole prompt of this one: many templates open the answer with `<think>`
//! and take the thoughts out of the history, opening and all. What stands before the opening comes again. A template does not
//! say what it is, so a conversation of one message is rendered with and without it.

use super::{ChatTemplate, Conversation};
use serde_json::json;
use std::sync::{Arc, OnceLock};

/// A short conversation, rendered twice.
#[derive(Debug)]
pub struct Opening {
    pub without: String,
    pub with: String,
}

impl Opening {
    /// The opening itself; empty where the template has none.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.with[self.without.len()..]
    }
}

/// The opening without further variables, once it has been asked for.
pub(super) type Plain = OnceLock<Option<Arc<Opening>>>;

impl ChatTemplate {
    /// The opening under the further variables of `conversation`; its messages do not matter. `None` where the template does
    /// not put it at the end, or refuses.
    #[must_use]
    pub fn opening(&self, conversation: &Conversation<'_>) -> Option<Arc<Opening>> {
        if conversation.extra.is_none_or(serde_json::Map::is_empty) {
            return self.opening.get_or_init(|| self.tried_opening(conversation)).clone();
        }
        self.tried_opening(conversation)
    }

    fn tried_opening(&self, conversation: &Conversation<'_>) -> Option<Arc<Opening>> {
        let messages = json!([{"role": "user", "content": "How deep is it?"}]);
        let render = |add_generation_prompt| {
            let (messages, tools, continue_final_message) = (&messages, None, false);
            let asked =
                Conversation { messages, tools, add_generation_prompt, continue_final_message, ..*conversation };
            self.render(&asked).ok()
        };
        let (with, without) = (render(true)?, render(false)?);
        with.starts_with(&without).then(|| Arc::new(Opening { without, with }))
    }
}
