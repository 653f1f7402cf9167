//! A frozen engine accepts connections and answers nothing. It is out within 3 s, what waited there is answered by
//! another, and it is back within 2 s of thawing. One that is merely slow stays.

use crate::{CHAT, body, paced, until};
use plimsoll_end_to_end::{FakeProcess, Gateway, PATIENCE, Plan, eventually};
use plimsoll_fakes::{Control, Dialect};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A busy machine may run a timer late by this much.
const SLACK: Duration = Duration::from_millis(1_500);

/// Sends short requests all the time and counts how they end.
struct Traffic {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    tasks: tokio::task::JoinSet<Vec<String>>,
}

impl Traffic {
    fn start(gateway: &Gateway, clients: usize, tokens: u64) -> Traffic {
        let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for client in 0..clients {
            let (stop, good, addr) = (stop.clone(), good.clone(), gateway.addr);
            tasks.spawn(async move {
                let mut bad = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let ask = body(CHAT, client % 2 == 0, tokens).to_string();
                    let answer = plimsoll_end_to_end::client::ask(addr, "POST", CHAT, &[], ask.as_bytes()).await;
                    let failed = answer.status() != 200 || answer.events().iter().any(|e| e.error_code().is_some());
                    if failed || !answer.complete {
                        bad.push(format!("{} {}", answer.status(), answer.text()));
                    } else {
                        good.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(40)).await;
                }
                bad
            });
        }
        Traffic { stop, good, tasks }
    }

    fn good(&self) -> u64 {
        self.good.load(Ordering::Relaxed)
    }

    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().flatten().collect()
    }
}

async fn state(gateway: &Gateway, url: &str) -> String {
    let engines = gateway.engines().await;
    let engine = engines.iter().find(|engine| engine["url"].as_str().is_some_and(|known| known.starts_with(url)));
    engine.and_then(|engine| engine["state"]["health"].as_str()).unwrap_or("unknown").to_owned()
}

