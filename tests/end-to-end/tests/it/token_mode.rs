//! Whoever makes the tokens, gateway or engine, a client sees the same text.

use crate::python_sdk::python;
use crate::skipped;
use plimsoll_end_to_end::engine::EngineProcess;
use plimsoll_end_to_end::sse::Event;
use plimsoll_end_to_end::{FakeProcess, Gateway, Plan, binaries, eventually};
use plimsoll_fakes::Dialect;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

fn export() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(binaries::plimsoll())
        .args(["engine", "--export-model", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// A gateway in front of one engine, once its probe has said what it offers.
async fn gateway(engine: &EngineProcess, folder: &Path, mode: &str) -> Gateway {
    let gateway = Plan::with([format!("http://{}", engine.addr)])
        .set("models[0].name", "plimsoll-tiny")
        .set("models[0].tokenizer", folder.to_str().unwrap())
        .set("models[0].token_mode", mode)
        .start()
        .await;
    eventually("the engine is probed", Duration::from_secs(20), || async {
        let engines = gateway.engines().await;
        if engines[0]["capability"]["token_api"] == "sglang_generate" { Ok(()) } else { Err(engines) }
    })
    .await;
    gateway
}

/// What a client makes of an answer: text, finish reason, what stopped it, token counts.
#[derive(Debug, PartialEq)]
struct Seen {
    text: String,
    finish: Value,
    matched: Value,
    tokens: Option<(Value, Value, Value)>,
}

fn counts(usage: &Value) -> (Value, Value, Value) {
    (usage["prompt_tokens"].clone(), usage["completion_tokens"].clone(), usage["total_tokens"].clone())
}

async fn whole(gateway: &Gateway, path: &str, body: &Value) -> Seen {
    let answer = gateway.post(path, body).await;
    assert_eq!(answer.status(), 200, "{body}: {}", answer.text());
    let answer = answer.json();
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned();
    Seen {
        text,
        finish: choice["finish_reason"].clone(),
        matched: choice["matched_stop"].clone(),
        tokens: Some(counts(&answer["usage"])),
    }
}

/// The same from a stream, whose form is checked on the way.
async fn streamed(gateway: &Gateway, path: &str, body: &Value) -> Seen {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let events = gateway.events(path, &body).await;
    let (last, events) = events.split_last().unwrap();
    assert!(last.is_done(), "{last:?}");
    let mut seen = Seen { text: String::new(), finish: Value::Null, matched: Value::Null, tokens: None };
    let mut ids = std::collections::BTreeSet::new();
    for (at, event) in events.iter().enumerate() {
        let Event::Data(data) = event else { panic!("{event:?}") };
        let chunk: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        ids.insert(chunk["id"].to_string());
        if let Some(usage) = chunk.get("usage").filter(|usage| !usage.is_null()) {
            assert_eq!((&chunk["choices"], at), (&json!([]), events.len() - 1));
            seen.tokens = Some(counts(usage));
            continue;
        }
        let choice = &chunk["choices"][0];
        assert!(seen.finish.is_null(), "nothing follows the finish: {chunk}");
        if path.ends_with("chat/completions") {
            assert_eq!(choice["delta"].get("role").is_some(), at == 0, "the role comes first, once: {chunk}");
        }
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        seen.text.push_str(text);
        if !choice["finish_reason"].is_null() {
            seen.finish = choice["finish_reason"].clone();
            seen.matched = choice["matched_stop"].clone();
        }
    }
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(seen.tokens.is_some(), body["stream_options"]["include_usage"] == true);
    seen
}

fn bodies() -> Vec<(&'static str, Value)> {
    let chat = |more: Value| {
        let mut body = json!({"model": "plimsoll-tiny", "temperature": 0, "max_tokens": 60, "messages": [
            {"role": "system", "content": "You keep the log of a ship."},
            {"role": "user", "content": "how deep is the water under the ship"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/chat/completions", body)
    };
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "parts, é漢🚢"}]}]);
    vec![
        chat(json!({})),
        chat(json!({"max_tokens": 1})),
        chat(json!({"stream_options": {"include_usage": true}})),
        chat(
            json!({"temperature": 1.3, "seed": 7, "top_k": 40, "presence_penalty": 0.5, "max_completion_tokens": 90, "max_tokens": null}),
        ),
        chat(json!({"temperature": 2.0, "seed": 11, "max_tokens": 200, "ignore_eos": true})),
        chat(json!({"stop": ["the", "a"], "stream_options": {"include_usage": true}})),
        chat(json!({"stop": "e", "temperature": 1.0, "seed": 3})),
        chat(json!({"stop": ["e w", "zz", " s"], "temperature": 1.0, "seed": 5, "max_tokens": 150})),
        chat(json!({"stop": ["\u{fffd}"], "temperature": 2.0, "seed": 9, "max_tokens": 150})),
        chat(
            json!({"messages": parts, "temperature": 1.5, "seed": 4, "skip_special_tokens": false, "ignore_eos": true}),
        ),
        chat(json!({"min_tokens": 30, "temperature": 1.0, "seed": 21, "logit_bias": {"300": 2}})),
        chat(
            json!({"stop_token_ids": [300, 301, 302, 303, 304, 305], "temperature": 1.0, "seed": 2, "max_tokens": 200}),
        ),
        (
            "/v1/completions",
            json!({"model": "plimsoll-tiny", "prompt": "the water rises, é漢", "max_tokens": 50, "temperature": 1.0, "seed": 1}),
        ),
        (
            "/v1/completions",
            json!({"model": "plimsoll-tiny", "prompt": ["one prompt"], "max_tokens": 50, "temperature": 0, "stop": ["o"],
            "stream_options": {"include_usage": true}}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_text_is_the_same_whoever_makes_it() {
    let folder = export();
    for arguments in [&[][..], &["--incremental-streaming"]] {
        let engine = EngineProcess::start(arguments);
        let theirs = gateway(&engine, folder.path(), "passthrough").await;
        let ours = gateway(&engine, folder.path(), "auto").await;
        let (mut texts, mut stopped) = (std::collections::BTreeSet::new(), 0);
        for (path, body) in bodies() {
            let mut unstreamed = body.clone();
            unstreamed.as_object_mut().unwrap().remove("stream_options");
            let (want, got) = (whole(&theirs, path, &unstreamed).await, whole(&ours, path, &unstreamed).await);
            assert_eq!(got, want, "{body}");
            stopped += usize::from(want.matched.is_string());
            texts.insert(want.text.clone());
            let (want, got) = (streamed(&theirs, path, &body).await, streamed(&ours, path, &body).await);
            assert_eq!(got, want, "{body}");
        }
        assert!(texts.len() > 8 && stopped >= 2, "{stopped} stopped, {texts:?}");
        let owned = ours.metric("plimsoll_token_mode_attempts_total", &["why=\"owned\""]).await;
        assert!((owned - 2.0 * bodies().len() as f64).abs() < 0.5, "{owned}");
        assert_eq!(theirs.metrics().await.matches("plimsoll_token_mode_attempts_total{").count(), 0);
        theirs.finish().await;
        ours.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_owned_goes_as_it_came() {
    let (folder, engine) = (export(), EngineProcess::start(&[]));
    let gateway = gateway(&engine, folder.path(), "auto").await;
    let chat = |more: Value| {
        let mut body = json!({"model": "plimsoll-tiny", "max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, why) in [
        (json!({"logprobs": true}), "logprobs"),
        (json!({"n": 2}), "n"),
        (json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}), "tools"),
        (json!({"cache_salt": "t"}), "field"),
    ] {
        let answer = gateway.post("/v1/chat/completions", &chat(more)).await;
        assert_eq!(answer.status(), 200, "{why}: {}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!(record["attempts"][0]["token_route"], Value::Null, "{why}");
        let label = format!("why=\"{why}\"");
        assert!((gateway.metric("plimsoll_token_mode_attempts_total", &[&label]).await - 1.0).abs() < 0.5, "{why}");
    }
    let owned = gateway.post("/v1/chat/completions", &chat(json!({}))).await;
    let record = gateway.record(owned.header("x-request-id").unwrap()).await;
    assert_eq!((&record["attempts"][0]["token_route"], &record["outcome"]), (&json!("/generate"), &json!("completed")));
    assert_eq!(record["reported_prompt_tokens"], record["prompt_tokens"]);
    // The engine's own words about what it does not take, in either mode.
    for (wrong, path) in [
        (json!({"temperature": 500}), "/v1/chat/completions"),
        (json!({"max_tokens": 1_000_000}), "/v1/chat/completions"),
    ] {
        let answer = gateway.post(path, &chat(wrong.clone())).await;
        assert_eq!(answer.status(), 400, "{wrong}: {}", answer.text());
        assert!(answer.json()["error"]["message"].is_string(), "{wrong}: {}", answer.text());
    }
    gateway.finish().await;
}

/// A client that goes takes its request with it; nothing runs on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_ends_its_request_on_the_engine() {
    let (folder, engine) = (export(), EngineProcess::start(&[]));
    let gateway = gateway(&engine, folder.path(), "owned").await;
    let body = json!({"model": "plimsoll-tiny", "stream": true, "max_tokens": 4000, "ignore_eos": true,
        "messages": [{"role": "user", "content": "go on"}]});
    let mut connection = gateway.stream("/v1/chat/completions", &body).await;
    assert!(connection.data().await.is_some());
    drop(connection);
    engine.empty().await;
    gateway.settled().await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_reads_what_the_gateway_writes() {
    let Some(python) = python() else {
        return skipped("the_sdk_reads_what_the_gateway_writes", "no Python with `openai`; set PLIMSOLL_PYTHON");
    };
    let (folder, engine) = (export(), EngineProcess::start(&[]));
    let gateway = gateway(&engine, folder.path(), "owned").await;
    let script = r#"
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=30)
ask = dict(model="plimsoll-tiny", messages=[{"role": "user", "content": "hello there"}], max_tokens=30, temperature=0)
whole = client.chat.completions.create(**ask)
text, usage, finish, roles = "", None, None, []
for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
        roles += [choice.delta.role] if choice.delta.role else []
        finish = choice.finish_reason or finish
assert text == whole.choices[0].message.content and text, (text, whole)
assert finish == whole.choices[0].finish_reason and roles == ["assistant"], (finish, roles)
assert usage.completion_tokens == whole.usage.completion_tokens > 0, (usage, whole.usage)
assert usage.prompt_tokens_details.cached_tokens > 0, usage
plain = client.completions.create(model="plimsoll-tiny", prompt="hello", max_tokens=5)
assert plain.choices[0].finish_reason and plain.usage.prompt_tokens > 0, plain
print("fine")
"#;
    let output = tokio::process::Command::new(python)
        .args(["-c", script, &gateway.url()])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let owned = gateway.metric("plimsoll_token_mode_attempts_total", &["why=\"owned\""]).await;
    assert!((owned - 3.0).abs() < 0.5, "{owned}");
    gateway.finish().await;
}

/// Stock engines in their own words: each takes ids on the route it has for them, and what it says in its own text is not looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_and_vllm_are_asked_on_their_token_routes() {
    let folder = export();
    let tokenizer = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let word = |id: u64| {
        let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
        vocab.iter().find(|(_, known)| **known == id).unwrap().0.replace('Ġ', " ")
    };
    // The fakes' tokens count up from here.
    let want: String = (1000..1005).map(word).collect();
    for (dialect, route) in [(Dialect::Sglang, "/generate"), (Dialect::Vllm, "/v1/completions")] {
        let engine = FakeProcess::start(dialect, &[]);
        let gateway = Plan::with([engine.url()])
            .set("models[0].name", "tiny")
            .set("models[0].tokenizer", folder.path().to_str().unwrap())
            .set("models[0].token_mode", "auto")
            .start()
            .await;
        eventually("the engine is probed", Duration::from_secs(20), || async {
            let engines = gateway.engines().await;
            if engines[0]["capability"]["token_api"].is_string() { Ok(()) } else { Err(engines) }
        })
        .await;
        let body = json!({"model": "tiny", "max_tokens": 5, "stream_options": {"include_usage": true}, "temperature": 0,
            "messages": [{"role": "user", "content": "hello"}]});
        let seen = streamed(&gateway, "/v1/chat/completions", &body).await;
        assert_eq!((seen.text.as_str(), &seen.finish), (want.as_str(), &json!("length")), "{dialect:?}");
        assert_eq!(seen.tokens.map(|(_, completion, _)| completion), Some(json!(5)), "{dialect:?}");
        let mut body = body;
        body.as_object_mut().unwrap().remove("stream_options");
        assert_eq!(whole(&gateway, "/v1/chat/completions", &body).await.text, want, "{dialect:?}");
        let answer = gateway.post("/v1/chat/completions", &body).await;
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!(record["attempts"][0]["token_route"], route);
        gateway.finish().await;
    }
}
