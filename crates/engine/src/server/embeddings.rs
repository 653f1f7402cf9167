//! OpenAI's `/v1/embeddings`: the mean of the last hidden states, normalised to length 1.

use super::State;
use super::body::RankHeader;
use super::errors::ApiError;
use super::fields::Fields;
use super::params::{check_model, errand, rids, room_after};
use super::prompts::{beside, texts_or_ids};
use super::sse;
use super::urgency::SloHeaders;
use crate::request::{Request, Task};
use axum::Json;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn handle(
    state: Arc<State>,
    (pinned, slo): (RankHeader, SloHeaders),
    body: Bytes,
) -> Result<Response, ApiError> {
    let shared = Arc::clone(&state);
    let (fields, inputs) = beside(body.len(), move || {
        let fields = Fields::parse(&body)?;
        check_model(&shared, &fields)?;
        let inputs = texts_or_ids(&shared, &fields, "input")?;
        Ok::<_, ApiError>((fields, inputs))
    })
    .await?;
    // OpenAI's own client asks for base64 unless told otherwise.
    let packed = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "must be float or base64")),
    };
    if fields.get("dimensions").is_some() {
        return Err(ApiError::field("dimensions", "is not supported by this engine"));
    }
    let errand = errand(&fields, pinned.or_body(&fields)?, slo)?;
    let ids = rids(&fields, inputs.len())?;
    let mut requests = Vec::with_capacity(inputs.len());
    for (prompt, rid) in inputs.into_iter().zip(ids) {
        room_after(&state, "input", prompt.len())?;
        requests.push(Request { rid, prompt, task: Task::Embed, ..errand.clone() });
    }
    let mut data = Vec::with_capacity(requests.len());
    let mut tokens = 0;
    for (index, mut ticket) in state.submit_all(&fields, requests).await?.into_iter().enumerate() {
        let whole = sse::collect(&state, &mut ticket).await;
        let Some(vector) = whole.embedding else {
            let error = whole.finish.as_ref().and_then(ApiError::of_finish);
            return Err(error.unwrap_or_else(|| ApiError::new(503, "aborted", "the request was aborted")));
        };
        tokens += ticket.prompt_tokens;
        let embedding = if packed { packed_floats(&vector) } else { json!(vector) };
        data.push(json!({"object": "embedding", "index": index, "embedding": embedding}));
    }
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": state.config.model_name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
    .into_response())
}

/// Little-endian floats of 32 bits, one behind the other, as base64.
fn packed_floats(vector: &[f32]) -> Value {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    Value::String(STANDARD.encode(bytes))
}
