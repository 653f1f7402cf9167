//! What an engine's token routes say, in one form.

use super::TokenRoute;
use plimsoll_pools::chunk::Usage;
use serde::Deserialize;
use serde_json::Value;

/// One event, or a whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// Tokens of this event, or all so far.
    pub ids: Vec<u32>,
    /// How many there are so far; `None` where `ids` are those of this event.
    pub so_far: Option<u64>,
    pub finish: Option<Finish>,
    pub usage: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finish {
    /// OpenAI's word.
    pub reason: String,
    /// `matched_stop`: a stop string, a token, or null.
    pub matched: Value,
    /// A token ended it, which is not part of the text.
    pub by_token: bool,
}

#[derive(Deserialize)]
struct Native {
    output_ids: Option<Vec<u32>>,
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    finish_reason: Option<Value>,
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<CompletionUsage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Value,
}

#[derive(Deserialize)]
struct CompletionUsage {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// # Errors
/// What is missing, for the operator.
pub(super) fn read(route: TokenRoute, data: &[u8]) -> Result<Piece, String> {
    match route {
        TokenRoute::Generate => native(data),
        TokenRoute::Completions => completion(data),
    }
}

fn native(data: &[u8]) -> Result<Piece, String> {
    let event: Native = serde_json::from_slice(data).map_err(|error| format!("the engine's event: {error}"))?;
    let meta = event.meta_info;
    let ids =
        event.output_ids.ok_or("the engine sends no `output_ids`: set `token_mode` of this model to passthrough")?;
    let finish = match meta.finish_reason {
        None | Some(Value::Null) => None,
        Some(finish) => {
            let reason = finish["type"].as_str().unwrap_or("stop").to_owned();
            let matched = finish.get("matched").cloned().unwrap_or_default();
            Some(Finish { by_token: reason == "stop" && matched.is_u64(), reason, matched })
        }
    };
    let usage = Usage {
        prompt_tokens: meta.prompt_tokens,
        completion_tokens: meta.completion_tokens,
        cached_tokens: meta.cached_tokens,
        cached_by_tier: None,
    };
    Ok(Piece { ids, so_far: Some(meta.completion_tokens), finish, usage: Some(usage) })
}

fn completion(data: &[u8]) -> Result<Piece, String> {
    let event: Completion = serde_json::from_slice(data).map_err(|error| format!("the engine's event: {error}"))?;
    let usage = event.usage.map(|usage| Usage {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
        cached_by_tier: None,
    });
    let Some(choice) = event.choices.into_iter().next() else { return Ok(Piece { usage, ..Piece::default() }) };
    let ids = match choice.token_ids {
        None if !choice.text.is_empty() => {
            return Err("the engine sends no `token_ids`: set `token_mode` of this model to passthrough".to_owned());
        }
        ids => ids.unwrap_or_default(),
    };
    let finish = choice.finish_reason.map(|reason| Finish {
        by_token: reason == "stop" && !choice.stop_reason.is_string(),
        reason,
        matched: choice.stop_reason,
    });
    Ok(Piece { ids, so_far: None, finish, usage })
}
