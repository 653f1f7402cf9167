//! From an engine's token ids to the chunks and answers of OpenAI's API.
//!
//! One engine event becomes no client event (half a character, the start of a stop string), or some. A shaper holds the text of one
//! answer and nothing else; the client's pace pulls it as it pulls the engine.

use super::engine_event::{self, Finish, Piece};
use super::reasoning::{Reasoning, Said};
use super::{Owned, TokenRoute};
use bytes::Bytes;
use plimsoll_pools::chunk::Usage;
use plimsoll_protocol::output_text::OutputText;
use plimsoll_protocol::sse::for_each_data;
use serde_json::{Value, json};

#[cfg(test)]
mod tests;

/// What is the same in all chunks of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub id: String,
    pub created_s: u64,
    pub model: String,
}

/// One answer in the making.
pub(crate) struct Shaper {
    route: TokenRoute,
    plain: bool,
    include_usage: bool,
    identity: Identity,
    text: OutputText,
    reasoning: Option<Reasoning>,
    /// Tokens taken.
    taken: u64,
    began: bool,
    finish: Option<Finish>,
    usage: Option<Usage>,
    over: bool,
}

const DONE: &str = "data: [DONE]\n\n";

impl Shaper {
    pub(crate) fn new(route: TokenRoute, owned: &Owned, identity: &Identity) -> Self {
        let ask = &owned.ask;
        Shaper {
            route,
            plain: ask.plain,
            include_usage: ask.include_usage,
            identity: identity.clone(),
            text: OutputText::new(&owned.tokenizer, &owned.ids, ask.skip_special_tokens, &ask.stops),
            reasoning: owned
                .reasoning
                .as_ref()
                .filter(|_| !ask.plain)
                .map(|rule| rule.begin(&owned.tokenizer, &owned.ids)),
            taken: 0,
            began: false,
            finish: None,
            usage: None,
            over: false,
        }
    }

    /// The client's events for some of the engine's.
    ///
    /// # Errors
    /// What is wrong with the engine's, in words.
    pub(crate) fn events(&mut self, events: &[u8]) -> Result<Bytes, String> {
        let mut out = String::new();
        let mut wrong = None;
        for_each_data(events, |data| {
            if wrong.is_some() || self.over {
                return;
            }
            if data.as_ref() == b"[DONE]" {
                self.end(&mut out);
            } else {
                wrong = self.event(&data, &mut out).err();
            }
        });
        match wrong {
            None => Ok(Bytes::from(out)),
            Some(why) => Err(why),
        }
    }

    /// The end of a stream whose engine left out its own.
    pub(crate) fn last_words(&mut self) -> Bytes {
        let mut out = String::new();
        if !self.over {
            self.end(&mut out);
        }
        Bytes::from(out)
    }

    /// The client's answer for the engine's.
    ///
    /// # Errors
    /// What is wrong with the engine's, in words.
    pub(crate) fn answer(&mut self, body: &[u8]) -> Result<Bytes, String> {
        let piece = engine_event::read(self.route, body)?;
        self.take(piece)?;
        let finish = self.finish.take().ok_or("the engine's answer has no finish reason")?;
        let mut said = Said { content: self.text.take().to_owned(), reasoning: None };
        if let Some(reasoning) = &mut self.reasoning {
            said = reasoning.whole(&said.content)?;
        }
        let mut choice = if self.plain {
            json!({"index": 0, "text": said.content})
        } else {
            json!({"index": 0, "message": {"role": "assistant", "content": said.content}})
        };
        if let Some(thought) = said.reasoning {
            choice["message"]["reasoning_content"] = json!(thought);
        }
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(finish.reason);
        choice["matched_stop"] = finish.matched;
        let object = if self.plain { "text_completion" } else { "chat.completion" };
        let mut answer = self.object(object, &json!([choice]));
        answer["usage"] = self.usage.map_or(Value::Null, usage_json);
        Ok(Bytes::from(answer.to_string()))
    }