async fn freeze_and_thaw(dialect: Dialect) {
    let args = ["--ttft-ms", "150", "--itl-ms", "5"];
    let (frozen, other) = (FakeProcess::start(dialect, &args), FakeProcess::start(dialect, &args));
    let gateway = Plan::with([frozen.url(), other.url()]).start().await;
    let traffic = Traffic::start(&gateway, 8, 6);
    frozen.until("traffic on the first engine", PATIENCE, |seen| seen.finished > 5).await;
    let url = frozen.url();

    // Freeze it while it holds requests that have produced nothing.
    frozen.until("requests in flight", PATIENCE, |seen| seen.in_flight >= 2).await;
    frozen.process.freeze();
    let start = Instant::now();
    eventually("the frozen engine to be out", Duration::from_secs(15), || async {
        let state = state(&gateway, &url).await;
        if state == "ejected" { Ok(()) } else { Err(state) }
    })
    .await;
    let out = start.elapsed();
    assert!(out < Duration::from_secs(3) + SLACK, "{dialect:?}: out after {out:?}");
    let served = traffic.good();
    eventually("the other engine to serve on", PATIENCE, || async {
        if traffic.good() >= served + 20 { Ok(()) } else { Err(traffic.good()) }
    })
    .await;

    frozen.process.thaw();
    let start = Instant::now();
    eventually("the thawed engine to be back", Duration::from_secs(15), || async {
        let state = state(&gateway, &url).await;
        if state == "healthy" { Ok(()) } else { Err(state) }
    })
    .await;
    let back = start.elapsed();
    assert!(back < Duration::from_secs(2) + SLACK, "{dialect:?}: back after {back:?}");
    let finished = frozen.snapshot().await.finished;
    frozen.until("traffic to come back", PATIENCE, |seen| seen.finished > finished + 3).await;

    let bad = traffic.end().await;
    // Streams that had begun on it may break; what had produced nothing may not, and nothing after that.
    let untyped: Vec<&String> = bad.iter().filter(|answer| !answer.contains("engine_")).collect();
    assert!(untyped.is_empty(), "{untyped:?}");
    assert!(bad.len() <= 8, "{} answers failed, more than were in flight: {bad:?}", bad.len());
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_sglang_is_out_and_back() {
    freeze_and_thaw(Dialect::Sglang).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_vllm_is_out_and_back() {
    freeze_and_thaw(Dialect::Vllm).await;
}

/// Everything that waits on a frozen engine and has produced nothing is answered by the other, whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_are_answered_by_the_other_engine() {
    let frozen = FakeProcess::start(Dialect::Sglang, &["--ttft-ms", "60000"]);
    let other = FakeProcess::start(Dialect::Sglang, &["--ttft-ms", "60000"]);
    let gateway = Plan::with([frozen.url(), other.url()]).start().await;
    let mut waiting = tokio::task::JoinSet::new();
    for n in 0..12 {
        let addr = gateway.addr;
        waiting.spawn(async move {
            let ask = body(CHAT, n % 2 == 0, 3).to_string();
            let id = format!("wait-{n}");
            plimsoll_end_to_end::client::ask(addr, "POST", CHAT, &[("x-request-id", &id)], ask.as_bytes()).await
        });
    }
    let held = plimsoll_end_to_end::patient("all twelve to arrive", async {
        loop {
            let (here, there) = (frozen.snapshot().await.in_flight, other.snapshot().await.in_flight);
            if here + there >= 12 {
                return here;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(held >= 4, "{held} of 12 on the one that will freeze");
    // From now on the other one is quick; those that it holds already stay as they are and are not the point.
    other.control(&Control { ttft_ms: Some(10), ..Control::default() }).await;
    frozen.process.freeze();
    let mut moved = 0;
    while moved < held {
        let answer = plimsoll_end_to_end::patient("a moved request", waiting.join_next()).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.text().contains("t2") && !answer.text().contains("\"error\""), "{}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        let attempts = record["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 2, "{record}");
        assert_ne!(attempts[0]["engine"], attempts[1]["engine"]);
        moved += 1;
    }
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    frozen.process.thaw();
    gateway.finish().await;
}

/// Twenty times the probe's patience without a token, but its cheap endpoints answer: that is a long prefill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_prefill_is_not_a_freeze() {
    for dialect in [Dialect::Sglang, Dialect::Vllm] {
        let (slow, other) = (paced(dialect, 5_000, 0).await, paced(dialect, 5_000, 0).await);
        let gateway = Plan::with([slow.url(), other.url()]).start().await;
        let answer = gateway.post(CHAT, &body(CHAT, true, 2)).await;
        assert_eq!(answer.status(), 200);
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!(record["attempts"].as_array().map(Vec::len), Some(1), "{record}");
        assert_eq!(gateway.states().await, ["healthy", "healthy"]);
        let ejections = gateway.metric("plimsoll_engine_health_changes_total", &["result=\"ejected\""]).await;
        assert_eq!(ejections, 0.0);
        gateway.finish().await;
    }
}

/// Cheap endpoints hang but its stream moves: busy, not frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moving_stream_keeps_an_engine_in() {
    let engine = paced(Dialect::Sglang, 0, 50).await;
    let other = paced(Dialect::Sglang, 0, 50).await;
    let gateway = Plan::with([engine.url(), other.url()]).start().await;
    let (first, second) =
        (gateway.stream(CHAT, &body(CHAT, true, 120)).await, gateway.stream(CHAT, &body(CHAT, true, 120)).await);
    until(&engine, "a stream on each", |seen| seen.running == 1).await;
    let quiet = [
        "/v1/loads",
        "/health",
        "/health_generate",
        "/v1/models",
        "/model_info",
        "/get_model_info",
        "/server_info",
        "/get_server_info",
        "/metrics",
        "/ping",
        "/ready",
        "/openapi.json",
    ];
    engine.control(Control { hang_paths: Some(quiet.map(str::to_owned).to_vec()), ..Control::default() });
    for mut stream in [first, second] {
        let mut events = Vec::new();
        while let Some(event) = stream.data().await {
            events.push(event);
        }
        assert!(events.last().is_some_and(plimsoll_end_to_end::sse::Event::is_done), "{:?}", events.last());
        assert!(events.iter().all(|event| event.error_code().is_none()));
    }
    let ejections = gateway.metric("plimsoll_engine_health_changes_total", &["result=\"ejected\""]).await;
    assert!(ejections <= 1.0, "out while its stream moved");
    engine.control(Control { hang_paths: Some(Vec::new()), ..Control::default() });
    gateway.healthy(2, PATIENCE).await;
    let _: Value = gateway.ledger().await;
    gateway.finish().await;
}

/// Who an engine is takes longer to ask than whether it lives. Neither the slowness of those questions nor a freeze in
/// the middle of them changes when it is out, and what is not answered stays as it was known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_of_identity_never_delay_a_probe() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let (engine, other) = (paced(Dialect::Sglang, 0, 0).await, paced(Dialect::Sglang, 0, 0).await);
    let write = |capacity: u64| {
        let entries = format!("[[engines]]\nurl = \"{}\"\ncapacity_kv_tokens = {capacity}\n", engine.url());
        std::fs::write(&file, format!("{entries}[[engines]]\nurl = \"{}\"\n", other.url())).unwrap();
    };
    write(1_000_000);
    let gateway = Plan::default().config(&file, 2).start().await;
    let id = gateway.engine_id(&engine.url()).await;
    let known = gateway.engines().await.into_iter().find(|e| e["id"] == id).unwrap()["capability"].clone();

    let identity = ["/openapi.json", "/v1/models", "/server_info", "/version", "/metrics"];
    engine.control(Control { hang_paths: Some(identity.map(str::to_owned).to_vec()), ..Control::default() });
    let before = engine.snapshot().requests_on("/openapi.json");
    // A changed entry makes it be asked again at once.
    write(2_000_000);
    gateway.process.signal(rustix::process::Signal::HUP);
    eventually("the questions begun", PATIENCE, || async {
        let reloads = gateway.metric("plimsoll_reloads_total", &["result=\"applied\""]).await;
        let asked = engine.snapshot().requests_on("/openapi.json");
        if reloads > 0.0 && asked > before { Ok(()) } else { Err((reloads, asked)) }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let ejections = gateway.metric("plimsoll_engine_health_changes_total", &["result=\"ejected\""]).await;
    assert_eq!(ejections, 0.0);
    let now = gateway.engines().await.into_iter().find(|e| e["id"] == id).unwrap();
    for fact in ["kind", "version", "models", "dp_ranks", "kv_capacity_tokens", "page_size_tokens", "loads"] {
        assert_eq!(now["capability"][fact], known[fact], "{fact}");
    }

    let all = identity.into_iter().chain(["/v1/loads", "/model_info"]).map(str::to_owned);
    engine.control(Control { hang_paths: Some(all.collect()), ..Control::default() });
    let start = Instant::now();
    eventually("the engine to be out", Duration::from_secs(15), || async {
        let state = state(&gateway, &engine.url()).await;
        if state == "ejected" { Ok(()) } else { Err(state) }
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(3) + SLACK, "out after {:?}", start.elapsed());
    gateway.finish().await;
}

/// What comes back behind an address may be another engine: it gets nothing before it has said what it serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_behind_the_same_url_is_noticed_before_it_is_used() {
    let first = FakeProcess::start(Dialect::Sglang, &["--model", "tiny"]);
    let addr = first.addr.to_string();
    let gateway = Plan::with([first.url()]).start().await;
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    drop(first);
    eventually("the engine to be out", Duration::from_secs(15), || async {
        let state = state(&gateway, &format!("http://{addr}")).await;
        if state == "ejected" { Ok(()) } else { Err(state) }
    })
    .await;
    let second = FakeProcess::start_at(&addr, Dialect::Vllm, &["--model", "large"]);
    gateway.healthy(1, PATIENCE).await;
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 404, "nobody serves `tiny` any more");
    assert_eq!(second.snapshot().await.generations, 0, "it was never asked for `tiny`");
    let mut large = body(CHAT, false, 2);
    large["model"] = "large".into();
    assert_eq!(gateway.post(CHAT, &large).await.status(), 200);
    gateway.finish().await;
}

/// Removed and then frozen: what waits there is answered by the other, and the metrics forget it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_engine_that_freezes_holds_nobody() {
    let frozen = FakeProcess::start(Dialect::Sglang, &["--ttft-ms", "60000"]);
    let gateway = Plan::with([frozen.url()]).start().await;
    let addr = gateway.addr;
    let waiting = tokio::spawn(async move {
        plimsoll_end_to_end::client::ask(addr, "POST", CHAT, &[], body(CHAT, false, 2).to_string().as_bytes()).await
    });
    frozen.until("the request there", PATIENCE, |seen| seen.in_flight == 1).await;
    let id = gateway.engine_id(&frozen.url()).await;
    let other = paced(Dialect::Sglang, 0, 0).await;
    gateway.admin("POST", "/admin/engines", &serde_json::json!({"url": other.url()})).await;
    gateway.healthy(2, PATIENCE).await;
    gateway.admin("DELETE", &format!("/admin/engines/{id}"), &Value::Null).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!waiting.is_finished(), "it stays where it is while the engine lives");
    frozen.process.freeze();
    let answer = plimsoll_end_to_end::patient("the answer of the other", waiting).await.unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let label = format!("engine=\"{id}\"");
    eventually("no series of it left", PATIENCE, || async {
        let text = gateway.metrics().await;
        let left: Vec<String> = text.lines().filter(|line| line.contains(&label)).map(str::to_owned).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    frozen.process.thaw();
    gateway.finish().await;
}

/// With all of them frozen, one request at a time tries each; nobody else waits for an answer that nothing says will come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_are_frozen_all_but_one_try_are_told_at_once() {
    let only = FakeProcess::start(Dialect::Sglang, &["--ttft-ms", "20"]);
    let gateway = Plan::with([only.url()]).start().await;
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    only.process.freeze();
    let url = only.url();
    eventually("the frozen engine to be out", Duration::from_secs(15), || async {
        let state = state(&gateway, &url).await;
        if state == "ejected" { Ok(()) } else { Err(state) }
    })
    .await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let addr = gateway.addr;
        asked.spawn(async move {
            let ask = body(CHAT, false, 2).to_string();
            plimsoll_end_to_end::client::ask(addr, "POST", CHAT, &[], ask.as_bytes()).await
        });
    }
    let mut told = Vec::new();
    for _ in 0..7 {
        let next = plimsoll_end_to_end::patient("a refusal", asked.join_next()).await;
        told.push(next.expect("one of eight").expect("no panic"));
    }
    for answer in &told {
        assert_eq!((answer.status(), answer.code().as_str()), (503, "no_capacity"), "{}", answer.text());
        assert!(answer.header("retry-after").is_some());
    }
    // The one that tries gets its answer from the engine, and lets the others in.
    only.process.thaw();
    let last = plimsoll_end_to_end::patient("the try", asked.join_next()).await.expect("one").expect("no panic");
    assert_eq!(last.status(), 200, "{}", last.text());
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    gateway.finish().await;
}
