//! The few fields of a request that a fake needs. Everything else is skipped unread, so that a 300 KB body costs little.

use crate::http1::Head;
use bytes::Bytes;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// SGLang's own `/generate`.
    Generate,
    Chat,
    Completions,
    Embeddings,
}

impl Route {
    pub(crate) fn of(path: &str) -> Option<Route> {
        match path {
            "/generate" => Some(Route::Generate),
            "/v1/chat/completions" => Some(Route::Chat),
            "/v1/completions" => Some(Route::Completions),
            "/v1/embeddings" => Some(Route::Embeddings),
            _ => None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct Fields {
    model: Option<String>,
    stream: Option<bool>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    sampling_params: Option<Sampling>,
    stream_options: Option<StreamOptions>,
    return_token_ids: Option<bool>,
    rid: Option<String>,
    request_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Sampling {
    max_new_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// A generation request as the fake sees it.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) route: Route,
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    /// The id in the body: `rid` (SGLang) or `request_id` (vLLM).
    pub(crate) body_id: Option<String>,
    /// `x-request-id`; wins over the body in vLLM.
    pub(crate) header_id: Option<String>,
    /// A quarter of the body's bytes; nothing here tokenises.
    pub(crate) prompt_tokens: u64,
}

impl Ask {
    pub(crate) fn parse(route: Route, head: &Head, body: &Bytes) -> Result<Ask, String> {
        let fields: Fields = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let options = fields.stream_options.unwrap_or_default();
        Ok(Ask {
            route,
            model: fields.model,
            stream: fields.stream.unwrap_or(false) && route != Route::Embeddings,
            max_tokens: fields
                .sampling_params
                .and_then(|sampling| sampling.max_new_tokens)
                .or(fields.max_completion_tokens)
                .or(fields.max_tokens),
            include_usage: options.include_usage.unwrap_or(false),
            continuous_usage: options.continuous_usage_stats.unwrap_or(false),
            return_token_ids: fields.return_token_ids.unwrap_or(false),
            body_id: fields.rid.or(fields.request_id),
            header_id: head.header("x-request-id").map(str::to_owned),
            prompt_tokens: (body.len() as u64 / 4).max(1),
        })
    }
}
