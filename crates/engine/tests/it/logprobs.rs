//! Log-probabilities and several answers per prompt, in all three forms.

use crate::client::{Server, config};
use plimsoll_engine::WORDS;
use serde_json::{Value, json};

fn words(count: usize) -> String {
    (0..count).map(|i| format!(" {}", WORDS[i * 7 % WORDS.len()])).collect()
}

fn of(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|entry| entry[0].as_f64().unwrap()).collect()
}

#[test]
fn native_form_streamed_and_not() {
    let server = Server::start(config());
    let body = json!({
        "text": words(40), "return_logprob": true, "logprob_start_len": 36, "top_logprobs_num": 2,
        "token_ids_logprob": [300, 65], "return_text_in_logprobs": true,
        "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": true},
    });
    let plain = server.ask("/generate", &body);
    let meta = &plain["meta_info"];
    let input = meta["input_token_logprobs"].as_array().unwrap();
    assert_eq!(input.len(), 4, "positions 36 to 39");
    let word = |i: usize| format!(" {}", WORDS[i * 7 % WORDS.len()]);
    assert_eq!(input[0], json!([null, 272 + 36 * 7, word(36)]), "the first one has none");
    assert!(input[1..].iter().all(|entry| entry[0].as_f64().unwrap() < 0.0));
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
    assert_eq!(meta["input_top_logprobs"][3].as_array().unwrap().len(), 2);
    let output = of(&meta["output_token_logprobs"]);
    let ids: Vec<&Value> = meta["output_token_logprobs"].as_array().unwrap().iter().map(|entry| &entry[1]).collect();
    assert_eq!(json!(ids), plain["output_ids"]);
    for (index, own) in output.iter().enumerate() {
        let top = of(&meta["output_top_logprobs"][index]);
        assert_eq!(top[0], *own, "greedy takes the most likely");
        assert!(top[0] >= top[1]);
        let asked = &meta["output_token_ids_logprobs"][index];
        assert_eq!((asked[0][1].clone(), asked[1].clone()), (json!(300), json!([-9999.0, 65, "A"])));
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = server.post("/generate", &streamed).events();
    let last = &events.last().unwrap()["meta_info"];
    for name in ["input_token_logprobs", "output_token_logprobs", "output_top_logprobs", "input_top_logprobs"] {
        assert_eq!(last[name], meta[name], "{name}");
    }
    // The same prompt again and only the output wanted: cached now, the same values, one entry without a value.
    let mut output_only = body;
    output_only["logprob_start_len"] = json!(-1);
    output_only["return_text_in_logprobs"] = json!(false);
    let again = server.ask("/generate", &output_only);
    assert_eq!(again["meta_info"]["cached_tokens"], 32);
    assert_eq!(again["meta_info"]["input_token_logprobs"], json!([[null, 272 + 39 * 7, null]]));
    assert_eq!(of(&again["meta_info"]["output_token_logprobs"]), output);
}

#[test]
fn more_than_can_be_held_is_refused_before_it_is_computed() {
    let server = Server::start(config());
    let native = |top: usize, ids: usize, prompt: usize, n: usize| {
        json!({
            "text": words(prompt), "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": top,
            "token_ids_logprob": vec![300; ids], "sampling_params": {"max_new_tokens": 8, "n": n},
        })
    };
    let completion = |prompt: usize, n: usize| json!({"prompt": words(prompt), "logprobs": 20, "echo": true, "max_tokens": 8, "n": n});
    // Some 40 values, 2 million log-probabilities.
    for (path, body) in [
        ("/generate", native(1024, 1024, 1000, 1)),
        ("/generate", native(0, 1024, 20, 128)),
        ("/v1/completions", completion(1000, 128)),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("log-probabilities are asked for"), "{message}");
    }
    server.wait_empty();
    for (path, body) in [("/generate", native(1024, 1024, 20, 2)), ("/v1/completions", completion(100, 4))] {
        server.ask(path, &body);
    }
}

