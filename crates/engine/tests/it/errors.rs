//! Bad input: each a 400 that names the field, nothing lost.

use crate::client::{Server, config};
use plimsoll_engine::EngineConfig;
use serde_json::{Value, json};

#[test]
fn wrong_fields_are_named() {
    let server = Server::start(EngineConfig { context_tokens: 128, ..config() });
    let long = " ship".repeat(128);
    let chat = "/v1/chat/completions";
    let completions = "/v1/completions";
    let generate = "/generate";
    let cases: Vec<(&str, Value, &str)> = vec![
        (completions, json!({"prompt": " ship", "max_tokens": 0}), "max_tokens"),
        (completions, json!({"prompt": " ship", "max_tokens": -3}), "max_tokens"),
        (completions, json!({"prompt": " ship", "max_tokens": 128}), "max_tokens"),
        (completions, json!({"prompt": " ship", "temperature": -1}), "temperature"),
        (completions, json!({"prompt": " ship", "temperature": "hot"}), "temperature"),
        (completions, json!({"prompt": " ship", "top_p": 0}), "top_p"),
        (completions, json!({"prompt": " ship", "top_k": -2}), "top_k"),
        (completions, json!({"prompt": " ship", "n": 0}), "n"),
        (completions, json!({"prompt": " ship", "n": 129}), "n"),
        (completions, json!({"prompt": [" ship", " ship", " ship", " ship", " ship"], "n": 128}), "n"),
        (completions, json!({"prompt": " ship", "best_of": 3}), "best_of"),
        (completions, json!({"prompt": " ship", "presence_penalty": 2.5}), "presence_penalty"),
        (completions, json!({"prompt": " ship", "frequency_penalty": -2.5}), "frequency_penalty"),
        (completions, json!({"prompt": " ship", "repetition_penalty": 0}), "repetition_penalty"),
        (completions, json!({"prompt": " ship", "repetition_penalty": 2.1}), "repetition_penalty"),
        (completions, json!({"prompt": " ship", "min_p": 1.5}), "min_p"),
        (completions, json!({"prompt": " ship", "min_tokens": -1}), "min_tokens"),
        (completions, json!({"prompt": " ship", "min_tokens": 9, "max_tokens": 8}), "min_tokens"),
        (completions, json!({"prompt": " ship", "seed": 1.5}), "seed"),
        (completions, json!({"prompt": " ship", "logit_bias": {"300": 101}}), "logit_bias"),
        (completions, json!({"prompt": " ship", "logit_bias": {"1024": 1}}), "logit_bias"),
        (completions, json!({"prompt": " ship", "logit_bias": {"ship": 1}}), "logit_bias"),
        (completions, json!({"prompt": " ship", "logit_bias": [1]}), "logit_bias"),
        (completions, json!({"prompt": " ship", "stop_token_ids": [-1]}), "stop_token_ids"),
        (completions, json!({"prompt": " ship", "max_tokens": 10_000_000_000_000_000_000_000_f64}), "max_tokens"),
        (completions, json!({"prompt": " ship", "max_tokens": 1_000_000_000}), "max_tokens"),
        (completions, json!({"prompt": " ship", "stop": [""]}), "stop"),
        (completions, json!({"prompt": " ship", "stop": 3}), "stop"),
        (completions, json!({"prompt": " ship", "logprobs": 21}), "logprobs"),
        (completions, json!({"prompt": " ship", "logprobs": -1}), "logprobs"),
        (completions, json!({"prompt": " ship", "logprobs": true}), "logprobs"),
        (completions, json!({"prompt": " ship", "prompt_logprobs": 1}), "prompt_logprobs"),
        (completions, json!({"prompt": " ship", "stream": "yes"}), "stream"),
        (completions, json!({"prompt": [1024]}), "prompt"),
        (completions, json!({"prompt": [-1]}), "prompt"),
        (completions, json!({"prompt": [1.5]}), "prompt"),
        (completions, json!({"prompt": ""}), "prompt"),
        (completions, json!({"prompt": []}), "prompt"),
        (completions, json!({}), "prompt"),
        (completions, json!({"prompt": long}), "prompt"),
        (chat, json!({}), "messages"),
        (chat, json!({"messages": []}), "messages"),
        (chat, json!({"messages": [{"role": "captain", "content": "x"}]}), "messages[0].role"),
        (chat, json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (chat, json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "messages[0].content"),
        (
            chat,
            json!({"messages": [{"role": "user", "content": " ship"}], "max_completion_tokens": 0}),
            "max_completion_tokens",
        ),
        (chat, json!({"messages": [{"role": "user", "content": long}]}), "messages"),
        (chat, json!({"messages": [{"role": "user", "content": " ship"}], "logprobs": 1}), "logprobs"),
        (chat, json!({"messages": [{"role": "user", "content": " ship"}], "top_logprobs": 1}), "top_logprobs"),
        (
            chat,
            json!({"messages": [{"role": "user", "content": " ship"}], "logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (generate, json!({"sampling_params": {}}), "text"),
        (generate, json!({"text": " ship", "input_ids": [1]}), "text"),
        (generate, json!({"input_ids": [-1]}), "input_ids"),
        (generate, json!({"input_ids": ["a"]}), "input_ids"),
        (generate, json!({"text": " ship", "sampling_params": {"max_new_tokens": 0}}), "max_new_tokens"),
        (generate, json!({"text": " ship", "sampling_params": 4}), "sampling_params"),
        (generate, json!({"text": " ship", "return_logprob": "yes"}), "return_logprob"),
        (generate, json!({"text": " ship", "return_logprob": [true, true]}), "return_logprob"),
        (generate, json!({"text": " ship", "return_logprob": true, "logprob_start_len": 1}), "logprob_start_len"),
        (generate, json!({"text": " ship", "return_logprob": true, "logprob_start_len": -2}), "logprob_start_len"),
        (generate, json!({"text": " ship", "return_logprob": true, "top_logprobs_num": -1}), "top_logprobs_num"),
        (generate, json!({"text": " ship", "return_logprob": true, "token_ids_logprob": [1024]}), "token_ids_logprob"),
        (generate, json!({"text": " ship", "sampling_params": {"n": 0}}), "n"),
        (generate, json!({"text": " ship", "sampling_params": {"temperature": -0.5}}), "temperature"),
        (generate, json!({"text": [" ship", " load"], "rid": ["a"]}), "rid"),
        (generate, json!({"text": long}), "text"),
        ("/v1/embeddings", json!({"input": 7}), "input"),
        ("/v1/embeddings", json!({"input": " ship", "encoding_format": "hex"}), "encoding_format"),
    ];
    for (path, body, name) in cases {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path} {body}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], name, "{path} {body}: {error}");
        assert!(error["message"].as_str().unwrap().starts_with(&format!("{name}: ")), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    server.wait_empty();
    assert_eq!(server.ask("/generate", &json!({"text": " ship"}))["meta_info"]["prompt_tokens"], 1);
}

#[test]
fn broken_bodies_and_paths() {
    let server = Server::start(EngineConfig { body_bytes: 1000, ..config() });
    for (body, code) in [
        ("", "empty_body"),
        ("{", "invalid_json"),
        ("[1]", "invalid_json"),
        ("{\"prompt\": \"\\ud800\"}", "invalid_json"),
        ("{\"prompt\": \" ship\", \"temperature\": NaN}", "invalid_json"),
        ("{\"prompt\": \" ship\", \"temperature\": 1e999}", "invalid_json"),
    ] {
        let answer = server.send("POST", "/v1/completions", "", body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["code"], code, "{body}");
    }
    let answer = server.post("/v1/completions", &json!({"prompt": " ship".repeat(300)}));
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (413, json!("body_too_large")));
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.get("/generate").status, 405);
    let answer = server.post("/v1/completions", &json!({"prompt": " ship", "model": "other"}));
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (404, json!("model_not_found")));
    let paths = server.get("/openapi.json").json()["paths"].clone();
    for (path, methods) in paths.as_object().unwrap() {
        let status =
            if methods.get("get").is_some() { server.get(path).status } else { server.post(path, &json!({})).status };
        assert!(![404, 405].contains(&status), "{path} is listed but not served");
    }
    // Fields nobody knows are ignored, and null is absent.
    let body = json!({"prompt": " ship", "max_tokens": 2, "user": "x", "stop": null, "tool_choice": "auto"});
    assert_eq!(server.ask("/v1/completions", &body)["usage"]["prompt_tokens"], 1);
}

#[test]
fn a_key_is_asked_for_where_it_should_be() {
    let server = Server::start(EngineConfig { api_key: Some("secret".to_owned()), ..config() });
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.send("GET", "/v1/models", "authorization: Bearer secreT\r\n", "").status, 401);
    let answer = server.send("GET", "/v1/models", "authorization: Bearer secret\r\nx-request-id: r-7\r\n", "");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-request-id"), Some("r-7"));
    assert_eq!(answer.json()["data"][0]["id"], "plimsoll-tiny");
    assert_eq!(server.post("/admin/faults", &json!({})).status, 401);
    for path in ["/health", "/ready", "/ping", "/health_generate", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}
