//! DP ranks of one engine are places of their own: each is charged, followed and chosen by itself.

use plimsoll_end_to_end::engine::EngineProcess;
use plimsoll_end_to_end::{Gateway, PATIENCE, Plan, eventually};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Tokens of a KV page.
const PAGE: usize = 16;

fn engine(dp_size: &str, more: &[&str]) -> EngineProcess {
    let events = ["--kv-events-endpoint", "tcp://127.0.0.1:0", "--kv-events-replay-endpoint", "tcp://127.0.0.1:0"];
    EngineProcess::start(&[&["--dp-size", dp_size], &events[..], more].concat())
}

async fn gateway(engines: &[&EngineProcess], ranks: usize) -> Gateway {
    let gateway = Plan::with(engines.iter().map(|engine| format!("http://{}", engine.addr))).start().await;
    eventually("every rank is listened to", PATIENCE, || async {
        let state = cache(&gateway).await;
        if state["publishers"].as_array().unwrap().len() == ranks { Ok(()) } else { Err(state) }
    })
    .await;
    gateway
}

async fn cache(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/cache", &Value::Null).await.json()
}

/// Word ids of the tiny model; `from` tells prompts apart from their first token on.
fn prompt(from: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|at| 300 + ((from * 97 + at * 7) % 700) as u32).collect()
}

fn generate(ids: &[u32], tokens: usize) -> Value {
    let sampling = json!({ "max_new_tokens": tokens, "temperature": 0, "ignore_eos": true });
    json!({ "input_ids": ids, "sampling_params": sampling })
}

#[derive(Debug)]
struct Served {
    /// Engine and rank that the gateway chose, which is also the rank that answered.
    place: (u64, u64),
    predicted: u64,
    cached: u64,
}

/// Sends a request; the rank that was charged is the rank that says it answered.
async fn serve(gateway: &Gateway, body: &Value) -> Served {
    let answer = gateway.post("/generate", body).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let meta = answer.json()["meta_info"].clone();
    let record = gateway.record(answer.header("x-request-id").unwrap()).await;
    let attempt = &record["attempts"][0];
    assert_eq!(attempt["rank"], meta["dp_rank"], "{attempt}");
    Served {
        place: (attempt["engine"].as_u64().unwrap(), attempt["rank"].as_u64().unwrap()),
        predicted: attempt["hit_tokens"].as_u64().unwrap_or(0),
        cached: meta["cached_tokens"].as_u64().unwrap(),
    }
}

/// What the gateway has charged, by rank of its first engine.
async fn charged(gateway: &Gateway) -> Vec<u64> {
    let ranks = gateway.engines().await[0]["state"]["ranks"].as_array().unwrap().clone();
    ranks.iter().map(|rank| rank["requests"].as_u64().unwrap()).collect()
}

/// Requests that run or wait, by rank as the engine says.
async fn running(engine: &EngineProcess) -> Vec<u64> {
    let loads = engine.ask("/v1/loads", &Value::Null).await.json()["loads"].as_array().unwrap().clone();
    let of = |load: &Value, name: &str| load[name].as_u64().unwrap();
    loads.iter().map(|load| of(load, "num_running_reqs") + of(load, "num_waiting_reqs")).collect()
}

/// Eight long streams on four ranks: two each, in the ledger and in the engine. One that its client leaves is taken from its
/// rank in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_spread_over_the_ranks_and_the_ledger_knows_where_they_are() {
    let engine = engine("4", &["--step-delay-ms", "20"]);
    let gateway = gateway(&[&engine], 4).await;
    let mut streams = Vec::new();
    for from in 0..8 {
        let mut body = generate(&prompt(from, 4 * PAGE), 20_000);
        body["stream"] = json!(true);
        streams.push(gateway.stream("/generate", &body).await);
    }
    assert_eq!(charged(&gateway).await, [2, 2, 2, 2]);
    eventually("the engine has them where they are charged", PATIENCE, || async {
        let ranks = running(&engine).await;
        if ranks == [2, 2, 2, 2] { Ok(()) } else { Err(ranks) }
    })
    .await;
    drop(streams.remove(0));
    eventually("the one that was left is gone from both", PATIENCE, || async {
        let (ledger, ranks) = (charged(&gateway).await, running(&engine).await);
        if ledger == ranks && ledger.iter().sum::<u64>() == 7 { Ok(()) } else { Err((ledger, ranks)) }
    })
    .await;
    // The next one goes where there is room now.
    let mut body = generate(&prompt(9, 4 * PAGE), 20_000);
    body["stream"] = json!(true);
    streams.push(gateway.stream("/generate", &body).await);
    assert_eq!(charged(&gateway).await, [2, 2, 2, 2]);
    drop(streams);
    gateway.finish().await;
    eventually("nothing runs", PATIENCE, || async {
        let ranks = running(&engine).await;
        if ranks == [0, 0, 0, 0] { Ok(()) } else { Err(ranks) }
    })
    .await;
}