#[test]
fn openai_forms_agree_with_the_native_one() {
    let server = Server::start(config());
    let prompt = words(10);
    let native = server.ask(
        "/generate",
        &json!({
            "text": prompt, "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 1,
            "sampling_params": {"temperature": 0, "max_new_tokens": 5, "ignore_eos": true},
        }),
    );
    let body = json!({
        "prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": true, "logprobs": 2, "echo": true,
    });
    let plain = server.ask("/v1/completions", &body);
    let choice = &plain["choices"][0];
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    let all: Vec<f64> =
        logprobs["token_logprobs"].as_array().unwrap()[1..].iter().map(|v| v.as_f64().unwrap()).collect();
    let input = of(&json!(native["meta_info"]["input_token_logprobs"].as_array().unwrap()[1..]));
    assert_eq!(all, [input, of(&native["meta_info"]["output_token_logprobs"])].concat());
    let text = choice["text"].as_str().unwrap();
    for (token, offset) in
        logprobs["tokens"].as_array().unwrap().iter().zip(logprobs["text_offset"].as_array().unwrap())
    {
        assert!(text[offset.as_u64().unwrap() as usize..].starts_with(token.as_str().unwrap()));
    }
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 15);
    assert_eq!(logprobs["top_logprobs"][14].as_object().unwrap().len(), 2, "the one taken is the most likely");
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.post("/v1/completions", &streamed).events();
    for name in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        let joined: Vec<Value> =
            events.iter().flat_map(|event| event["choices"][0]["logprobs"][name].as_array().unwrap().clone()).collect();
        assert_eq!(json!(joined), logprobs[name], "{name}");
    }
    let streamed_text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed_text, text);
}

