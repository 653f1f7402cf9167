//! From block ids to request bodies.
//!
//! Traces go out as `/v1/completions`, whose prompt is the exact text. Generated sessions are conversations: they go
//! out as `/v1/chat/completions` with the answers that the engine really gave in the history, as an agent would send
//! them, so that a prefix cache can also hit on what was generated.

use plimsoll_workload::{Call, Prompt, Session, Synth};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

/// The history of one session.
#[derive(Debug)]
pub(super) struct Conversation {
    prefix_blocks: u64,
    messages: Vec<Message>,
    before: Option<Prompt>,
    answer: String,
}

#[derive(Serialize)]
struct Body<'a, M: Serialize> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<M>,
    max_tokens: u64,
    temperature: f32,
    /// Known to SGLang and vLLM: answers have the length that the workload says.
    ignore_eos: bool,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

fn body<M: Serialize>(model: &str, prompt: Option<String>, messages: Option<M>, max_tokens: u64) -> Vec<u8> {
    let stream_options = StreamOptions { include_usage: true };
    let body =
        Body { model, prompt, messages, max_tokens, temperature: 0.0, ignore_eos: true, stream: true, stream_options };
    // Strings and numbers only: it cannot fail, and an empty body would be answered with an error that is counted.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// Path and body of a call as plain text.
pub(super) fn completion(model: &str, synth: &Synth<'_>, call: &Call) -> (&'static str, Vec<u8>) {
    let max_tokens = synth.scale().output(call.output_tokens);
    ("/v1/completions", body::<()>(model, Some(synth.prompt(&call.prompt)), None, max_tokens))
}

impl Conversation {
    pub(super) fn new(session: &Session) -> Self {
        let prefix_blocks = session.prefix_blocks.unwrap_or(0);
        Conversation { prefix_blocks, messages: Vec::new(), before: None, answer: String::new() }
    }

    /// Path and body of the session's next call.
    pub(super) fn next(&mut self, model: &str, synth: &Synth<'_>, call: &Call) -> (&'static str, Vec<u8>) {
        let prompt = &call.prompt;
        let continues = self.before.as_ref().is_some_and(|before| before.common_blocks(prompt) == before.full_blocks());
        let answer = std::mem::take(&mut self.answer);
        let said = match self.before.as_ref().filter(|_| continues) {
            Some(before) => {
                // The answer stands for the head of what is new; the rest is what the tool or the person said.
                let answered = answer.split_whitespace().count() as u64;
                self.messages.push(Message { role: "assistant", content: answer });
                synth.prompt_words(before) + answered
            }
            None => {
                let system = prompt.leading(self.prefix_blocks);
                let content = synth.part(&system, None, prompt.block_tokens, 0);
                self.messages = vec![Message { role: "system", content }];
                self.prefix_blocks * synth.words_per_block(prompt.block_tokens)
            }
        };
        let mut content = synth.part(&prompt.runs, prompt.tail, prompt.block_tokens, said);
        if content.is_empty() {
            // Scaled down, a turn can be shorter than the answer before it; a message is never empty.
            content = synth.part(&prompt.runs, prompt.tail, prompt.block_tokens, synth.prompt_words(prompt) - 1);
        }
        self.messages.push(Message { role: "user", content });
        self.before = Some(prompt.clone());
        let max_tokens = synth.scale().output(call.output_tokens);
        ("/v1/chat/completions", body(model, None, Some(&self.messages), max_tokens))
    }

    pub(super) fn answered(&mut self, text: String) {
        self.answer = text;
    }
}

#[cfg(test)]
mod tests;
