//! Forms of good answers.

use super::{events, exchange, fake, post, whole};
use plimsoll_fakes::Dialect;
use serde_json::Value;
use std::time::Duration;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn body(answer: &str) -> Value {
    json(answer.split_once("\r\n\r\n").unwrap().1)
}

#[tokio::test]
async fn sglang_native_stream_is_cumulative_and_may_carry_two_tokens() {
    let engine = fake(Dialect::Sglang).await;
    let ask = r#"{"text":"hi","rid":"r-1","stream":true,"sampling_params":{"max_new_tokens":8}}"#;
    let answer = whole(&engine, "/generate", ask).await;
    let events = events(&answer);
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|event| json(event)).collect();
    assert_eq!(chunks[0]["text"], " t0");
    assert_eq!(chunks[2]["output_ids"].as_array().unwrap().len(), 3, "ids so far, not a delta");
    assert_eq!(chunks[4]["meta_info"]["completion_tokens"], 6, "the fifth chunk carries two tokens");
    let last = chunks.last().unwrap();
    assert_eq!(last["text"], " t0 t1 t2 t3 t4 t5 t6 t7");
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "length");
    assert_eq!(last["meta_info"]["id"], "r-1");
}

#[tokio::test]
async fn vllm_takes_the_request_id_from_the_header_and_sends_one_token_a_chunk() {
    let engine = fake(Dialect::Vllm).await;
    let ask = r#"{"model":"tiny","prompt":"hi","stream":true,"max_tokens":6,"stream_options":{"include_usage":true}}"#;
    let request = post("/v1/completions", "X-Request-Id: abc\r\nconnection: close\r\n", ask);
    let events = events(&exchange(&engine, &request, super::PATIENCE).await);
    assert_eq!(events.len(), 6 + 1 + 1, "one chunk a token, usage, [DONE]");
    assert!(events[..6].iter().all(|event| json(event)["id"] == "cmpl-abc"));
    assert_eq!(json(&events[5])["choices"][0]["finish_reason"], "length");
    assert_eq!(json(&events[6])["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn every_family_answers_chat_in_one_piece() {
    for dialect in [Dialect::Sglang, Dialect::Vllm, Dialect::Openai] {
        let engine = fake(dialect).await;
        let answer = whole(&engine, "/v1/chat/completions", r#"{"model":"tiny","messages":[],"max_tokens":3}"#).await;
        let body = body(&answer);
        assert_eq!(body["choices"][0]["message"]["content"], " t0 t1 t2", "{dialect:?}");
        assert_eq!(body["usage"]["completion_tokens"], 3);
        assert_eq!(engine.snapshot().finished, 1);
    }
}

#[tokio::test]
async fn cheap_endpoints_have_their_familys_form() {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: fake\r\nconnection: close\r\n\r\n");
    let sglang = fake(Dialect::Sglang).await;
    let loads = body(&exchange(&sglang, &get("/v1/loads?include=core"), super::PATIENCE).await);
    assert_eq!(loads["loads"][0]["num_running_reqs"], 0);
    assert_eq!(body(&exchange(&sglang, &get("/server_info"), super::PATIENCE).await)["version"], "0.5.23");
    assert!(exchange(&sglang, &get("/get_load"), super::PATIENCE).await.starts_with("HTTP/1.1 404"));
    let vllm = fake(Dialect::Vllm).await;
    assert_eq!(body(&exchange(&vllm, &get("/version"), super::PATIENCE).await)["version"], "0.32.0");
    assert!(exchange(&vllm, &get("/metrics"), super::PATIENCE).await.contains("vllm:num_requests_running{"));
    let openai = fake(Dialect::Openai).await;
    assert!(exchange(&openai, &get("/health"), super::PATIENCE).await.starts_with("HTTP/1.1 404"));
    assert_eq!(body(&exchange(&openai, &get("/v1/models"), super::PATIENCE).await)["data"][0]["id"], "tiny");
}

#[tokio::test]
async fn body_and_headers_are_kept_to_the_byte() {
    let engine = fake(Dialect::Openai).await;
    let ask = "{ \"model\":\"tiny\",\n \"z\":1, \"a\":\"\u{e9}\", \"messages\":[] }";
    exchange(&engine, &post("/v1/chat/completions", "X-Mine: Yes\r\nconnection: close\r\n", ask), super::PATIENCE)
        .await;
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.last_body(), ask.as_bytes());
    assert_eq!(snapshot.last_header("x-mine"), Some("Yes"));
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_second_request_reuses_a_fresh_one() {
    let engine = fake(Dialect::Vllm).await;
    engine.control(plimsoll_fakes::Control { idle_close_ms: Some(300), ..Default::default() });
    let ask = post("/v1/completions", "", r#"{"model":"tiny","prompt":"hi"}"#);
    let mut stream = super::connect(&engine).await;
    for _ in 0..2 {
        tokio::io::AsyncWriteExt::write_all(&mut stream, ask.as_bytes()).await.unwrap();
        assert!(super::read(&mut stream, Duration::from_millis(100)).await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(engine.snapshot().reused, 1);
    super::until(&engine, "idle close", |snapshot| snapshot.open_connections == 0).await;
}
