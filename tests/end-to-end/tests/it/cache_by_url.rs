//! What the gateway believes of a real engine's cache, and the text it makes of its tokens: the built-in engine always, and those
//! named by `PLIMSOLL_TEST_VLLM` and `PLIMSOLL_TEST_SGLANG` (base URLs), whose model lies in `PLIMSOLL_TEST_MODEL_DIR`.
//!
//! An engine must publish KV events and report cached tokens, hold at most some 100,000 KV tokens (it is filled until it
//! evicts), and be nobody else's. Nothing here knows what it will say, only what must hold whatever it says.

use crate::{CHAT, COMPLETIONS, skipped};
use plimsoll_end_to_end::engine::EngineProcess;
use plimsoll_end_to_end::{Gateway, Plan, ask, binaries, eventually};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(60);
const SESSIONS: usize = 4;
const TURNS: usize = 3;

/// Sixteen words, none of which two sessions share at the same place.
fn words(seed: usize) -> String {
    const ROOTS: [&str; 12] =
        ["water", "ship", "mark", "load", "line", "hull", "crew", "rope", "tide", "wind", "port", "mast"];
    (0..16).map(|at| format!("{}{} ", ROOTS[(seed + at * 5) % ROOTS.len()], seed * 31 + at)).collect()
}

struct Seen {
    text: String,
    believed: u64,
    cached: u64,
    prompt: u64,
    route: Value,
}

struct Suite {
    gateway: Gateway,
    engine: SocketAddr,
    model: String,
    page_tokens: u64,
    kv_tokens: u64,
}

impl Suite {
    async fn open(url: &str, model_dir: &Path) -> Suite {
        let engine: SocketAddr = url.trim_end_matches('/').trim_start_matches("http://").parse().unwrap();
        let models = ask(engine, "GET", "/v1/models", &[], &[]).await.json();
        let model = models["data"][0]["id"].as_str().unwrap().to_owned();
        let gateway = Plan::with([url])
            .set("models[0].name", &model)
            .set("models[0].tokenizer", model_dir.display())
            .set("models[0].token_mode", "owned")
            .wait_for(0)
            .start()
            .await;
        gateway.healthy(1, WITHIN).await;
        let probed = eventually("the engine says what it can do", WITHIN, || async {
            let engines = gateway.engines().await;
            let capability = engines[0]["capability"].clone();
            if capability["complete"] == true { Ok(capability) } else { Err(engines) }
        })
        .await;
        let number = |name: &str| probed[name].as_u64().unwrap_or_else(|| panic!("no {name} in {probed}"));
        let (page_tokens, kv_tokens) = (number("page_size_tokens"), number("kv_capacity_tokens"));
        assert!(!probed["kv_events"].is_null(), "it publishes KV events: {probed}");
        assert!(kv_tokens <= 100_000, "start it with less KV: {probed}");
        let suite = Suite { gateway, engine, model, page_tokens, kv_tokens };
        suite.clear().await;
        suite
    }

    fn body(&self, messages: &[Value], tokens: u64) -> Value {
        json!({"model": self.model, "messages": messages, "max_tokens": tokens, "temperature": 0})
    }

    async fn chat(&self, messages: &[Value], tokens: u64) -> Seen {
        let answer = self.gateway.post(CHAT, &self.body(messages, tokens)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let record = self.gateway.record(answer.header("x-request-id").unwrap()).await;
        let (attempt, answer) = (&record["attempts"][0], answer.json());
        let usage = &answer["usage"];
        assert_eq!((&record["prompt_tokens"], &record["prompt_tokens_exact"]), (&usage["prompt_tokens"], &json!(true)));
        Seen {
            text: answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned(),
            believed: attempt["hit_tokens"].as_u64().unwrap_or_else(|| panic!("nothing predicted: {record}")),
            cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
            prompt: usage["prompt_tokens"].as_u64().unwrap(),
            route: attempt["token_route"].clone(),
        }
    }

    async fn publisher(&self) -> Value {
        self.gateway.admin("GET", "/admin/cache", &Value::Null).await.json()["publishers"][0].clone()
    }

    /// Waits until no event has come for half a second.
    async fn heard(&self) -> Value {
        let mut last = self.publisher().await;
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = self.publisher().await;
            if now["device_blocks"] == last["device_blocks"] && now["events"] == last["events"] {
                return now;
            }
            last = now;
        }
    }

    /// Empties the engine's cache by the engine's own call, and waits until the view is empty too. vLLM tells of it with its next step
    /// only, so each look is behind a request that fills no block.
    async fn clear(&self) {
        for path in ["/flush_cache", "/reset_prefix_cache"] {
            let answer = ask(self.engine, "POST", path, &[], b"").await;
            if answer.status() == 200 {
                eventually("the view is empty", WITHIN, || async {
                    let step = json!({"model": self.model, "prompt": "x", "max_tokens": 1});
                    assert_eq!(self.gateway.post(COMPLETIONS, &step).await.status(), 200);
                    let publisher = self.publisher().await;
                    if publisher["device_blocks"] == 0 { Ok(()) } else { Err(publisher) }
                })
                .await;
                return;
            }
        }
        panic!("neither /flush_cache nor /reset_prefix_cache is taken; vLLM needs VLLM_SERVER_DEV_MODE=1");
    }

