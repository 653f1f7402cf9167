//! What answers look like, streamed and not, on both faces.

use crate::client::{Server, config};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_engine::{EngineConfig, WORDS};
use serde_json::{Value, json};

fn words(count: usize, from: usize) -> String {
    (0..count).map(|i| format!(" {}", WORDS[(from + i * 7) % WORDS.len()])).collect()
}

fn greedy(tokens: usize) -> Value {
    json!({"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true})
}

#[test]
fn generate_streams_everything_so_far_and_the_same_as_without_stream() {
    let server = Server::start(config());
    let body = json!({"text": words(40, 3), "sampling_params": greedy(25), "rid": "one"});
    let plain = server.ask("/generate", &body);
    assert_eq!(plain["meta_info"]["prompt_tokens"], 40);
    assert_eq!(plain["meta_info"]["completion_tokens"], 25);
    assert_eq!(plain["meta_info"]["id"], "one");
    assert_eq!(plain["meta_info"]["finish_reason"], json!({"type": "length", "length": 25}));
    assert_eq!(plain["text"].as_str().unwrap().split(' ').count(), 26, "words, one per token");
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.post("/generate", &streamed).events();
    for pair in events.windows(2) {
        let [before, after] = pair else { unreachable!() };
        assert!(after["text"].as_str().unwrap().starts_with(before["text"].as_str().unwrap()));
        assert_eq!(before["meta_info"]["finish_reason"], Value::Null);
    }
    let last = events.last().unwrap();
    assert_eq!(last["text"], plain["text"]);
    assert_eq!(last["output_ids"], plain["output_ids"]);
    assert_eq!(last["meta_info"]["cached_tokens"], 32, "two full pages of the same prompt");
    assert_eq!(last["meta_info"]["cached_tokens_details"], json!({"device": 32, "host": 0}));
    assert!(last["meta_info"]["e2e_latency"].as_f64().unwrap() > 0.0);
    server.wait_empty();
}

#[test]
fn generate_streams_deltas_when_configured() {
    let server = Server::start(EngineConfig { incremental_streaming: true, ..config() });
    let body = json!({"input_ids": [300, 301, 302], "sampling_params": greedy(12)});
    let plain = server.ask("/generate", &body);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.post("/generate", &streamed).events();
    let text: String = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(text, plain["text"].as_str().unwrap());
    let ids: Vec<Value> = events.iter().flat_map(|event| event["output_ids"].as_array().unwrap().clone()).collect();
    assert_eq!(json!(ids), plain["output_ids"]);
}

#[test]
fn a_batch_answers_like_its_parts() {
    let server = Server::start(config());
    let texts = [words(5, 0), words(20, 9), words(33, 50)];
    let alone: Vec<Value> = texts
        .iter()
        .map(|text| server.ask("/generate", &json!({"text": text, "sampling_params": greedy(9)}))["text"].clone())
        .collect();
    let batch = server.ask("/generate", &json!({"text": texts, "rid": "b", "sampling_params": greedy(9)}));
    let together: Vec<Value> = batch.as_array().unwrap().iter().map(|one| one["text"].clone()).collect();
    assert_eq!(alone, together);
    assert_eq!(batch[2]["meta_info"]["id"], "b_2");
    let per_input = json!([greedy(2), greedy(3), greedy(4)]);
    let events =
        server.post("/generate", &json!({"text": texts, "stream": true, "sampling_params": per_input})).events();
    for index in 0..3u64 {
        let last = events.iter().rfind(|event| event["index"] == index).unwrap();
        assert_eq!(last["meta_info"]["completion_tokens"], index + 2);
        assert!(alone[index as usize].as_str().unwrap().starts_with(last["text"].as_str().unwrap()));
    }
}

#[test]
fn chat_streams_the_same_answer_with_usage() {
    let server = Server::start(config());
    let body = json!({
        "model": "plimsoll-tiny", "temperature": 0, "max_tokens": 20, "ignore_eos": true,
        "messages": [{"role": "system", "content": words(30, 1)}, {"role": "user", "content": [{"type": "text", "text": " ship"}]}],
    });
    let plain = server.ask("/v1/chat/completions", &body);
    assert_eq!(plain["object"], "chat.completion");
    assert_eq!(plain["choices"][0]["finish_reason"], "length");
    assert_eq!(plain["usage"]["completion_tokens"], 20);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    streamed["return_token_ids"] = json!(true);
    let events = server.post("/v1/chat/completions", &streamed).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let prompt_ids = events[0]["prompt_token_ids"].as_array().unwrap();
    assert_eq!(plain["usage"]["prompt_tokens"], prompt_ids.len());
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(plain["choices"][0]["message"]["content"], text);
    let ids: usize = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array()).map(Vec::len).sum();
    assert_eq!(ids, 20);
    let usage = events.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    let cached = prompt_ids.len().saturating_sub(1) / 16 * 16;
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
}

#[test]
fn completions_take_texts_and_ids_and_return_ids() {
    let server = Server::start(config());
    let base = json!({"temperature": 0, "max_tokens": 6, "ignore_eos": true, "return_token_ids": true});
    let with = |prompt: Value, stream: bool| {
        let mut body = base.clone();
        body["prompt"] = prompt;
        body["stream"] = json!(stream);
        body
    };
    let by_text = server.ask("/v1/completions", &with(json!(format!(" {} {}", WORDS[0], WORDS[1])), false));
    let by_ids = server.ask("/v1/completions", &with(json!([272, 273]), false));
    assert_eq!(by_text["choices"][0]["text"], by_ids["choices"][0]["text"]);
    assert_eq!(by_ids["choices"][0]["prompt_token_ids"], json!([272, 273]));
    let several = server.ask("/v1/completions", &with(json!([[272, 273], [400]]), false));
    assert_eq!(several["choices"][0]["token_ids"], by_ids["choices"][0]["token_ids"]);
    assert_eq!(several["choices"][1]["index"], 1);
    assert_eq!(
        several["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    let events = server.post("/v1/completions", &with(json!([272, 273]), true)).events();
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], json!([272, 273]));
    assert!(events[1..].iter().all(|event| event["choices"][0].get("prompt_token_ids").is_none()));
    let ids: Vec<Value> =
        events.iter().flat_map(|event| event["choices"][0]["token_ids"].as_array().unwrap().clone()).collect();
    assert_eq!(json!(ids), by_ids["choices"][0]["token_ids"]);
}

#[test]
fn stop_strings_end_an_answer_and_do_not_leak_into_the_stream() {
    let server = Server::start(config());
    let body = json!({"prompt": words(8, 2), "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    let free = server.ask("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned();
    let list: Vec<&str> = free.split(' ').skip(1).collect();
    let stop = format!("{} {}", &list[4][list[4].len() - 1..], &list[5][..1]);
    let at = free.find(&stop).unwrap();
    let mut stopped = body;
    stopped["stop"] = json!([stop, "never"]);
    let plain = server.ask("/v1/completions", &stopped);
    assert_eq!(plain["choices"][0]["text"], &free[..at]);
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");
    assert_eq!(plain["choices"][0]["matched_stop"], stop);
    stopped["stream"] = json!(true);
    let events = server.post("/v1/completions", &stopped).events();
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, free[..at]);
    // The id of a token works too, and counts as generated.
    let ids =
        server.ask("/generate", &json!({"text": words(8, 2), "sampling_params": greedy(12)}))["output_ids"].clone();
    let mut params = greedy(12);
    params["stop_token_ids"] = json!([ids[3]]);
    let first = ids.as_array().unwrap().iter().position(|id| *id == ids[3]).unwrap();
    let stopped = server.ask("/generate", &json!({"text": words(8, 2), "sampling_params": params}));
    assert_eq!(stopped["meta_info"]["finish_reason"], json!({"type": "stop", "matched": ids[3]}));
    assert_eq!(stopped["output_ids"].as_array().unwrap().len(), first + 1);
}

#[test]
fn seeds_repeat_and_salts_separate() {
    let server = Server::start(config());
    let sampled = |seed: u64| {
        let body = json!({"prompt": words(20, 4), "max_tokens": 15, "seed": seed, "temperature": 0.9, "top_p": 0.9, "top_k": 50});
        server.ask("/v1/completions", &body)["choices"][0]["text"].clone()
    };
    assert_eq!(sampled(1), sampled(1));
    assert_ne!(sampled(1), sampled(2));
    let cached = |salt: Value| {
        let body = json!({"text": words(50, 5), "cache_salt": salt, "sampling_params": greedy(1)});
        server.ask("/generate", &body)["meta_info"]["cached_tokens"].clone()
    };
    assert_eq!((cached(json!("a")), cached(json!("a"))), (json!(0), json!(48)));
    assert_eq!((cached(json!("b")), cached(Value::Null)), (json!(0), json!(0)));
    assert_eq!(server.post("/flush_cache", &json!({})).status, 200);
    assert_eq!(cached(json!("a")), 0);
}

#[test]
fn embeddings_are_real() {
    let server = Server::start(config());
    let body = json!({"model": "plimsoll-tiny", "input": [words(30, 0), words(29, 0) + " ship", " anchor"]});
    let answer = server.ask("/v1/embeddings", &body);
    let vector = |i: usize| -> Vec<f64> {
        answer["data"][i]["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let cosine = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert!((cosine(&vector(0), &vector(0)) - 1.0).abs() < 1e-5);
    assert!(cosine(&vector(0), &vector(1)) > cosine(&vector(0), &vector(2)), "similar texts are nearer");
    assert_eq!(answer["usage"]["prompt_tokens"], 61);
    let again = server.ask("/v1/embeddings", &body);
    assert_eq!(again["data"], answer["data"]);
    // As OpenAI's own client asks for them.
    let packed = json!({"model": "plimsoll-tiny", "input": " anchor", "encoding_format": "base64"});
    let packed = server.ask("/v1/embeddings", &packed);
    let bytes = STANDARD.decode(packed["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let floats = bytes.as_chunks::<4>().0.iter().map(|four| f64::from(f32::from_le_bytes(*four)));
    assert!(floats.zip(vector(2)).all(|(packed, plain)| (packed - plain).abs() < 1e-6) && bytes.len() > 4);
}
