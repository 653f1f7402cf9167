use super::*;
use bytes::Bytes;
use plimsoll_protocol::request::scan;
use serde_json::json;

#[expect(clippy::needless_pass_by_value, reason = "JSON is written in place")]
fn asked(extra: Value) -> Result<Ask, &'static str> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let body = Bytes::from(body.to_string());
    let config = json!({"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]});
    read(Api::Chat, &scan(Api::Chat, &body).unwrap(), &body, config.as_object().unwrap())
}

#[test]
fn what_is_understood_is_taken_over() {
    let ask = asked(json!({
        "stream": true, "stream_options": {"include_usage": true}, "max_completion_tokens": 9, "temperature": 0, "seed": -3,
        "stop": "END", "skip_special_tokens": false, "stop_token_ids": [5], "priority": -1, "n": 1, "logprobs": false, "tools": [],
        "tool_choice": "auto", "response_format": {"type": "text"}, "user": "u", "top_p": null, "min_tokens": 0,
        "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low",
        "service_tier": "flex",
    }))
    .unwrap();
    assert_eq!((ask.stream, ask.include_usage, ask.max_tokens, ask.skip_special_tokens), (true, true, Some(9), false));
    assert_eq!(ask.stops, ["END"]);
    let mut sampling = ask.sampling;
    sampling.sort_by_key(|(name, _)| *name);
    assert_eq!(
        sampling,
        [("min_tokens", json!(0)), ("seed", json!(-3)), ("stop_token_ids", json!([5])), ("temperature", json!(0))]
    );
    // Only what the request leaves open.
    assert_eq!(ask.recommended, [("top_k", json!(20))]);
    let bare = asked(json!({})).unwrap();
    assert_eq!((bare.max_tokens, bare.skip_special_tokens, bare.recommended.len()), (None, true, 2));
}

#[test]
fn what_is_not_is_the_engines() {
    for (extra, why) in [
        (json!({"n": 2}), "n"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"top_logprobs": 3}), "logprobs"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"tool_choice": "required"}), "tools"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}}), "stream_options"),
        (json!({"min_tokens": 4, "stop": ["x"]}), "min_tokens"),
        (json!({"temperature": "hot"}), "value"),
        (json!({"seed": 0.5}), "value"),
        (json!({"stop": [""]}), "value"),
        (json!({"stop": [7]}), "value"),
        (json!({"stop_token_ids": ["x"]}), "value"),
        (json!({"skip_special_tokens": 1}), "value"),
        (json!({"messages": []}), "value"),
        (json!({"messages": [{"role": "zebra", "content": "a"}]}), "value"),
        (json!({"messages": [{"content": "a"}]}), "value"),
        (json!({"chat_template_kwargs": {"add_generation_prompt": false}}), "value"),
        (json!({"chat_template_kwargs": {"messages": []}}), "value"),
        (json!({"continue_final_message": true, "add_generation_prompt": true}), "value"),
        (json!({"max_tokens": 0}), "value"),
        (json!({"cache_salt": "t"}), "field"),
        (json!({"regex": "a*"}), "field"),
        (json!({"something_new": {}}), "field"),
    ] {
        assert_eq!(asked(extra.clone()).err(), Some(why), "{extra}");
    }
}

#[test]
fn a_text_completion_is_one_too() {
    let read = |body: &'static str| {
        let body = Bytes::from_static(body.as_bytes());
        read(Api::Completions, &scan(Api::Completions, &body).unwrap(), &body, &Map::new())
    };
    assert!(read(r#"{"prompt": "a", "echo": false, "best_of": 1}"#).unwrap().plain);
    assert_eq!(read(r#"{"prompt": "a", "echo": true}"#).err(), Some("field"));
    assert_eq!(read(r#"{"prompt": "a", "logprobs": 0}"#).err(), Some("logprobs"));
    assert_eq!(read(r#"{"prompt": ["a", "b"]}"#).err(), Some("n"));
}
