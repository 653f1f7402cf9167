//! Requests go where their KV lies, as the engines' events say, and stop going there when it has gone.

use plimsoll_end_to_end::{Gateway, Plan, Process, binaries, eventually};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// Tokens of a KV page.
const PAGE: usize = 16;

pub(crate) struct Engine {
    _process: Process,
    pub(crate) url: String,
}

/// A built-in engine that publishes KV events on ports of its own.
pub(crate) fn engine(more: &[&str]) -> Engine {
    let events = ["--kv-events-endpoint", "tcp://127.0.0.1:0", "--kv-events-replay-endpoint", "tcp://127.0.0.1:0"];
    silent_engine(&[&events, more].concat())
}

/// One that tells nothing of its cache.
fn silent_engine(more: &[&str]) -> Engine {
    let mut command = Command::new(binaries::plimsoll());
    command.args(["engine", "--listen", "127.0.0.1:0", "--faults"]).args(more);
    let mut process = Process::start("plimsoll engine", &mut command).unwrap();
    let line = process.wait_line("plimsoll engine: listening on ");
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
    Engine { _process: process, url }
}

/// Word ids of the tiny model; `from` tells prompts apart from their first token on.
pub(crate) fn prompt(from: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|at| 300 + ((from * 97 + at * 7) % 700) as u32).collect()
}

struct Answer {
    engine: u64,
    predicted: u64,
    cached: u64,
}

async fn complete(gateway: &Gateway, ids: &[u32]) -> Answer {
    let body = json!({ "prompt": ids, "max_tokens": 2, "temperature": 0, "ignore_eos": true });
    let answer = gateway.post("/v1/completions", &body).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let record = gateway.record(answer.header("x-request-id").unwrap()).await;
    let attempt = &record["attempts"][0];
    Answer {
        engine: attempt["engine"].as_u64().unwrap(),
        predicted: attempt["hit_tokens"].as_u64().unwrap_or(0),
        cached,
    }
}

async fn cache(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/cache", &Value::Null).await.json()
}

/// Waits until the publishers of so many engines are heard and hold at least so many blocks together.
pub(crate) async fn believed(gateway: &Gateway, publishers: usize, blocks: u64) {
    eventually("the view fills", Duration::from_secs(20), || async {
        let state = cache(gateway).await;
        let all = state["publishers"].as_array().unwrap();
        let held: u64 = all.iter().map(|one| one["device_blocks"].as_u64().unwrap()).sum();
        let heard = all.iter().filter(|one| one["trust"] == "whole").count();
        if heard >= publishers && held >= blocks { Ok(()) } else { Err(state) }
    })
    .await;
}

async fn gateway(engines: &[&Engine]) -> Gateway {
    Plan::with(engines.iter().map(|engine| engine.url.clone())).start().await
}

/// Two engines, ten sessions of three turns: each turn finds what the turn before left, at the engine where it is, and what was believed is
/// what the engine says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_of_a_session_find_their_kv_and_belief_equals_reports() {
    let engines = [engine(&[]), engine(&[])];
    let gateway = gateway(&[&engines[0], &engines[1]]).await;
    let mut homes = std::collections::BTreeMap::new();
    let mut blocks = 0;
    for turn in 1..=3usize {
        for session in 0..10 {
            let tokens = turn * 10 * PAGE;
            let answer = complete(&gateway, &prompt(session, tokens)).await;
            blocks += 10;
            if turn > 1 {
                assert_eq!(answer.engine, homes[&session], "session {session} turn {turn}");
                assert_eq!(answer.predicted, answer.cached, "session {session} turn {turn}");
                assert_eq!(answer.cached as usize, (turn - 1) * 10 * PAGE);
            }
            homes.insert(session, answer.engine);
        }
        believed(&gateway, 2, blocks).await;
    }
    let used: std::collections::BTreeSet<u64> = homes.values().copied().collect();
    assert_eq!(used.len(), 2, "all sessions on one engine: {homes:?}");
    let state = cache(&gateway).await;
    for publisher in state["publishers"].as_array().unwrap() {
        assert_eq!(publisher["believed_tokens"], publisher["reported_tokens"], "{state}");
        assert_eq!((publisher["unplaced_blocks"].as_u64(), publisher["misnamed_events"].as_u64()), (Some(0), Some(0)));
    }
    assert!(gateway.metric("plimsoll_cache_predicted_tokens_total", &[]).await >= 10.0 * 480.0);
    gateway.finish().await;
}

