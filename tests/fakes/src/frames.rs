//! The bytes of answers in each family's form.
//!
//! SGLang's own route sends the text and ids **so far** in every chunk, and a chunk may carry two tokens; vLLM sends one
//! token a chunk (`sglang.md` §1.4, `engines.md` §2). Text of token `i` is ` t<i>`, its id `1000 + i`, so a test can say
//! exactly what an answer must be ([`text_of`]).

use crate::Dialect;
use crate::ask::{Ask, Route};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Text of the tokens `from..to`, each padded to `pad` bytes.
pub(crate) fn text_of(from: u64, to: u64, pad: usize) -> String {
    let mut text = String::new();
    for token in from..to {
        let start = text.len();
        let _ = write!(text, " t{token}");
        while text.len() - start < pad {
            text.push('x');
        }
    }
    text
}

fn ids_of(from: u64, to: u64) -> Vec<u64> {
    (from..to).map(|token| 1_000 + token).collect()
}

/// Why an answer ends.
#[derive(Clone, Debug)]
pub(crate) enum Finish {
    Length,
    Stop,
    Abort { status: Option<u16>, message: &'static str },
}

impl Finish {
    fn openai(&self) -> &'static str {
        match self {
            Finish::Length => "length",
            Finish::Stop => "stop",
            Finish::Abort { .. } => "abort",
        }
    }

    fn native(&self, tokens: u64) -> Value {
        match self {
            Finish::Length => json!({"type": "length", "length": tokens}),
            Finish::Stop => json!({"type": "stop", "matched": 2}),
            Finish::Abort { status, message } => json!({
                "type": "abort", "message": message, "status_code": status,
                "err_type": status.map(|_| "AbortError"),
            }),
        }
    }
}

/// Writes one answer's frames.
pub(crate) struct Frames {
    dialect: Dialect,
    route: Route,
    id: String,
    model: String,
    created: u64,
    prompt_tokens: u64,
    continuous_usage: bool,
    return_token_ids: bool,
    pad: usize,
    /// Everything before the content of a plain token chunk, built once.
    prefix: String,
}

impl Frames {
    pub(crate) fn new(dialect: Dialect, ask: &Ask, id: String, model: &str, pad: usize) -> Frames {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let object = if ask.route == Route::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut prefix = json!({"id": id, "object": object, "created": created, "model": model}).to_string();
        prefix.pop();
        Frames {
            dialect,
            route: ask.route,
            id,
            model: model.to_owned(),
            created,
            prompt_tokens: ask.prompt_tokens,
            continuous_usage: ask.continuous_usage,
            return_token_ids: ask.return_token_ids,
            pad,
            prefix,
        }
    }

    pub(crate) fn is_sglang(&self) -> bool {
        self.dialect == Dialect::Sglang
    }

    fn usage(&self, tokens: u64) -> Value {
        json!({"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 0}})
    }

    fn meta_info(&self, tokens: u64, finish: Option<&Finish>) -> Value {
        json!({"id": self.id, "finish_reason": finish.map(|finish| finish.native(tokens)),
            "prompt_tokens": self.prompt_tokens, "weight_version": "default", "completion_tokens": tokens,
            "cached_tokens": 0, "num_retractions": 0, "dp_rank": null, "e2e_latency": 0.001})
    }

    /// The chat stream's first chunk, which only names the role.
    pub(crate) fn opening(&self) -> Option<String> {
        (self.route == Route::Chat).then(|| {
            let mut event = format!("data: {}", self.prefix);
            event.push_str(r#","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#);
            event.push_str("}\n\n");
            event
        })
    }

    /// The chunk that brings the tokens `from..to`.
    pub(crate) fn tokens(&self, from: u64, to: u64, finish: Option<&Finish>) -> String {
        let text = if self.route == Route::Generate { text_of(0, to, self.pad) } else { text_of(from, to, self.pad) };
        if self.route == Route::Generate {
            let chunk = json!({"text": text, "output_ids": ids_of(0, to), "meta_info": self.meta_info(to, finish)});
            return format!("data: {chunk}\n\n");
        }
        let mut event = format!("data: {}", self.prefix);
        let finish = finish.map_or_else(|| "null".to_owned(), |finish| format!("\"{}\"", finish.openai()));
        let _ = if self.route == Route::Chat {
            write!(
                event,
                r#","choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{finish}"#
            )
        } else {
            write!(event, r#","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{finish}"#)
        };
        if self.return_token_ids {
            let _ = write!(event, r#","token_ids":{}"#, json!(ids_of(from, to)));
            if from == 0 {
                let _ = write!(event, r#","prompt_token_ids":[1,2,3]"#);
            }
        }
        event.push_str(match self.dialect {
            Dialect::Sglang => r#","matched_stop":null}]"#,
            Dialect::Vllm => r#","stop_reason":null}]"#,
            Dialect::Openai => "}]",
        });
        if self.continuous_usage {
            let _ = write!(event, r#","usage":{}"#, self.usage(to));
        }
        event.push_str("}\n\n");
        event
    }

    /// The chunk without choices that `include_usage` asks for.
    pub(crate) fn usage_frame(&self, tokens: u64) -> Option<String> {
        (self.route != Route::Generate).then(|| {
            let mut event = format!("data: {}", self.prefix);
            let _ = write!(event, r#","choices":[],"usage":{}"#, self.usage(tokens));
            event.push_str("}\n\n");
            event
        })
    }

    /// A chunk that ends the stream early: on OpenAI routes and in vLLM a finish reason, on `/generate` an abort record.
    pub(crate) fn abort_frame(&self, tokens: u64, finish: &Finish) -> String {
        self.tokens(tokens, tokens, Some(finish))
    }

    /// An error object as an event.
    pub(crate) fn error_frame(&self, status: u16, message: &str) -> String {
        format!("data: {}\n\n", error_body(self.dialect, status, message, true))
    }

    /// The answer in one piece.
    pub(crate) fn whole(&self, tokens: u64, finish: &Finish) -> Value {
        let text = text_of(0, tokens, self.pad);
        match self.route {
            Route::Generate => {
                json!({"text": text, "output_ids": ids_of(0, tokens), "meta_info": self.meta_info(tokens, Some(finish))})
            }
            Route::Embeddings => json!({"object": "list", "model": self.model,
                "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.125]}],
                "usage": {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}}),
            Route::Chat => {
                json!({"id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null,
                    "finish_reason": finish.openai()}],
                "usage": self.usage(tokens)})
            }
            Route::Completions => {
                let mut choice = json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish.openai()});
                if self.return_token_ids {
                    choice["token_ids"] = json!(ids_of(0, tokens));
                    choice["prompt_token_ids"] = json!([1, 2, 3]);
                }
                json!({"id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
                    "choices": [choice], "usage": self.usage(tokens)})
            }
        }
    }
}

/// The family's error object. SGLang's OpenAI routes answer it flat with `object: error`.
pub(crate) fn error_body(dialect: Dialect, status: u16, message: &str, in_stream: bool) -> Value {
    let kind = match status {
        400 => "BadRequestError",
        404 => "NotFoundError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        _ => "InternalServerError",
    };
    match dialect {
        Dialect::Sglang if in_stream => {
            json!({"error": {"message": message, "type": kind, "code": status, "retryable": false}})
        }
        Dialect::Sglang => json!({"object": "error", "message": message, "type": kind, "param": null, "code": status}),
        Dialect::Vllm | Dialect::Openai => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
        }
    }
}