    /// Turns of sessions: what is believed is what the engine finds, and the text is the engine's own.
    async fn sessions(&self) -> Vec<Vec<Value>> {
        let mut sessions: Vec<Vec<Value>> = (0..SESSIONS)
            .map(|session| vec![json!({"role": "system", "content": words(session * 100).repeat(2)})])
            .collect();
        for turn in 0..TURNS {
            for (at, messages) in sessions.iter_mut().enumerate() {
                messages.push(json!({"role": "user", "content": words(at * 100 + turn + 1)}));
                let seen = self.chat(messages, 24).await;
                assert!(!seen.route.is_null(), "the gateway makes the tokens");
                assert_eq!(seen.believed, seen.cached, "session {at} turn {turn} of {} tokens", seen.prompt);
                assert!(turn == 0 || seen.cached > 2 * self.page_tokens, "session {at} turn {turn} hits nothing");
                let own = ask(self.engine, "POST", CHAT, &[], self.body(messages, 24).to_string().as_bytes()).await;
                let own = own.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
                assert_eq!(seen.text, own, "the same text as from the engine's own chat route");
                messages.push(json!({"role": "assistant", "content": seen.text}));
                self.heard().await;
            }
        }
        sessions
    }

    /// Twice what fits, then all again: what has been evicted is not believed to be there. The share that is off, of all tokens
    /// asked for.
    async fn eviction(&self) -> f64 {
        let one = self.chat(&[json!({"role": "user", "content": words(7_000).repeat(8)})], 1).await.prompt;
        let all = usize::try_from(2 * self.kv_tokens / one + 1).unwrap();
        let ask_for = |n: usize| vec![json!({"role": "user", "content": words(10_000 + n).repeat(8)})];
        for n in 0..all {
            self.chat(&ask_for(n), 1).await;
        }
        self.heard().await;
        let (mut off, mut asked, mut cached, mut gone) = (0, 0, 0, 0);
        // The newest first: from the oldest on, each would push out the one that is asked for next.
        for n in (0..all).rev() {
            let seen = self.chat(&ask_for(n), 1).await;
            off += seen.believed.abs_diff(seen.cached);
            asked += seen.prompt;
            cached += seen.cached;
            gone += u64::from(seen.cached < seen.prompt / 2);
        }
        assert!(gone > 0 && cached > asked / 10, "{gone} of {all} evicted, {cached} of {asked} tokens cached");
        off as f64 / asked as f64
    }

    async fn cleared(&self, messages: &[Value]) {
        self.clear().await;
        let seen = self.chat(messages, 1).await;
        assert_eq!((seen.believed, seen.cached), (0, 0));
    }
}

async fn all(url: &str, model_dir: &Path) -> Suite {
    let suite = Suite::open(url, model_dir).await;
    let sessions = suite.sessions().await;
    let off = suite.eviction().await;
    assert!(off < 0.02, "believed and reported differ by {:.1} % under eviction", off * 100.0);
    suite.cleared(&sessions[0]).await;
    let publisher = suite.heard().await;
    assert_eq!(publisher["misnamed_events"], 0, "{publisher}");
    eprintln!("{url}: belief off by {:.2} % under eviction; {publisher}", off * 100.0);
    suite
}

async fn named(test: &str, variable: &str) {
    let given = |variable| std::env::var(variable).ok().filter(|value| !value.is_empty());
    match (given(variable), given("PLIMSOLL_TEST_MODEL_DIR")) {
        (Some(url), Some(model_dir)) => all(&url, Path::new(&model_dir)).await.gateway.finish().await,
        (None, _) => skipped(test, &format!("{variable} names no engine")),
        (_, None) => skipped(test, "PLIMSOLL_TEST_MODEL_DIR names no folder"),
    }
}

/// And a restart, which only an engine of our own can be made to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_built_in_engine() {
    let folder = tempfile::tempdir().unwrap();
    let exported = Command::new(binaries::plimsoll()).args(["engine", "--export-model"]).arg(folder.path()).output();
    assert!(exported.unwrap().status.success());
    let ports = ["--kv-events-endpoint", "tcp://127.0.0.1:0", "--kv-events-replay-endpoint", "tcp://127.0.0.1:0"];
    let args = [&ports[..], &["--kv-tokens", "4096"]].concat();
    let engine = EngineProcess::start(&args);
    let addr = engine.addr;
    let suite = all(&format!("http://{addr}"), folder.path()).await;
    let question = [json!({"role": "user", "content": words(1).repeat(8)})];
    suite.chat(&question, 1).await;
    suite.heard().await;
    assert!(suite.chat(&question, 1).await.believed > 0);
    drop(engine);
    let _again = EngineProcess::start_at(&addr.to_string(), &args);
    eventually("the restart is seen", WITHIN, || async {
        let publisher = suite.publisher().await;
        let states = suite.gateway.states().await;
        if publisher["device_blocks"] == 0 && states == ["healthy"] { Ok(()) } else { Err((publisher, states)) }
    })
    .await;
    let seen = suite.chat(&question, 1).await;
    assert_eq!((seen.believed, seen.cached), (0, 0));
    suite.gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm() {
    named("vllm", "PLIMSOLL_TEST_VLLM").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang() {
    named("sglang", "PLIMSOLL_TEST_SGLANG").await;
}