/// What an engine has moved to its host is believed to be there, page by page, and is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offloaded_kv_is_a_hit_and_belief_equals_reports() {
    // 32 pages, and all that falls out of them.
    let small = ["--kv-tokens", "512", "--kv-offload-bytes", "64MiB", "--kv-offload-deadline-ms", "20000"];
    let one = engine(&small);
    let gateway = gateway(&[&one]).await;
    let sessions = 6;
    for turn in 1..=3usize {
        for session in 0..sessions {
            let answer = complete(&gateway, &prompt(session, turn * 8 * PAGE)).await;
            assert_eq!(answer.cached as usize, (turn - 1) * 8 * PAGE, "session {session} turn {turn}");
            if turn > 1 {
                assert_eq!(answer.predicted, answer.cached, "session {session} turn {turn}");
            }
        }
        let blocks = (sessions * turn * 8) as u64;
        eventually("both tiers are known", Duration::from_secs(20), || async {
            let state = cache(&gateway).await;
            let of = |name: &str| state["publishers"][0][name].as_u64().unwrap();
            let host_is_rest = of("host_blocks") >= blocks - 32 && of("host_blocks") <= blocks;
            if of("device_blocks") <= 32 && host_is_rest { Ok(()) } else { Err(state) }
        })
        .await;
    }
    let state = cache(&gateway).await;
    let publisher = &state["publishers"][0];
    assert_eq!(publisher["believed_tokens"], publisher["reported_tokens"], "{state}");
    assert_eq!((publisher["unplaced_blocks"].as_u64(), publisher["misnamed_events"].as_u64()), (Some(0), Some(0)));
    gateway.finish().await;
}

/// A tenant's salt keeps its KV apart, in the engine and in the view.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salt_hits_nothing_of_others() {
    let engine = engine(&[]);
    let gateway = gateway(&[&engine]).await;
    let ids = prompt(1, 10 * PAGE);
    complete(&gateway, &ids).await;
    believed(&gateway, 1, 10).await;
    let salted = json!({ "input_ids": ids, "cache_salt": "tenant", "sampling_params": { "max_new_tokens": 1 } });
    let answer = gateway.post("/generate", &salted).await;
    assert_eq!(answer.json()["meta_info"]["cached_tokens"], 0);
    let record = gateway.record(answer.header("x-request-id").unwrap()).await;
    assert_eq!(record["attempts"][0]["hit_tokens"], 0);
    gateway.finish().await;
}

/// What a flush has emptied is not believed to be there; events that are lost for ever are noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_and_lost_events_take_the_credit() {
    let one = engine(&[]);
    let gateway = gateway(&[&one]).await;
    let ids = prompt(1, 10 * PAGE);
    complete(&gateway, &ids).await;
    believed(&gateway, 1, 10).await;
    let addr = one.url.trim_start_matches("http://").parse().unwrap();
    let flushed = plimsoll_end_to_end::ask(addr, "POST", "/flush_cache", &[], b"").await;
    assert_eq!(flushed.status(), 200);
    eventually("the flush is heard", Duration::from_secs(10), || async {
        let state = cache(&gateway).await;
        if state["publishers"][0]["device_blocks"] == 0 { Ok(()) } else { Err(state) }
    })
    .await;
    // Events that are lost for ever leave a hole in the numbers: the view is dropped and says so.
    let fault = json!({ "drop_events": { "every": 2, "mode": "lost" } }).to_string();
    let set = plimsoll_end_to_end::ask(addr, "POST", "/admin/faults", &[], fault.as_bytes()).await;
    assert_eq!(set.status(), 200, "{}", set.text());
    for session in 2..8 {
        let answer = complete(&gateway, &prompt(session, 10 * PAGE)).await;
        assert!(answer.predicted <= answer.cached, "{} believed, {} there", answer.predicted, answer.cached);
    }
    eventually("the hole is seen", Duration::from_secs(10), || async {
        let state = cache(&gateway).await;
        if state["publishers"][0]["gaps"].as_u64() > Some(0) { Ok(()) } else { Err(state) }
    })
    .await;
    gateway.finish().await;
}

/// KV of an engine that died is gone at once, not when its successor says its first word: with real engines that is after the first request that
/// was sent there for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_hold_nothing() {
    let [dying, living] = [engine(&[]), engine(&[])];
    let gateway = gateway(&[&dying, &living]).await;
    for session in 0..4 {
        complete(&gateway, &prompt(session, 10 * PAGE)).await;
    }
    believed(&gateway, 2, 40).await;
    drop(dying);
    eventually("the dead hold nothing", Duration::from_secs(20), || async {
        let state = cache(&gateway).await;
        let held = |at: usize| state["publishers"][at]["device_blocks"].as_u64().unwrap();
        if held(0) == 0 && held(1) > 0 { Ok(()) } else { Err(state) }
    })
    .await;
    assert_eq!(cache(&gateway).await["publishers"][0]["trust"], "silent");
    gateway.finish().await;
}

