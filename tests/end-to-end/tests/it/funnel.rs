//! The funnel tells where a hit rate is lost, and follow-up turns are known by their tokens.

use crate::cache_view::{believed, engine, prompt};
use plimsoll_end_to_end::{Gateway, Plan, binaries, eventually};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const PAGE: usize = 16;

async fn complete(gateway: &Gateway, ids: &[u32], max_tokens: u64) -> (Value, Value) {
    let body = json!({ "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true });
    let answer = gateway.post("/v1/completions", &body).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let record = gateway.record(answer.header("x-request-id").unwrap()).await;
    (answer.json(), record)
}

/// The funnel of the only model once it has measured so many requests.
async fn funnel(gateway: &Gateway, requests: u64) -> Value {
    eventually("the funnel has worked its queue off", Duration::from_secs(20), || async {
        let state = gateway.admin("GET", "/admin/funnel", &Value::Null).await.json();
        if state["models"][0]["ever"]["requests"] == requests { Ok(state["models"][0].clone()) } else { Err(state) }
    })
    .await
}

fn tokens(model: &Value, layer: &str) -> u64 {
    model["ever"]["tokens"][layer].as_u64().unwrap()
}

fn lost(model: &Value, cause: &str) -> u64 {
    model["ever"]["lost"][cause].as_u64().unwrap()
}

/// With room for everything and sessions that stay, all four layers are one, and the turns are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_room_for_all_the_layers_are_one_and_turns_are_known() {
    let engines = [engine(&[]), engine(&[])];
    let gateway = Plan::with(engines.iter().map(|engine| engine.url.clone())).start().await;
    let mut blocks = 0;
    for turn in 1..=4usize {
        for session in 0..6 {
            let (_, record) = complete(&gateway, &prompt(session, turn * 10 * PAGE + 5), 2).await;
            assert_eq!(record["turn"], turn, "session {session}: {record}");
            assert_eq!(record["hit_rounds"], turn.saturating_sub(2), "session {session}: {record}");
            blocks += 10;
        }
        believed(&gateway, 2, blocks).await;
    }
    let model = funnel(&gateway, 24).await;
    let hits = 6 * (10 + 20 + 30) * PAGE as u64;
    for layer in ["ceiling", "entrance", "placed", "actual"] {
        assert_eq!(tokens(&model, layer), hits, "{layer}: {model}");
    }
    assert_eq!(tokens(&model, "prompt"), 6 * (10 + 20 + 30 + 40) * PAGE as u64 + 24 * 5);
    assert_eq!((model["ranks"].as_u64(), model["ever"]["above_model_requests"].as_u64()), (Some(2), Some(0)));
    let text = gateway.metrics().await;
    assert!(text.contains("plimsoll_funnel_tokens_total{model=\"plimsoll-tiny\""), "{text}");
    assert_eq!(gateway.metric("plimsoll_funnel_tokens_total", &["layer=\"actual\""]).await as u64, hits);
    // What the command shows is what the gateway says.
    let shown = |more: &[&str]| {
        let mut command = Command::new(binaries::plimsoll());
        command.args(["funnel", "--once", "--admin", &format!("http://{}", gateway.admin)]).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = shown(&[]);
    let rate = format!("actual       {:.2} %", hits as f64 * 100.0 / tokens(&model, "prompt") as f64);
    assert!(table.contains("plimsoll-tiny: 24 requests") && table.contains(&rate), "{table}");
    let json: Value = serde_json::from_str(&shown(&["--json"])).unwrap();
    assert_eq!(json["models"][0]["ever"], model["ever"]);
    gateway.finish().await;
}

/// Three engines with little KV and sessions that are sent about: what a layer has less (or more) than the one above is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_each_loss_has_its_cause_and_the_engine_is_the_lru_cache_it_is_taken_for() {
    let engines = [0, 1, 2].map(|_| engine(&["--kv-tokens", "1024"]));
    let gateway =
        Plan::with(engines.iter().map(|engine| engine.url.clone())).arg("--policy").arg("round_robin").start().await;
    let (mut requests, mut prompts) = (0, 0);
    for turn in 1..=6usize {
        // One more in the third turn: from the fourth on every session is at the next engine.
        for session in 0..if turn == 3 { 10 } else { 9 } {
            let ids = prompt(session, turn * 5 * PAGE + 3);
            complete(&gateway, &ids, 1).await;
            requests += 1;
            prompts += ids.len() as u64;
        }
    }
    let model = funnel(&gateway, requests).await;
    let [ceiling, entrance, placed, actual] =
        ["ceiling", "entrance", "placed", "actual"].map(|layer| tokens(&model, layer));
    assert_eq!(tokens(&model, "prompt"), prompts);
    // Whatever was asked for before: the first five, ten ... blocks of each session.
    assert_eq!(ceiling, 9 * (5 + 10 + 15 + 20 + 25) * PAGE as u64);
    assert!(entrance < ceiling && placed < ceiling, "{model}");
    assert_eq!(ceiling - entrance, lost(&model, "capacity"));
    assert!(lost(&model, "cross_instance") > 0 && placed > 0, "{model}");
    let choice = lost(&model, "cross_instance") + lost(&model, "partition");
    let gained = |cause: &str| model["ever"]["gained"][cause].as_u64().unwrap();
    assert_eq!(entrance + gained("partition"), placed + choice);
    let engine_side: u64 =
        ["evicted", "stale_view", "in_flight", "unknown"].iter().map(|cause| lost(&model, cause)).sum();
    assert_eq!(placed + gained("above_model"), actual + engine_side);
    // The engine evicts as an LRU cache of its size would, give or take what answers and running requests hold.
    let off = placed.abs_diff(actual) as f64 / prompts as f64;
    assert!(off < 0.05, "the model is {off:.3} of the prompts off: {model}");
    // More room, more hits.
    let points: Vec<u64> =
        model["curve"].as_array().unwrap().iter().map(|point| point["ever_tokens"].as_u64().unwrap()).collect();
    assert!(points.is_sorted() && points[0] < points[points.len() - 1], "{points:?}");
    gateway.finish().await;
}

/// Where an engine says from which tier its hits came, that is added up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_are_told_by_tier_where_the_engine_says_it() {
    let engine = engine(&[]);
    let gateway = Plan::with([engine.url.clone()]).start().await;
    let body = json!({ "input_ids": prompt(1, 10 * PAGE + 1), "sampling_params": { "max_new_tokens": 1 } });
    for _ in 0..2 {
        assert_eq!(gateway.post("/generate", &body).await.status(), 200);
    }
    let model = funnel(&gateway, 2).await;
    let by_tier = &model["ever"]["actual_by_tier"];
    assert_eq!(by_tier, &json!({ "device": 10 * PAGE, "host": 0, "storage": 0 }), "{model}");
    assert_eq!(tokens(&model, "actual"), 10 * PAGE as u64);
    gateway.finish().await;
}

/// A request without token ids is counted as such, and in no layer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_measured_is_said() {
    let engine = engine(&[]);
    let gateway = Plan::with([engine.url.clone()]).start().await;
    let body = json!({ "prompt": "hello there", "max_tokens": 1 });
    assert_eq!(gateway.post("/v1/completions", &body).await.status(), 200);
    eventually("it is counted", Duration::from_secs(10), || async {
        let state = gateway.admin("GET", "/admin/funnel", &Value::Null).await.json();
        let model = &state["models"][0];
        if model["not_measured"]["no_token_ids"] == 1 && model["ever"]["requests"] == 0 { Ok(()) } else { Err(state) }
    })
    .await;
    gateway.finish().await;
}