#[test]
fn chat_form_streamed_and_not() {
    let server = Server::start(config());
    let body = json!({
        "messages": [{"role": "user", "content": words(5)}], "max_tokens": 7, "temperature": 0, "ignore_eos": true,
        "logprobs": true, "top_logprobs": 3,
    });
    let plain = server.ask("/v1/chat/completions", &body);
    let content = plain["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 7);
    let text: String = content.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(plain["choices"][0]["message"]["content"], text);
    let bytes: Vec<u64> = content
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap())
        .collect();
    assert_eq!(bytes, text.bytes().map(u64::from).collect::<Vec<_>>());
    for entry in &content {
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
        assert_eq!(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["return_tokens_as_token_ids"] = json!(true);
    let events = server.post("/v1/chat/completions", &streamed).events();
    let joined: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(joined.len(), 7);
    for (with_id, with_text) in joined.iter().zip(&content) {
        assert_eq!(with_id["logprob"], with_text["logprob"]);
        assert!(with_id["token"].as_str().unwrap().starts_with("token_id:"));
    }
    let mut without = body;
    without["logprobs"] = json!(false);
    without["top_logprobs"] = json!(0);
    assert_eq!(server.ask("/v1/chat/completions", &without)["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn several_choices_are_those_of_their_seeds() {
    let server = Server::start(config());
    let completion = |n: Value, seed: u64, stream: bool| {
        json!({
            "prompt": [words(20), words(21)], "max_tokens": 8, "seed": seed, "ignore_eos": true, "n": n, "stream": stream,
            "stream_options": {"include_usage": true},
        })
    };
    let single: Vec<Value> =
        (0..3).map(|i| server.ask("/v1/completions", &completion(json!(1), 50 + i, false))).collect();
    let three = server.ask("/v1/completions", &completion(json!(3), 50, false));
    for index in 0..6 {
        let choice = &three["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], single[index % 3]["choices"][index / 3]["text"], "choice {index}");
    }
    assert_ne!(three["choices"][0]["text"], three["choices"][1]["text"]);
    assert_eq!(three["usage"]["prompt_tokens"], 41, "a prompt counts once");
    assert_eq!(three["usage"]["completion_tokens"], 48);
    let events = server.post("/v1/completions", &completion(json!(3), 50, true)).events();
    for index in 0..6 {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = own.map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(three["choices"][index]["text"], text);
    }
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 48);
    let native = json!({"text": words(20), "rid": "r", "sampling_params": {"max_new_tokens": 8, "sampling_seed": 50, "ignore_eos": true, "n": 2}});
    let native = server.ask("/generate", &native);
    assert_eq!(native[1]["text"], three["choices"][1]["text"]);
    assert_eq!(native[1]["meta_info"]["id"], "r_1");
    let chat =
        json!({"messages": [{"role": "user", "content": " ship"}], "n": 2, "max_tokens": 5, "seed": 1, "stream": true});
    let events = server.post("/v1/chat/completions", &chat).events();
    for index in 0..2 {
        let own: Vec<&Value> = events.iter().filter(|event| event["choices"][0]["index"] == index).collect();
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_ne!(own.last().unwrap()["choices"][0]["finish_reason"], Value::Null);
    }
}

#[test]
fn penalties_and_biases_change_what_is_said() {
    let server = Server::start(config());
    let ask = |extra: Value| {
        let mut body = json!({"prompt": words(6), "max_tokens": 40, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.ask("/v1/completions", &body);
        answer["choices"][0]["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>()
    };
    let distinct = |ids: &[u64]| ids.iter().collect::<std::collections::BTreeSet<_>>().len();
    let pushed = json!({"logit_bias": {"400": 7}});
    let free = ask(pushed.clone());
    assert!(distinct(&free) < 40, "a favoured word comes back");
    let mut penalised = pushed;
    penalised["presence_penalty"] = json!(2);
    penalised["frequency_penalty"] = json!(2);
    penalised["repetition_penalty"] = json!(2);
    assert!(distinct(&ask(penalised)) > distinct(&free));
    assert_eq!(ask(json!({"logit_bias": {"400": 100}})), [400; 40]);
    assert_eq!(
        ask(json!({"logit_bias": {"400": 100}, "ignore_eos": false, "stop_token_ids": [400], "min_tokens": 3})).last(),
        Some(&400)
    );
    let held = ask(json!({"logit_bias": {"400": 100}, "stop_token_ids": [400], "min_tokens": 3}));
    assert_eq!((held.len(), held[..3].contains(&400)), (4, false), "a stop token is held back before the minimum");
}

#[test]
fn sglext_and_running_usage() {
    let server = Server::start(config());
    let body = json!({
        "messages": [{"role": "user", "content": words(30)}], "max_tokens": 4, "temperature": 0, "ignore_eos": true,
        "return_cached_tokens_details": true, "return_token_ids": true,
    });
    let headers = "x-sglext-return-input-ids: 1\r\nx-sglext-return-output-ids: 1\r\n";
    let ask = |body: &Value| server.send("POST", "/v1/chat/completions", headers, &body.to_string());
    let plain = ask(&body).json();
    assert_eq!(plain["sglext"]["cached_tokens_details"], json!({"device": 0, "host": 0}));
    assert_eq!(plain["sglext"]["input_ids"], plain["prompt_token_ids"]);
    assert_eq!(plain["sglext"]["output_ids"], json!([plain["choices"][0]["token_ids"]]));
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["return_token_ids"] = json!(false);
    streamed["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = ask(&streamed).events();
    let cached = (plain["usage"]["prompt_tokens"].as_u64().unwrap() - 1) / 16 * 16;
    let [.., sglext, usage] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(sglext["choices"], json!([]));
    assert_eq!(sglext["sglext"]["output_ids"], plain["sglext"]["output_ids"]);
    assert_eq!(sglext["sglext"]["cached_tokens_details"]["device"], cached);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    let counts: Vec<u64> = events.iter().filter_map(|event| event["usage"]["completion_tokens"].as_u64()).collect();
    assert!(counts.is_sorted() && counts.len() >= 3 && counts.last() == Some(&4), "{counts:?}");
    let completion = json!({"prompt": words(30), "max_tokens": 1, "return_cached_tokens_details": true});
    assert_eq!(
        server.ask("/v1/completions", &completion)["sglext"],
        json!({"cached_tokens_details": {"device": 0, "host": 0}})
    );
}