/// With the model's tokenizer the gateway knows the tokens of a chat: its length is exact, and the next turn finds the last one's KV.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_is_counted_exactly_and_its_next_turn_finds_its_kv() {
    let folder = tempfile::tempdir().unwrap();
    let exported = Command::new(binaries::plimsoll())
        .args(["engine", "--export-model", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let engines = [engine(&[]), engine(&[])];
    let gateway = Plan::with(engines.iter().map(|engine| engine.url.clone()))
        .set("models[0].name", "plimsoll-tiny")
        .set("models[0].tokenizer", folder.path().to_str().unwrap())
        .start()
        .await;
    let mut messages = vec![
        json!({ "role": "system", "content": "the water rises and the ship carries what the mark allows ".repeat(20) }),
    ];
    let mut home = None;
    for turn in 0..3 {
        messages.push(
            json!({ "role": "user", "content": format!("tell me more about the water and the ship, part {turn}") }),
        );
        let body = json!({ "model": "plimsoll-tiny", "messages": messages, "max_tokens": 40, "temperature": 0 });
        let answer = gateway.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        let usage = &answer.json()["usage"];
        assert_eq!((&record["prompt_tokens"], &record["prompt_tokens_exact"]), (&usage["prompt_tokens"], &json!(true)));
        let attempt = &record["attempts"][0];
        if turn > 0 {
            assert_eq!(Some(attempt["engine"].clone()), home, "turn {turn}");
            assert_eq!(attempt["hit_tokens"], usage["prompt_tokens_details"]["cached_tokens"], "turn {turn}");
            assert!(attempt["hit_tokens"].as_u64() > Some(100), "turn {turn}: {attempt}");
        }
        home = Some(attempt["engine"].clone());
        messages.push(answer.json()["choices"][0]["message"].clone());
        // The answer's too: the next turn finds them, and their event may come late.
        let pages = (usage["total_tokens"].as_u64().unwrap() - 1) / PAGE as u64;
        believed(&gateway, 1, pages).await;
    }
    // The system message was tokenised once, and found by the two turns after it.
    let bytes = |result| gateway.metric("plimsoll_tokenized_prompt_bytes_total", result);
    let (known, new) = (bytes(&["result=\"known\""]).await, bytes(&["result=\"new\""]).await);
    assert!(known > 2.0 * 20.0 * 59.0 && new > 20.0 * 59.0 && known > new, "{known} {new}");
    assert!(gateway.metric("plimsoll_segment_cache_entries", &[]).await > 2.0);
    gateway.finish().await;
}

/// Without KV events what an engine holds is taken from what was sent there: sessions stay, what is believed is nearly what is reported, under
/// eviction too, and all of it is marked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_without_events_are_assumed_to_hold_what_was_sent_there() {
    let engines = [0, 1].map(|_| silent_engine(&["--kv-tokens", "2048"]));
    let gateway = gateway(&[&engines[0], &engines[1]]).await;
    let (mut believed, mut reported, mut prompts, mut stayed, mut follow_ups) = (0u64, 0u64, 0u64, 0, 0);
    let mut homes = std::collections::BTreeMap::new();
    for turn in 1..=6usize {
        // Ten sessions fit to their fourth turn.
        for session in 0..10 {
            let tokens = turn * 6 * PAGE;
            let answer = complete(&gateway, &prompt(session, tokens)).await;
            believed += answer.predicted;
            reported += answer.cached;
            prompts += tokens as u64;
            if let Some(home) = homes.insert(session, answer.engine) {
                follow_ups += 1;
                stayed += u32::from(home == answer.engine);
            }
        }
    }
    assert!(reported > prompts / 4, "{reported} of {prompts}");
    let off = believed.abs_diff(reported) as f64 / prompts as f64;
    assert!(off < 0.05, "{believed} believed, {reported} reported of {prompts}");
    assert!(stayed * 10 >= follow_ups * 7, "{stayed} of {follow_ups} follow-ups stayed");
    let state = cache(&gateway).await;
    for publisher in state["publishers"].as_array().unwrap() {
        assert_eq!((&publisher["trust"], &publisher["credited"]), (&json!("approximate"), &json!(true)), "{state}");
        assert!(publisher["device_blocks"].as_u64().unwrap() <= 128, "{state}");
    }
    assert_eq!(gateway.metric("plimsoll_cache_approximate", &["engine=\"1\"", "token_ids"]).await, 1.0);
    assert!(gateway.metric("plimsoll_cache_belief_deviation", &["engine=\"1\""]).await < 0.2);
    gateway.finish().await;
}

