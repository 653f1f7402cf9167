use super::*;
use serde_json::{Value, json};

fn openai(text: &str) -> ChunkFacts {
    inspect_openai_chunk(text.as_bytes())
}

fn native(text: &str) -> ChunkFacts {
    inspect_sglang_chunk(text.as_bytes())
}

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Option<Usage> {
    Some(Usage { prompt_tokens: prompt, completion_tokens: completion, cached_tokens: cached, cached_by_tier: None })
}

const DELTA: &str = r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null}]}"#;

#[test]
fn a_delta_is_output_and_nothing_else() {
    let facts = openai(DELTA);
    assert_eq!(facts, ChunkFacts { tokens: true, ..ChunkFacts::default() });
}

#[test]
fn the_role_chunk_and_empty_deltas_are_no_output() {
    for delta in [
        r#"{"role":"assistant","content":""}"#,
        r#"{"role":"assistant","content":null}"#,
        r#"{"content":"","reasoning_content":null,"tool_calls":null}"#,
        r#"{"content":"","tool_calls":[ ]}"#,
        "{}",
    ] {
        let facts = openai(&format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#));
        assert!(!facts.tokens, "{delta}");
    }
}

#[test]
fn output_has_many_forms() {
    for part in [
        r#""delta":{"content":"x"}"#,
        r#""delta": {"content": "x"}"#,
        r#""delta":{"reasoning_content":"x","content":null}"#,
        r#""delta":{"reasoning":"x"}"#,
        r#""delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}"#,
        r#""text":"x""#,
        r#""text":"","token_ids":[17]"#,
    ] {
        assert!(openai(&format!(r#"{{"choices":[{{"index":0,{part},"finish_reason":null}}]}}"#)).tokens, "{part}");
    }
    // Log probabilities also have a `content`, and prompt ids are not output.
    let facts = openai(
        r#"{"choices":[{"text":"","logprobs":{"content":[{"token":"x"}]},"prompt_token_ids":[1,2],"finish_reason":null}]}"#,
    );
    assert!(!facts.tokens);
}

#[test]
fn generated_text_that_looks_like_the_protocol_is_only_text() {
    let text = json!({"choices": [{"index": 0, "delta": {"content":
        "{\"error\": {\"code\": 500}, \"finish_reason\": \"stop\", \"usage\":{\"prompt_tokens\":1,\"total_tokens\":2}, \\\":"},
        "finish_reason": null}]});
    for text in [text.to_string(), serde_json::to_string_pretty(&text).unwrap()] {
        assert_eq!(openai(&text), ChunkFacts { tokens: true, ..ChunkFacts::default() });
    }
}

#[test]
fn a_string_that_begins_with_a_colon_is_no_key() {
    for content in [":", ":null", ": {", "\":", "\\"] {
        let text = json!({"choices": [{"delta": {"content": content}, "finish_reason": null}]}).to_string();
        assert_eq!(openai(&text), ChunkFacts { tokens: true, ..ChunkFacts::default() }, "{text}");
    }
}

#[test]
fn finish_reasons_by_index() {
    let facts = openai(
        r#"{"choices":[{"index":2,"delta":{},"finish_reason":"stop"},{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}"#,
    );
    assert!(facts.tokens);
    assert_eq!(
        facts.finishes.as_slice(),
        [Finish { index: 2, reason: FinishReason::Stop }, Finish { index: 0, reason: FinishReason::Length }]
    );
    for (name, reason) in [
        ("tool_calls", FinishReason::ToolCalls),
        ("content_filter", FinishReason::ContentFilter),
        ("repetition", FinishReason::Other("repetition".into())),
    ] {
        let facts = openai(&format!(r#"{{"choices":[{{"text":"","finish_reason": "{name}"}}]}}"#));
        assert_eq!(facts.finishes[0].reason, reason);
        assert_eq!(facts.finishes[0].reason.as_str(), name);
    }
}

#[test]
fn usage_with_and_without_cached_tokens() {
    let facts = openai(
        r#"{"choices":[],"usage":{"prompt_tokens":100,"total_tokens":116,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":96}}}"#,
    );
    assert_eq!((facts.usage, facts.tokens), (usage(100, 16, Some(96)), false));
    let facts = openai(
        r#"{"choices": [], "usage": {"prompt_tokens": 100, "total_tokens": 116, "completion_tokens": 16, "prompt_tokens_details": null}}"#,
    );
    assert_eq!(facts.usage, usage(100, 16, None));
    // vLLM's continuous usage: on every chunk, beside the output.
    let facts = openai(
        r#"{"choices":[{"index":0,"text":"x","finish_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}"#,
    );
    assert_eq!((facts.usage, facts.tokens), (usage(5, 1, None), true));
    assert_eq!(openai(r#"{"choices":[],"usage":null}"#).usage, None);
    assert_eq!(openai(r#"{"choices":[],"usage":{"prompt_tokens":"5"}}"#).usage, None);
}

#[test]
fn errors_inside_a_200_stream() {
    // SGLang: an abort with an HTTP status turned into an error object; vLLM has the same form.
    let facts = openai(
        r#"{"error": {"object": "error", "message": "The request queue is full.", "type": "Service Unavailable", "param": null, "code": 503}}"#,
    );
    let error = facts.error.unwrap();
    assert_eq!((error.status, error.message.as_str()), (Some(503), "The request queue is full."));
    assert!(error.is_overload() && !error.is_client_fault());
    let error = openai(r#"{"object":"error","message":"too long","code":400}"#).error.unwrap();
    assert!(error.is_client_fault());
    assert_eq!(openai(r#"{"error":"boom"}"#).error.unwrap().message, "boom");
    assert_eq!(openai(r#"{"error":{"code":"rate_limit_exceeded","message":"m"}}"#).error.unwrap().status, None);
    assert_eq!(openai(r#"{"error":null,"choices":[]}"#).error, None);
}

#[test]
fn aborts_that_look_like_ordinary_finishes() {
    let facts = openai(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#);
    assert_eq!(facts.abort, Some(AbortInfo::default()));
    assert_eq!(facts.finishes[0].reason, FinishReason::Abort);
    let facts = openai(r#"{"choices":[{"index":0,"text":"","finish_reason":"error"}]}"#);
    assert!(facts.error.is_some());
}

#[test]
fn done_and_garbage() {
    for (text, kind) in [
        ("[DONE]", ChunkKind::Done),
        (" [DONE] ", ChunkKind::Done),
        (DELTA, ChunkKind::Event),
        ("", ChunkKind::Garbage),
        ("<html>", ChunkKind::Garbage),
        ("{\"choices\":[{\"te", ChunkKind::Garbage),
        ("[1]", ChunkKind::Garbage),
        // Shaped like an object, but must be parsed and is none.
        ("{\"finish_reason\":\"stop\",}", ChunkKind::Garbage),
        ("{\"error\":{}", ChunkKind::Garbage),
    ] {
        assert_eq!(openai(text).kind, kind, "{text}");
        assert_eq!(native(text).kind, kind, "{text}");
    }
}

const NATIVE: &str = r#"{"text":" the cat","output_ids":[262,4143],"meta_info":{"id":"0123","finish_reason":null,"prompt_tokens":100,"weight_version":"default","num_retractions":0,"completion_tokens":2,"cached_tokens":96,"cached_tokens_details":{"device":96,"host":0},"dp_rank":null}}"#;

#[test]
fn a_native_event_has_counts_each_time() {
    let facts = native(NATIVE);
    let told = usage(100, 2, Some(96)).map(|usage| Usage { cached_by_tier: Some([96, 0, 0]), ..usage });
    assert_eq!(facts, ChunkFacts { tokens: true, usage: told, ..ChunkFacts::default() });
    let empty = NATIVE.replace(" the cat", "").replace("262,4143", "");
    assert!(!native(&empty).tokens);
}

#[test]
fn native_finishes() {
    let facts = native(&NATIVE.replace(r#""finish_reason":null"#, r#""finish_reason":{"type":"length","length":2}"#));
    assert_eq!(facts.finishes.as_slice(), [Finish { index: 0, reason: FinishReason::Length }]);
    assert!(facts.tokens && facts.abort.is_none());
    let batched = NATIVE.replace(r#""dp_rank":null}}"#, r#""dp_rank":null},"index":3}"#);
    assert_eq!(native(&batched).index, 3);
    let facts =
        native(&batched.replace(r#""finish_reason":null"#, r#""finish_reason": {"type": "stop", "matched": 2}"#));
    assert_eq!(facts.finishes.as_slice(), [Finish { index: 3, reason: FinishReason::Stop }]);
    let old = native(&NATIVE.replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#));
    assert_eq!(old.finishes[0].reason, FinishReason::Stop);
}

#[test]
fn native_abort_in_a_200_stream() {
    let abort =
        r#"{"type":"abort","message":"The request queue is full.","status_code":503,"err_type":"ServiceUnavailable"}"#;
    let facts = native(&NATIVE.replace("null,\"prompt", &format!("{abort},\"prompt")));
    let abort = facts.abort.unwrap();
    assert_eq!((abort.status_code, abort.err_type.as_deref()), (Some(503), Some("ServiceUnavailable")));
    assert!(abort.is_overload());
    assert!(!facts.tokens, "text on an abort may be a repetition");
    assert_eq!(facts.finishes[0].reason, FinishReason::Abort);
    let told =
        native(&NATIVE.replace("null,\"prompt", r#"{"type":"abort","message":"Abort in waiting queue"},"prompt"#));
    assert!(!told.abort.unwrap().is_overload());
    let invalid =
        native(r#"{"error":{"message":"input too long","type":"BadRequestError","code":400,"retryable":false}}"#);
    assert!(invalid.error.unwrap().is_client_fault());
}

#[test]
fn a_batch_is_complete_when_each_index_has_finished() {
    let finish = |i: u32| {
        native(
            &NATIVE
                .replace("null,\"prompt", r#"{"type":"stop"},"prompt"#)
                .replace("\"dp_rank\":null}}", &format!("\"dp_rank\":null}},\"index\":{i}}}")),
        )
    };
    let mut counter = FinishCounter::new(3);
    for index in [0, 0, 2, 2] {
        counter.observe(&finish(index));
        counter.observe(&native(NATIVE));
    }
    assert_eq!((counter.finished(), counter.is_complete()), (2, false));
    counter.observe(&finish(1));
    assert!(counter.is_complete());
    let mut large = FinishCounter::new(0);
    large.observe(&finish(u32::MAX));
    assert!(!large.is_complete(), "an absurd index is not counted");
    large.observe(&finish(700));
    assert!(large.is_complete());
}

#[test]
fn whole_openai_answers() {
    let facts = inspect_openai_answer(br#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"},{"index":1,"message":{},"finish_reason":"abort"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}"#).unwrap();
    assert_eq!(facts.usage, usage(3, 4, Some(0)));
    assert_eq!(facts.finishes.len(), 2);
    assert!(facts.abort.is_some());
    let facts = inspect_openai_answer(
        br#"{"object":"list","data":[{"embedding":[0.1,0.2],"index":0}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#,
    )
    .unwrap();
    assert_eq!((facts.usage, facts.finishes.len()), (usage(5, 0, None), 0));
    let facts =
        inspect_openai_answer(br#"{"object":"error","message":"The model `x` does not exist.","code":404}"#).unwrap();
    assert_eq!(facts.error.unwrap().status, Some(404));
    assert_eq!(inspect_openai_answer(br#"{"detail":"Not Found"}"#).unwrap().error.unwrap().message, "Not Found");
}

#[test]
fn bodies_that_are_no_answers() {
    for inspect in [inspect_openai_answer, inspect_sglang_answer] {
        assert_eq!(inspect(b" \n"), Err(AnswerError::Empty));
        assert_eq!(inspect(b"<html><body>502</body></html>"), Err(AnswerError::Html));
        assert!(matches!(inspect(b"{\"choices\":[{\"index\":0"), Err(AnswerError::NotJson(_))));
        assert!(matches!(inspect(b"\xff\xfe\x00garbage"), Err(AnswerError::NotJson(_))));
        assert!(matches!(inspect(b"{\"choices\":[1],}"), Err(AnswerError::NotJson(_))));
        assert_eq!(inspect(b"17"), Err(AnswerError::Shape));
    }
    assert_eq!(inspect_openai_answer(b"[{}]"), Err(AnswerError::Shape));
    assert_eq!(inspect_openai_answer(br#"{"choices":"none"}"#), Err(AnswerError::Shape));
}

#[test]
fn whole_native_answers() {
    let one = NATIVE.replace("null,\"prompt", r#"{"type":"length","length":2},"prompt"#);
    let facts = inspect_sglang_answer(one.as_bytes()).unwrap();
    let by_tier =
        |usage: Option<Usage>, device| usage.map(|usage| Usage { cached_by_tier: Some([device, 0, 0]), ..usage });
    assert_eq!((facts.usage, facts.finishes.len()), (by_tier(usage(100, 2, Some(96)), 96), 1));
    let facts = inspect_sglang_answer(format!("[{one}, {one}]").as_bytes()).unwrap();
    assert_eq!(facts.usage, by_tier(usage(200, 4, Some(192)), 192));
    assert_eq!(facts.finishes.iter().map(|f| f.index).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn error_bodies_always_have_a_message() {
    for (body, status, message) in [
        (&b"{\"error\":{\"message\":\"m\",\"code\":503}}"[..], Some(503), "m"),
        (b"{\"error\":{\"code\":503}}", Some(503), "the engine gave no reason"),
        (b"{\"detail\":[{\"loc\":[\"body\"]}]}", None, "[{\"loc\":[\"body\"]}]"),
        (b"Internal Server Error", None, "Internal Server Error"),
        (b"<html>", None, "the engine answered HTML, not JSON"),
        (b"\x00\x01", None, "the engine's answer is not JSON"),
        (b"", None, "the engine's answer is empty"),
        (b"{}", None, "the engine's answer has no error object"),
    ] {
        let error = inspect_error_body(body);
        assert_eq!((error.status, error.message.as_str()), (status, message));
    }
    let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "\u{e9}".repeat(5000));
    assert!(inspect_error_body(long.as_bytes()).message.len() <= 2048);
}

fn all_keys<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                out.push(key);
                all_keys(value, out);
            }
        }
        Value::Array(items) => items.iter().for_each(|v| all_keys(v, out)),
        _ => {}
    }
}

proptest::proptest! {
    /// The scan sees exactly the keys that a JSON parser sees, whatever the strings hold.
    #[test]
    fn the_scan_sees_the_keys_of_a_json_parser(value in json_values(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let mut expected = Vec::new();
        all_keys(&value, &mut expected);
        // A string that begins with a colon yields structure, never a name.
        let is_name = |k: &&str| k.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let found: Vec<_> =
            scan::keys(text.as_bytes()).map(|(k, _)| std::str::from_utf8(k).unwrap()).filter(is_name).collect();
        proptest::prop_assert_eq!(found, expected);
    }

    /// Whatever arrives, inspection ends and says something.
    #[test]
    fn inspection_survives_any_bytes(data in proptest::collection::vec(proptest::num::u8::ANY, 0..200), cut in 0usize..300) {
        for text in [&data[..], &DELTA.as_bytes()[..cut.min(DELTA.len())], &NATIVE.as_bytes()[..cut.min(NATIVE.len())]] {
            let _ = inspect_openai_chunk(text);
            let _ = inspect_sglang_chunk(text);
            let _ = inspect_openai_answer(text);
            let _ = inspect_sglang_answer(text);
            proptest::prop_assert!(!inspect_error_body(text).message.is_empty());
        }
    }
}

fn json_values() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let text = r#"[a-z:"\\{}\[\], \n\u{e9}]{0,12}"#;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,12}", inner), 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Found by fuzzing: derived readers take an array for a struct.
#[test]
fn arrays_in_place_of_objects_are_no_answer() {
    for body in [r#"[null,null,null,null,"error","x",400]"#, r#"{"choices":[[0,"stop"]]}"#] {
        assert_eq!(inspect_openai_answer(body.as_bytes()), Err(AnswerError::Shape), "{body}");
    }
    for body in [r#"[[0,null,null,null]]"#, r#"{"meta_info":["stop",1,2,3]}"#] {
        assert_eq!(inspect_sglang_answer(body.as_bytes()), Err(AnswerError::Shape), "{body}");
    }
}

/// Found by fuzzing: the parser does not look into strings that it skips, and the answer's text is one of those.
#[test]
fn broken_utf8_in_a_skipped_field_is_no_json() {
    let body = b"{\"choices\":[{\"message\":{\"content\":\"st\xff\"},\"finish_reason\":\"stop\"}]}";
    for inspect in [inspect_openai_answer, inspect_sglang_answer] {
        assert_eq!(inspect(body), Err(AnswerError::NotJson("byte 37 is not UTF-8".into())));
    }
}

/// Found by fuzzing: native routes knew the error object's older form in the company of other keys only.
#[test]
fn an_error_object_of_the_older_form_is_one_on_native_routes_too() {
    let body = r#"{"object":"error","message":"no such model","code":404}"#;
    let wanted = Some(UpstreamError { status: Some(404), message: "no such model".into() });
    assert_eq!(native(body).error, wanted);
    assert_eq!(inspect_sglang_answer(body.as_bytes()).unwrap().error, wanted);
}

#[test]
fn cached_tokens_are_read_by_tier_where_an_engine_says_it() {
    let native = br#"{"text":"ab","meta_info":{"prompt_tokens":256,"completion_tokens":2,"cached_tokens":224,"cached_tokens_details":{"device":128, "host":96, "storage_backend":"file", "storage": 7}},"index":0}"#;
    let openai = br#"{"choices":[],"usage":{"prompt_tokens":256,"completion_tokens":2},"sglext":{"cached_tokens_details":{"device":128,"host":96}}}"#;
    let tiers = |usage: Option<Usage>| usage.and_then(|usage| usage.cached_by_tier);
    assert_eq!(tiers(inspect_sglang_chunk(native).usage), Some([128, 96, 7]));
    assert_eq!(tiers(inspect_sglang_answer(native).unwrap().usage), Some([128, 96, 7]));
    assert_eq!(tiers(inspect_openai_chunk(openai).usage), Some([128, 96, 0]));
    assert_eq!(tiers(inspect_openai_answer(openai).unwrap().usage), Some([128, 96, 0]));
    let unknown = br#"{"choices":[],"usage":{"prompt_tokens":256,"completion_tokens":2},"sglext":{"cached_tokens_details":null}}"#;
    assert_eq!(tiers(inspect_openai_chunk(unknown).usage), None);
    assert_eq!(tiers(inspect_openai_answer(unknown).unwrap().usage), None);
}

#[test]
fn counts_that_cannot_be_true_are_not_known() {
    let usage = |prompt: &str, cached: &str| {
        let body = format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":2,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#
        );
        inspect_openai_answer(body.as_bytes()).unwrap().usage
    };
    assert_eq!(usage("100", "100").unwrap().cached_tokens, Some(100));
    assert_eq!(usage("100", "101").unwrap().cached_tokens, None);
    assert_eq!(usage("100", "18446744073709551615").unwrap().cached_tokens, None);
    assert_eq!(usage("18446744073709551615", "0"), None);
}
