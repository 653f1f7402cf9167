//! `/tokenize` and `/detokenize` (vLLM's forms; SGLang's are the same under `/v1`), so that whoever tokenises in front of
//! the engine can compare.

use super::State;
use super::errors::ApiError;
use super::fields::{Fields, IdLists, known_ids, token_ids};
use super::params::check_model;
use super::prompts::{beside, conversation, texts_or_ids};
use axum::Json;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// Ids of a `prompt` (text, or a list of texts) or of `messages`.
pub(crate) async fn tokenize(state: Arc<State>, body: Bytes) -> Result<Json<Value>, ApiError> {
    beside(body.len(), move || {
        let fields = Fields::parse(&body)?;
        check_model(&state, &fields)?;
        if fields.get("messages").is_some() {
            return Ok(Json(answer(&state, &conversation(&state, &fields)?)));
        }
        let prompts = texts_or_ids(&state, &fields, "prompt")?;
        if let (Some(Value::String(_)), [ids]) = (fields.get("prompt"), prompts.as_slice()) {
            return Ok(Json(answer(&state, ids)));
        }
        let counts: Vec<usize> = prompts.iter().map(Vec::len).collect();
        Ok(Json(json!({"count": counts, "max_model_len": state.context_tokens, "tokens": prompts})))
    })
    .await
}

fn answer(state: &State, ids: &[u32]) -> Value {
    json!({"count": ids.len(), "max_model_len": state.context_tokens, "tokens": ids})
}

/// Text of `tokens`, special ones written out unless `skip_special_tokens` is true. vLLM calls the text `prompt`, SGLang
/// `text`.
pub(crate) async fn detokenize(state: Arc<State>, body: Bytes) -> Result<Json<Value>, ApiError> {
    beside(body.len(), move || {
        let fields = Fields::parse(&body)?;
        check_model(&state, &fields)?;
        let ids = match (fields.ids("tokens"), fields.get("tokens")) {
            (Some(IdLists::One(ids)), _) => known_ids("tokens", ids, state.vocab_tokens)?,
            // Not all of them are ids, or there are none.
            (None, Some(Value::Array(list))) => token_ids("tokens", list, state.vocab_tokens)?,
            _ => return Err(ApiError::field("tokens", "expected token ids")),
        };
        let mut stream = state.text().stream(fields.flag("skip_special_tokens")?);
        ids.iter().for_each(|id| stream.push(*id));
        stream.finish();
        Ok(Json(json!({"prompt": stream.text(), "text": stream.text()})))
    })
    .await
}