/// An engine that does not keep what was sent there is found out by its own reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assumption_that_is_wrong_loses_its_credit() {
    let one = silent_engine(&[]);
    let gateway = gateway(&[&one]).await;
    let addr = one.url.trim_start_matches("http://").parse().unwrap();
    let ids = prompt(1, 20 * PAGE);
    for _ in 0..16 {
        complete(&gateway, &ids).await;
        let flushed = plimsoll_end_to_end::ask(addr, "POST", "/flush_cache", &[], b"").await;
        assert_eq!(flushed.status(), 200);
    }
    let state = cache(&gateway).await;
    assert_eq!(state["publishers"][0]["credited"], false, "{state}");
    assert_eq!(complete(&gateway, &ids).await.predicted, 0);
    assert!(gateway.metric("plimsoll_cache_belief_deviation", &[]).await > 0.5);
    gateway.finish().await;
}

/// A session's chat as a client without any token ids sends it.
struct Chat {
    messages: Vec<Value>,
}

impl Chat {
    fn new(session: usize) -> Chat {
        let text = format!("session {session} is about the water and the mark of ship {session}; ").repeat(24);
        Chat { messages: vec![json!({ "role": "system", "content": text })] }
    }

    /// The next turn: its decision record and the answer's usage.
    async fn ask(&mut self, gateway: &Gateway) -> (Value, Value) {
        let turn = self.messages.len();
        self.messages.push(json!({ "role": "user", "content": format!("and what of part {turn}? ").repeat(6) }));
        let body = json!({ "model": "plimsoll-tiny", "messages": self.messages, "max_tokens": 16, "temperature": 0 });
        let answer = gateway.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        self.messages.push(answer.json()["choices"][0]["message"].clone());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        (record, answer.json()["usage"].clone())
    }
}

/// Nobody has told the gateway of a tokenizer: sessions go back to where they were all the same, and what is believed is close to what
/// is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_tokenizer_sessions_are_known_by_their_text() {
    let engines = [0, 1].map(|_| silent_engine(&["--kv-tokens", "32768"]));
    let gateway = gateway(&[&engines[0], &engines[1]]).await;
    let mut chats: Vec<Chat> = (0..8).map(Chat::new).collect();
    let mut homes = vec![Value::Null; 8];
    let (mut believed, mut reported, mut prompts) = (0, 0, 0);
    for turn in 1..=4u64 {
        for (session, chat) in chats.iter_mut().enumerate() {
            let (record, usage) = chat.ask(&gateway).await;
            assert_eq!((&record["compared_by"], &record["turn"]), (&json!("text"), &json!(turn)), "{record}");
            assert_eq!(record["prompt_tokens_exact"], false);
            let attempt = &record["attempts"][0];
            if turn > 1 {
                assert_eq!(attempt["engine"], homes[session], "session {session}, turn {turn}");
                believed += attempt["hit_tokens"].as_u64().unwrap();
                reported += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
                prompts += usage["prompt_tokens"].as_u64().unwrap();
            }
            homes[session] = attempt["engine"].clone();
        }
    }
    assert!(reported > prompts / 2, "{reported} of {prompts}");
    let off = believed.abs_diff(reported) as f64 / prompts as f64;
    // A block is 256 bytes, 128 tokens of this tokenizer, and a prompt some 1,000.
    assert!(off < 0.15, "{believed} believed, {reported} reported of {prompts}");
    let state = cache(&gateway).await;
    let texts = state["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 2, "{state}");
    for text in texts {
        assert_eq!((&text["trust"], &text["credited"]), (&json!("approximate"), &json!(true)), "{state}");
        assert!(text["reports"].as_u64() > Some(0) && text["belief_deviation"].as_f64() < Some(0.2), "{state}");
    }
    gateway.finish().await;
}

/// An engine that says that its cache is empty holds no texts either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_forgotten_with_the_cache_that_held_them() {
    let one = engine(&[]);
    let gateway = gateway(&[&one]).await;
    let addr = one.url.trim_start_matches("http://").parse().unwrap();
    let mut chat = Chat::new(1);
    chat.ask(&gateway).await;
    assert!(chat.ask(&gateway).await.0["attempts"][0]["hit_tokens"].as_u64() > Some(100));
    let flushed = plimsoll_end_to_end::ask(addr, "POST", "/flush_cache", &[], b"").await;
    assert_eq!(flushed.status(), 200);
    eventually("the texts are forgotten", Duration::from_secs(10), || async {
        let state = cache(&gateway).await;
        if state["texts"][0]["device_blocks"] == 0 { Ok(()) } else { Err(state) }
    })
    .await;
    assert_eq!(chat.ask(&gateway).await.0["attempts"][0]["hit_tokens"], 0);
    gateway.finish().await;
}
