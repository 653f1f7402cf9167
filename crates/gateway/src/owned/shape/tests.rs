use super::*;
use crate::owned::ask::Ask;
use crate::owned::reasoning::ReasoningRule;
use plimsoll_protocol::tokenizer::Tokenizer;
use plimsoll_settings::TokenMode;

/// Tokens 0 to 127 are ASCII, and two halves of a character after them.
fn tokenizer() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for byte in 0..128u8 {
        let spelled = match byte {
            b'!'..=b'~' => char::from(byte),
            0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap(),
            _ => char::from_u32(0x121).unwrap(),
        };
        vocab.insert(spelled.to_string(), json!(byte));
    }
    vocab.insert("Ã".to_owned(), json!(128));
    vocab.insert("©".to_owned(), json!(129));
    let json = json!({"version": "1.0", "normalizer": null, "post_processor": null, "pre_tokenizer": null,
        "added_tokens": [{"id": 130, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}});
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

fn shaper(route: TokenRoute, ask: Ask) -> Shaper {
    thinker(route, ask, None)
}

fn thinker(route: TokenRoute, ask: Ask, reasoning: Option<ReasoningRule>) -> Shaper {
    let ask = Ask { stream: true, skip_special_tokens: true, ..ask };
    let owned = Owned { ask, ids: vec![1, 2], tokenizer: tokenizer(), mode: TokenMode::Auto, reasoning };
    Shaper::new(route, &owned, &Identity { id: "chatcmpl-1".to_owned(), created_s: 7, model: "m".to_owned() })
}

fn native(ids: &[u32], so_far: u64, finish: &Value) -> String {
    let meta = json!({"finish_reason": finish, "prompt_tokens": 2, "completion_tokens": so_far, "cached_tokens": 1});
    format!("data: {}\n\n", json!({"text": "ignored", "output_ids": ids, "meta_info": meta}))
}

/// Deltas, finish reasons and usage of the client's events.
fn said(events: &[u8]) -> Vec<Value> {
    let mut said = Vec::new();
    for_each_data(events, |data| {
        said.push(match serde_json::from_slice::<Value>(&data) {
            Err(_) => json!(String::from_utf8_lossy(&data)),
            Ok(chunk) if chunk.get("usage").is_some() => chunk["usage"].clone(),
            Ok(chunk) => {
                assert_eq!(
                    (&chunk["id"], &chunk["created"], &chunk["model"]),
                    (&json!("chatcmpl-1"), &json!(7), &json!("m"))
                );
                let choice = &chunk["choices"][0];
                if choice["finish_reason"].is_null() {
                    choice["delta"].clone()
                } else {
                    choice["finish_reason"].clone()
                }
            }
        });
    });
    said
}

#[test]
fn a_cumulative_stream_and_an_incremental_one_are_the_same_to_a_client() {
    let stop = json!({"type": "stop", "matched": 130});
    let role = json!({"role": "assistant", "content": ""});
    for incremental in [false, true] {
        let mut shaper = shaper(TokenRoute::Generate, Ask { include_usage: true, ..Ask::default() });
        let mut step = |ids: &[u32], from: usize, finish: &Value| {
            let shown = if incremental { &ids[from..] } else { ids };
            said(&shaper.events(native(shown, ids.len() as u64, finish).as_bytes()).unwrap())
        };
        let ids: Vec<u32> = b"hi".iter().map(|byte| u32::from(*byte)).chain([128, 129, 130]).collect();
        assert_eq!(step(&ids[..2], 0, &Value::Null), [role.clone(), json!({"content": "hi"})]);
        assert!(step(&ids[..3], 2, &Value::Null).is_empty(), "half a character");
        assert_eq!(step(&ids, 3, &stop), [json!({"content": "é"}), json!("stop")]);
        let usage = json!({"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}});
        assert_eq!(said(&shaper.events(b"data: [DONE]\n\n").unwrap()), [usage, json!("[DONE]")]);
        assert!(shaper.last_words().is_empty());
    }
}

#[test]
fn a_stop_string_is_held_back_and_taken_out() {
    let mut shaper = shaper(TokenRoute::Generate, Ask { stops: vec!["END".to_owned()], ..Ask::default() });
    let ids: Vec<u32> = b"so END".iter().map(|byte| u32::from(*byte)).collect();
    let text: Vec<Value> = (1..=6)
        .flat_map(|to| {
            let finish = if to == 6 { json!({"type": "stop", "matched": "END"}) } else { Value::Null };
            said(&shaper.events(native(&ids[..to], to as u64, &finish).as_bytes()).unwrap())
        })
        .filter_map(|delta| delta.get("content").cloned().or(Some(delta)))
        .collect();
    assert_eq!(text, [json!(""), json!("s"), json!("o"), json!(" "), json!("stop")]);
    // Its engine forgot the end mark.
    assert_eq!(said(&shaper.last_words()), [json!("[DONE]")]);
}

#[test]
fn vllms_chunks_have_their_own_usage_and_end_token() {
    let mut shaper = shaper(TokenRoute::Completions, Ask { include_usage: true, ..Ask::default() });
    let chunk = |ids: &[u32], finish: &Value| {
        let choice = json!({"index": 0, "text": "x", "token_ids": ids, "finish_reason": finish, "stop_reason": null});
        format!("data: {}\n\n", json!({"choices": [choice], "usage": null}))
    };
    let mut events = |text: &str| said(&shaper.events(text.as_bytes()).unwrap());
    assert_eq!(events(&chunk(&[104], &Value::Null)).len(), 2);
    assert_eq!(events(&chunk(&[105, 130], &json!("stop"))), [json!({"content": "i"}), json!("stop")]);
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5});
    let last = format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage}));
    assert_eq!(events(&last), [usage, json!("[DONE]")]);
}

