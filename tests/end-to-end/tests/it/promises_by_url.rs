//! The core promises against real engines: the built-in one always, and those that are named by `PLIMSOLL_TEST_VLLM`,
//! `PLIMSOLL_TEST_SGLANG` and `PLIMSOLL_TEST_LLAMACPP` (base URLs). Nothing here knows what an engine will say, only
//! what must hold whatever it says.

use crate::{CHAT, COMPLETIONS, GENERATE, python_sdk, skipped};
use plimsoll_end_to_end::sse::Event;
use plimsoll_end_to_end::{Gateway, Plan, Process, binaries, eventually, sse};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

struct Suite {
    gateway: Gateway,
    model: String,
}

impl Suite {
    async fn open(url: &str) -> Suite {
        let gateway = Plan::with([url]).wait_for(0).start().await;
        gateway.healthy(1, HEALTHY_WITHIN).await;
        let models = gateway.get("/v1/models").await.json();
        let model = models["data"][0]["id"].as_str().unwrap_or_default().to_owned();
        assert!(!model.is_empty(), "{models}");
        Suite { gateway, model }
    }

    fn chat(&self, stream: bool, tokens: u64) -> Value {
        json!({"model": self.model, "messages": [{"role": "user", "content": "Count from one to ten."}],
            "max_tokens": tokens, "temperature": 0, "stream": stream, "seed": 1})
    }

    async fn kind(&self) -> String {
        let engines = self.gateway.engines().await;
        engines[0]["state"]["kind"].as_str().unwrap_or_default().to_owned()
    }

    /// Same request, greedy: the stream adds up to the whole answer.
    async fn streams_add_up(&self) {
        let whole = self.gateway.post(CHAT, &self.chat(false, 24)).await;
        assert_eq!(whole.status(), 200, "{}", whole.text());
        let whole_text = whole.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        assert!(whole.json()["usage"]["completion_tokens"].as_u64().unwrap_or(0) > 0, "{}", whole.text());
        let stream = self.gateway.post(CHAT, &self.chat(true, 24)).await;
        assert!(stream.complete);
        let events = stream.events();
        assert!(events.last().unwrap().is_done(), "{events:?}");
        assert!(events.iter().all(|event| event.error_code().is_none()), "{events:?}");
        let reasons: Vec<Value> = events
            .iter()
            .filter_map(Event::json)
            .map(|chunk| chunk["choices"][0]["finish_reason"].clone())
            .filter(Value::is_string)
            .collect();
        assert_eq!(reasons.len(), 1, "one finish reason: {reasons:?}");
        assert_eq!(sse::text(&events), whole_text, "greedy, so both say the same");
        let record = self.gateway.record(stream.header("x-request-id").unwrap()).await;
        assert_eq!(record["outcome"], "completed", "{record}");
        assert!(record["ttft_ms"].as_f64().is_some_and(|ttft| ttft > 0.0), "{record}");
    }

