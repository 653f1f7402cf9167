//! The same request as an engine's token route takes it.

use super::ask::Ask;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// SGLang's names of what differs.
const SGLANG: [(&str, &str); 2] = [("seed", "sampling_seed"), ("min_tokens", "min_new_tokens")];

/// For `/generate`.
pub(super) fn generate(
    ask: &Ask,
    ids: &[u32],
    recommended: bool,
    rid: &str,
    rank_keys: &[&str],
    rank: Option<u16>,
    priority: Option<i64>,
) -> Bytes {
    let mut sampling = Map::new();
    for (name, value) in ask.sampling.iter().chain(ask.recommended.iter().filter(|_| recommended)) {
        let name = SGLANG.iter().find(|(open, _)| open == name).map_or(*name, |(_, own)| own);
        sampling.insert(name.to_owned(), value.clone());
    }
    // Left out it would be 128 there; on the chat route it is what fits.
    sampling.insert("max_new_tokens".to_owned(), json!(ask.max_tokens));
    sampling.insert("skip_special_tokens".to_owned(), json!(ask.skip_special_tokens));
    if !ask.stops.is_empty() {
        sampling.insert("stop".to_owned(), json!(ask.stops));
    }
    let mut body = Map::new();
    body.insert("rid".to_owned(), json!(rid));
    for key in rank_keys.iter().filter(|_| rank.is_some()) {
        body.insert((*key).to_owned(), json!(rank));
    }
    body.insert("stream".to_owned(), json!(ask.stream));
    body.insert("sampling_params".to_owned(), Value::Object(sampling));
    if let Some(priority) = priority {
        body.insert("priority".to_owned(), json!(priority));
    }
    with_ids(body, "input_ids", ids)
}

/// For `/v1/completions` with `return_token_ids`.
pub(super) fn completions(ask: &Ask, ids: &[u32], model: Option<&str>, priority: Option<i64>) -> Bytes {
    let mut body = Map::new();
    if let Some(model) = model {
        body.insert("model".to_owned(), json!(model));
    }
    for (name, value) in &ask.sampling {
        body.insert((*name).to_owned(), value.clone());
    }
    // Left out it would be 16 there; on the chat route it is what fits.
    body.insert("max_tokens".to_owned(), json!(ask.max_tokens));
    body.insert("skip_special_tokens".to_owned(), json!(ask.skip_special_tokens));
    body.insert("return_token_ids".to_owned(), json!(true));
    body.insert("stream".to_owned(), json!(ask.stream));
    if ask.stream {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if !ask.stops.is_empty() {
        body.insert("stop".to_owned(), json!(ask.stops));
    }
    if let Some(priority) = priority {
        body.insert("priority".to_owned(), json!(priority));
    }
    with_ids(body, "prompt", ids)
}

/// Ids are most of the body: written without a value for each.
fn with_ids(body: Map<String, Value>, name: &str, ids: &[u32]) -> Bytes {
    let mut text = Value::Object(body).to_string();
    text.truncate(text.len() - 1);
    text.reserve(ids.len() * 7 + 32);
    let _ = write!(text, ",\"{name}\":[");
    for (at, id) in ids.iter().enumerate() {
        let _ = write!(text, "{}{id}", if at > 0 { "," } else { "" });
    }
    text.push_str("]}");
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> Ask {
        Ask {
            stops: vec!["x".to_owned()],
            skip_special_tokens: true,
            sampling: vec![("temperature", json!(0.5)), ("seed", json!(7)), ("min_tokens", json!(2))],
            recommended: vec![("top_k", json!(20))],
            ..Ask::default()
        }
    }

    #[test]
    fn each_engine_in_its_own_words() {
        let parsed = |body: Bytes| serde_json::from_slice::<Value>(&body).unwrap();
        let body = parsed(generate(&ask(), &[1, 22], false, "r", &["routed_dp_rank"], Some(3), None));
        let sampling = json!({"temperature": 0.5, "sampling_seed": 7, "min_new_tokens": 2, "max_new_tokens": null,
            "skip_special_tokens": true, "stop": ["x"]});
        assert_eq!(
            body,
            json!({"rid": "r", "routed_dp_rank": 3, "stream": false, "sampling_params": sampling, "input_ids": [1, 22]})
        );
        let body = parsed(generate(&ask(), &[], true, "r", &["routed_dp_rank"], None, Some(4)));
        assert_eq!((&body["sampling_params"]["top_k"], body.get("routed_dp_rank")), (&json!(20), None));
        assert_eq!(body["priority"], 4);
        let ask = Ask { stream: true, max_tokens: Some(9), ..ask() };
        let body = parsed(completions(&ask, &[5], Some("m"), Some(-1)));
        assert_eq!(
            body,
            json!({"model": "m", "temperature": 0.5, "seed": 7, "min_tokens": 2, "max_tokens": 9, "skip_special_tokens": true,
                "return_token_ids": true, "stream": true, "stream_options": {"include_usage": true}, "stop": ["x"], "priority": -1,
                "prompt": [5]})
        );
    }
}