    fn event(&mut self, data: &[u8], out: &mut String) -> Result<(), String> {
        if self.finish.is_some() {
            // What follows is usage.
            let piece = engine_event::read(self.route, data)?;
            self.usage = piece.usage.or(self.usage);
            return Ok(());
        }
        let piece = engine_event::read(self.route, data)?;
        self.take(piece)?;
        let mut said = Said { content: self.text.take().to_owned(), reasoning: None };
        if let Some(reasoning) = &mut self.reasoning {
            said = reasoning.more(&said.content, self.finish.is_some())?;
        }
        let Said { content: text, reasoning: thought } = said;
        let thought = thought.filter(|thought| !thought.is_empty());
        if !self.began && (!text.is_empty() || thought.is_some() || self.finish.is_some()) {
            self.began = true;
            if !self.plain {
                self.push(json!({"role": "assistant", "content": ""}), None, out);
            }
        }
        if let Some(thought) = thought {
            self.push(json!({"reasoning_content": thought}), None, out);
        }
        if !text.is_empty() {
            self.push(if self.plain { json!(text) } else { json!({"content": text}) }, None, out);
        }
        if let Some(finish) = self.finish.clone() {
            self.push(if self.plain { json!("") } else { json!({}) }, Some(&finish), out);
        }
        Ok(())
    }

    /// Takes tokens, finish and usage.
    fn take(&mut self, piece: Piece) -> Result<(), String> {
        let mut ids = match piece.so_far {
            None => piece.ids,
            Some(so_far) => self.news(piece.ids, so_far)?,
        };
        self.taken += ids.len() as u64;
        self.usage = piece.usage.or(self.usage);
        if let Some(finish) = &piece.finish
            && finish.by_token
            && (!finish.matched.is_u64() || finish.matched.as_u64() == ids.last().map(|id| u64::from(*id)))
        {
            ids.pop();
        }
        ids.into_iter().for_each(|id| self.text.push(id));
        if let Some(mut finish) = piece.finish {
            self.text.finish(finish.matched.as_str());
            if self.text.is_stopped() {
                finish.reason = "stop".to_owned();
            }
            self.finish = Some(finish);
        }
        Ok(())
    }

    /// SGLang sends all tokens so far, or with `--incremental-streaming-output` the new ones: the count tells.
    fn news(&self, mut ids: Vec<u32>, so_far: u64) -> Result<Vec<u32>, String> {
        let count = ids.len() as u64;
        if count == so_far && self.taken <= count {
            ids.drain(..self.taken as usize);
            return Ok(ids);
        }
        if self.taken + count == so_far {
            return Ok(ids);
        }
        Err(format!("the engine's event has {count} token ids of {so_far} so far, after {} before", self.taken))
    }

    fn object(&self, object: &str, choices: &Value) -> Value {
        let Identity { id, created_s, model } = &self.identity;
        json!({"id": id, "object": object, "created": created_s, "model": model, "choices": choices})
    }

    fn chunk(&self, choices: &Value) -> Value {
        self.object(if self.plain { "text_completion" } else { "chat.completion.chunk" }, choices)
    }

    fn push(&self, part: Value, finish: Option<&Finish>, out: &mut String) {
        let mut choice = json!({"index": 0});
        choice[if self.plain { "text" } else { "delta" }] = part;
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(finish.map(|finish| &finish.reason));
        if let Some(finish) = finish {
            choice["matched_stop"] = finish.matched.clone();
        }
        push_event(&self.chunk(&json!([choice])), out);
    }

    fn end(&mut self, out: &mut String) {
        self.over = true;
        if let Some(usage) = self.usage.filter(|_| self.include_usage) {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = usage_json(usage);
            push_event(&chunk, out);
        }
        out.push_str(DONE);
    }
}

fn push_event(chunk: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&chunk.to_string());
    out.push_str("\n\n");
}

fn usage_json(usage: Usage) -> Value {
    let mut json = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    });
    if let Some(cached) = usage.cached_tokens {
        json["prompt_tokens_details"] = json!({"cached_tokens": cached});
    }
    json
}