#[test]
fn an_answer_without_a_stream_and_one_that_is_none() {
    let mut chat = shaper(TokenRoute::Generate, Ask::default());
    let body = native(&[104, 105], 2, &json!({"type": "length", "length": 2}));
    let answer: Value = serde_json::from_slice(&chat.answer(&body.as_bytes()[6..]).unwrap()).unwrap();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"], json!({"role": "assistant", "content": "hi"}));
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["usage"]["total_tokens"]),
        (&json!("length"), &json!(4))
    );
    let mut plain = shaper(TokenRoute::Generate, Ask { plain: true, ..Ask::default() });
    let answer: Value = serde_json::from_slice(&plain.answer(&body.as_bytes()[6..]).unwrap()).unwrap();
    assert_eq!((&answer["object"], &answer["choices"][0]["text"]), (&json!("text_completion"), &json!("hi")));
    for wrong in [
        json!({"text": "hi", "meta_info": {"prompt_tokens": 1, "completion_tokens": 2}}),
        json!({"output_ids": [1], "meta_info": {"prompt_tokens": 1, "completion_tokens": 5, "finish_reason": {"type": "stop"}}}),
        json!({"output_ids": [1], "meta_info": {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": null}}),
        json!({"choices": []}),
    ] {
        assert!(shaper(TokenRoute::Generate, Ask::default()).answer(wrong.to_string().as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn what_the_model_thinks_is_said_apart() {
    let rule = || Some(ReasoningRule::named("qwen3").unwrap());
    let said_text = "<think>so</think>hi";
    let ids: Vec<u32> = said_text.bytes().map(u32::from).collect();
    let mut stream = thinker(TokenRoute::Generate, Ask::default(), rule());
    let mut parts = vec![String::new(); 2];
    for (to, step) in [(7, false), (9, false), (17, false), (18, false), (19, true)] {
        let finish = if step { json!({"type": "length", "length": 19}) } else { Value::Null };
        for delta in said(&stream.events(native(&ids[..to], to as u64, &finish).as_bytes()).unwrap()) {
            for (part, name) in parts.iter_mut().zip(["reasoning_content", "content"]) {
                part.push_str(delta[name].as_str().unwrap_or_default());
            }
        }
    }
    assert_eq!(parts, ["so", "hi"]);
    let body = native(&ids, 19, &json!({"type": "length", "length": 19}));
    let answer = thinker(TokenRoute::Generate, Ask::default(), rule()).answer(&body.as_bytes()[6..]).unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let message = json!({"role": "assistant", "content": "hi", "reasoning_content": "so"});
    assert_eq!(answer["choices"][0]["message"], message);
    // In a text completion it is text.
    let plain = Ask { plain: true, ..Ask::default() };
    let answer = thinker(TokenRoute::Generate, plain, rule()).answer(&body.as_bytes()[6..]).unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["choices"][0]["text"], said_text);
}