/// Two engines of two and three ranks, fifteen sessions of three turns: every turn goes to the rank that has the one before, and what
/// was believed is what the rank says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_goes_to_the_rank_that_has_the_one_before_and_belief_equals_reports() {
    let engines = [engine("2", &[]), engine("3", &[])];
    let gateway = gateway(&[&engines[0], &engines[1]], 5).await;
    let mut homes = BTreeMap::new();
    for turn in 1..=3usize {
        for session in 0..15 {
            let served = serve(&gateway, &generate(&prompt(session, turn * 8 * PAGE), 2)).await;
            if turn > 1 {
                assert_eq!(served.place, homes[&session], "session {session} turn {turn}: {served:?}");
                assert_eq!(served.predicted, served.cached, "session {session} turn {turn}");
            }
            assert_eq!(served.cached as usize, (turn - 1) * 8 * PAGE, "session {session} turn {turn}");
            homes.insert(session, served.place);
        }
        eventually("the events are heard", PATIENCE, || async {
            let state = cache(&gateway).await;
            let all = state["publishers"].as_array().unwrap();
            let held: u64 = all.iter().map(|one| one["device_blocks"].as_u64().unwrap()).sum();
            if held >= (15 * turn * 8) as u64 { Ok(()) } else { Err(state) }
        })
        .await;
    }
    let used: BTreeSet<(u64, u64)> = homes.values().copied().collect();
    assert!(used.len() >= 3, "ranks do not take their share: {homes:?}");
    let state = cache(&gateway).await;
    let publishers = state["publishers"].as_array().unwrap();
    let heard: BTreeSet<(u64, u64)> =
        publishers.iter().map(|one| (one["engine"].as_u64().unwrap(), one["dp_rank"].as_u64().unwrap())).collect();
    assert!(heard.len() == 5 && heard.is_superset(&used), "{heard:?} are heard, {used:?} used");
    for publisher in publishers {
        let place = (publisher["engine"].as_u64().unwrap(), publisher["dp_rank"].as_u64().unwrap());
        let sessions = homes.values().filter(|home| **home == place).count();
        assert_eq!(publisher["device_blocks"].as_u64(), Some((sessions * 24) as u64), "{publisher}");
        assert_eq!(publisher["believed_tokens"], publisher["reported_tokens"], "{publisher}");
        assert!(sessions == 0 || publisher["trust"] == "whole", "{publisher}");
        for count in ["gaps", "unplaced_blocks", "misnamed_events", "unknown_removals"] {
            assert_eq!(publisher[count], 0, "{count}: {publisher}");
        }
    }
    gateway.finish().await;
}

/// On OpenAI's routes the rank travels in a header; a client has no say in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_says_which_rank_on_every_route_and_the_client_does_not() {
    let engine = engine("3", &[]);
    let gateway = gateway(&[&engine], 3).await;
    let ids = prompt(1, 10 * PAGE);
    let home = serve(&gateway, &generate(&ids, 2)).await.place;
    eventually("the events are heard", PATIENCE, || async {
        let state = cache(&gateway).await;
        let held = |one: &Value| one["dp_rank"].as_u64() == Some(home.1) && one["device_blocks"] == 10;
        if state["publishers"].as_array().unwrap().iter().any(held) { Ok(()) } else { Err(state) }
    })
    .await;
    let elsewhere = (home.1 + 1) % 3;
    let header = elsewhere.to_string();
    let completion = json!({ "prompt": ids, "max_tokens": 2, "ignore_eos": true, "routed_dp_rank": elsewhere });
    let mut native = generate(&ids, 2);
    native["routed_dp_rank"] = json!(elsewhere);
    native["data_parallel_rank"] = json!(elsewhere);
    for (route, body) in [("/v1/completions", completion), ("/generate", native)] {
        let headers = [("x-data-parallel-rank", header.as_str()), ("content-type", "application/json")];
        let answer = gateway.post_raw(route, &headers, body.to_string().as_bytes()).await;
        assert_eq!(answer.status(), 200, "{route}: {}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        let attempt = &record["attempts"][0];
        assert_eq!(attempt["rank"].as_u64(), Some(home.1), "{route}: {attempt}");
        // Only the rank that has it can say so.
        let answer = answer.json();
        let cached = match route {
            "/generate" => &answer["meta_info"]["cached_tokens"],
            _ => &answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        };
        assert_eq!(cached.as_u64(), Some(9 * PAGE as u64), "{route}: {answer}");
        assert_eq!(attempt["hit_tokens"].as_u64(), Some(9 * PAGE as u64), "{route}: {attempt}");
    }
    gateway.finish().await;
}

/// The engine is gone and comes back: its ranks are learnt anew, and nothing is charged to those of its first life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_an_engine_that_was_restarted_are_learnt_anew() {
    let first = engine("2", &[]);
    let addr = first.addr.to_string();
    let gateway = gateway(&[&first], 2).await;
    for session in 0..4 {
        serve(&gateway, &generate(&prompt(session, 8 * PAGE), 2)).await;
    }
    drop(first);
    eventually("its end is noticed", PATIENCE, || async {
        let states = gateway.states().await;
        if states == ["healthy"] { Err(states) } else { Ok(()) }
    })
    .await;
    let events = ["--kv-events-endpoint", "tcp://127.0.0.1:0", "--kv-events-replay-endpoint", "tcp://127.0.0.1:0"];
    let _second = EngineProcess::start_at(&addr, &[&["--dp-size", "2"], &events[..]].concat());
    gateway.healthy(1, PATIENCE).await;
    eventually("its ranks hold nothing", PATIENCE, || async {
        let state = cache(&gateway).await;
        let all = state["publishers"].as_array().unwrap();
        let empty = all.iter().filter(|one| one["device_blocks"] == 0).count();
        if all.len() == 2 && empty == 2 { Ok(()) } else { Err(state) }
    })
    .await;
    let served = serve(&gateway, &generate(&prompt(0, 8 * PAGE), 2)).await;
    assert_eq!((served.predicted, served.cached), (0, 0));
    let again = eventually("what it holds now is known", PATIENCE, || async {
        let again = serve(&gateway, &generate(&prompt(0, 8 * PAGE), 2)).await;
        if again.predicted > 0 { Ok(again) } else { Err(again) }
    })
    .await;
    assert_eq!((again.predicted, again.cached), (7 * PAGE as u64, 7 * PAGE as u64));
    gateway.finish().await;
}