    async fn completions_and_ids(&self) {
        let ask = json!({"model": self.model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
        let id = [("x-request-id", "by-url-1")];
        let answer = self.gateway.post_raw(COMPLETIONS, &id, ask.to_string().as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(answer.header("x-request-id"), Some("by-url-1"));
        let record = self.gateway.record("by-url-1").await;
        assert!(record["reported_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{record}");
        assert!(record["output_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{record}");
    }

    async fn native_generate(&self) {
        if self.kind().await != "sglang" {
            return;
        }
        let ask = json!({"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8, "temperature": 0}});
        let whole = self.gateway.post(GENERATE, &ask).await;
        assert_eq!(whole.status(), 200, "{}", whole.text());
        let mut ask = ask;
        ask["stream"] = json!(true);
        let events = self.gateway.events(GENERATE, &ask).await;
        assert!(events.last().unwrap().is_done());
        assert_eq!(Some(sse::text(&events).as_str()), whole.json()["text"].as_str());
    }

    async fn errors(&self) {
        let mut unknown = self.chat(false, 2);
        unknown["model"] = json!("no-such-model");
        let answer = self.gateway.post(CHAT, &unknown).await;
        assert_eq!((answer.status(), answer.code().as_str()), (404, "model_not_found"));
        let wrong = json!({"model": self.model, "messages": [{"role": "user", "content": "x"}], "temperature": "hot"});
        let answer = self.gateway.post(CHAT, &wrong).await;
        assert!(answer.status() >= 400 && answer.status() < 500 || answer.status() == 200, "{}", answer.text());
        assert_eq!(self.gateway.states().await, ["healthy"], "a client's mistake is not the engine's");
    }

    /// Long generations that their clients leave; the engine must be idle long before they would have ended.
    async fn leaving_stops_the_engine(&self) {
        for wait_for_tokens in [true, false] {
            let mut streams = Vec::new();
            for _ in 0..2 {
                let mut ask = self.chat(true, 2_000);
                ask["ignore_eos"] = json!(true);
                let mut stream = plimsoll_end_to_end::Connection::open(self.gateway.addr).await;
                stream.post(CHAT, &[], &ask.to_string()).await;
                streams.push(stream);
            }
            if wait_for_tokens {
                for stream in &mut streams {
                    assert_eq!(stream.head().await.status, 200);
                    for _ in 0..3 {
                        stream.data().await.unwrap();
                    }
                }
            }
            drop(streams);
            self.gateway.settled().await;
            // A short request is answered quickly only if the engine is not still at the long ones; and the engine's
            // own report says so, where it gives one.
            let start = Instant::now();
            assert_eq!(self.gateway.post(CHAT, &self.chat(false, 2)).await.status(), 200);
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        }
    }

    async fn side_by_side(&self) {
        let mut clients = tokio::task::JoinSet::new();
        for n in 0..8 {
            let (addr, ask) = (self.gateway.addr, self.chat(n % 2 == 0, 12).to_string());
            clients
                .spawn(async move { plimsoll_end_to_end::client::ask(addr, "POST", CHAT, &[], ask.as_bytes()).await });
        }
        for answer in clients.join_all().await {
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert!(answer.complete);
        }
    }

    async fn load_is_reported(&self) {
        if self.kind().await == "openai" {
            return;
        }
        eventually("a load report", Duration::from_secs(20), || async {
            let engines = self.gateway.engines().await;
            let state = engines[0]["state"].to_string();
            if state.contains("ranks") && !engines[0]["capability"].is_null() { Ok(()) } else { Err(state) }
        })
        .await;
    }
}

async fn all_promises(url: &str) {
    let suite = Suite::open(url).await;
    suite.streams_add_up().await;
    suite.completions_and_ids().await;
    suite.native_generate().await;
    suite.errors().await;
    suite.side_by_side().await;
    suite.leaving_stops_the_engine().await;
    suite.load_is_reported().await;
    if let Some(python) = python_sdk::python() {
        python_sdk::drive(&python, &suite.gateway, &suite.model, ["none", ""]).await;
    }
    suite.gateway.finish().await;
}

async fn named(test: &str, variable: &str) {
    match std::env::var(variable) {
        Ok(url) if !url.is_empty() => all_promises(&url).await,
        _ => skipped(test, &format!("{variable} names no engine")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_built_in_engine() {
    let mut command = Command::new(binaries::plimsoll());
    command.args(["engine", "--listen", "127.0.0.1:0"]);
    let mut engine = Process::start("plimsoll engine", &mut command).unwrap();
    let line = engine.wait_line("plimsoll engine: listening on ");
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
    all_promises(&url).await;
    engine.signal(rustix::process::Signal::TERM);
    assert!(engine.ended(Duration::from_secs(20)).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm() {
    named("vllm", "PLIMSOLL_TEST_VLLM").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang() {
    named("sglang", "PLIMSOLL_TEST_SGLANG").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_cpp() {
    named("llama_cpp", "PLIMSOLL_TEST_LLAMACPP").await;
}
