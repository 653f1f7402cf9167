//! ChatML, the chat template of the tiny model, written directly.
//!
//! Rendered to text and then tokenised, as stock engines do, so that a gateway which renders it itself reaches the same
//! token ids. The prompt of turn *n + 1* starts with the prompt and the answer of turn *n*: multi-turn prefix reuse.

/// One message after its content parts were joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: String,
    pub content: String,
}

/// Roles that the template knows.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Text of a conversation that is ready for the assistant's next turn.
#[must_use]
pub fn render(messages: &[Message]) -> String {
    let mut text = String::with_capacity(messages.iter().map(|m| m.content.len() + 40).sum());
    for message in messages {
        text.push_str("<|im_start|>");
        text.push_str(&message.role);
        text.push('\n');
        text.push_str(&message.content);
        text.push_str("<|im_end|>\n");
    }
    text.push_str("<|im_start|>assistant\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into() }
    }

    #[test]
    fn the_next_turn_extends_the_last_one() {
        let tokenizer = Tokenizer::new();
        let mut turns = vec![message("system", " ship load"), message("user", " run")];
        let mut first = tokenizer.encode(&render(&turns));
        // What the engine generated after the prompt: words and the end token.
        first.extend(tokenizer.encode(" load ship<|im_end|>"));
        turns.push(message("assistant", " load ship"));
        turns.push(message("user", " ship"));
        let second = tokenizer.encode(&render(&turns));
        assert!(second.starts_with(&first));
    }
}
