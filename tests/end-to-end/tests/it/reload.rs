//! SIGHUP: a good config is taken over without touching a running stream, a bad one changes nothing and says why.

use crate::{CHAT, body, fake, paced};
use plimsoll_end_to_end::{Gateway, PATIENCE, Plan, eventually};
use plimsoll_fakes::Dialect;
use rustix::process::Signal;
use std::path::{Path, PathBuf};

fn write(file: &Path, engines: &[String], more: &str) {
    let engines: String = engines.iter().map(|url| format!("[[engines]]\nurl = \"{url}\"\n")).collect();
    std::fs::write(file, format!("{more}\n{engines}")).unwrap();
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("plimsoll.toml")
}

async fn reloads(gateway: &Gateway) -> f64 {
    gateway.metric("plimsoll_reloads_total", &[]).await
}

async fn reload(gateway: &Gateway) {
    let before = reloads(gateway).await;
    gateway.process.signal(Signal::HUP);
    eventually("the reload", PATIENCE, || async {
        let now = reloads(gateway).await;
        if now > before { Ok(()) } else { Err(now) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_config_is_taken_over_and_streams_run_on() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, added) = (paced(Dialect::Sglang, 0, 30).await, fake(Dialect::Vllm).await);
    write(&file(&folder), &[engine.url()], "");
    let gateway = Plan::default().config(&file(&folder), 1).start().await;
    let mut stream = gateway.stream(CHAT, &body(CHAT, true, 60)).await;
    stream.data().await.unwrap();
    let large = body(CHAT, false, 2).to_string() + &" ".repeat(2_000);
    assert_eq!(gateway.post_raw(CHAT, &[], large.as_bytes()).await.status(), 200);

    write(&file(&folder), &[engine.url(), added.url()], "[limits]\nbody_bytes = 1000\n");
    reload(&gateway).await;
    gateway.healthy(2, PATIENCE).await;
    assert_eq!(gateway.post_raw(CHAT, &[], large.as_bytes()).await.status(), 413, "the new limit holds");

    let mut events = Vec::new();
    while let Some(event) = stream.data().await {
        events.push(event);
    }
    assert!(events.last().unwrap().is_done() && events.iter().all(|event| event.error_code().is_none()), "{events:?}");

    // And an engine that the file no longer names goes, while its stream stays.
    let mut stream = gateway.stream(CHAT, &body(CHAT, true, 60)).await;
    stream.data().await.unwrap();
    write(&file(&folder), &[added.url()], "");
    reload(&gateway).await;
    eventually("one engine left", PATIENCE, || async {
        let engines = gateway.engines().await;
        if engines.len() == 1 { Ok(()) } else { Err(engines.len()) }
    })
    .await;
    let mut last = None;
    while let Some(event) = stream.data().await {
        assert!(event.error_code().is_none(), "{event:?}");
        last = Some(event);
    }
    assert!(last.unwrap().is_done());
    for _ in 0..5 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200);
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_config_keeps_the_old_one_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let engine = fake(Dialect::Vllm).await;
    write(&file(&folder), &[engine.url()], "[limits]\nbody_bytes = 50000\n");
    let gateway = Plan::default().config(&file(&folder), 1).start().await;
    for (bad, why) in [
        ("[limits]\nbody_bytse = 10\n", "body_bytes"),
        ("[limits]\nbody_bytes = \"many\"\n", "body_bytes"),
        ("this is not toml", "toml"),
    ] {
        write(&file(&folder), &[engine.url()], bad);
        reload(&gateway).await;
        assert_eq!(gateway.post(CHAT, &body(CHAT, false, 2)).await.status(), 200, "after {bad}");
        let large = body(CHAT, false, 2).to_string() + &" ".repeat(60_000);
        assert_eq!(
            gateway.post_raw(CHAT, &[], large.as_bytes()).await.status(),
            413,
            "the old limit holds after {bad}"
        );
        let output = gateway.process.output();
        let told = output.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
        assert!(told.clone().any(|line| line.contains(why)), "the reason names {why}: {:?}", told.collect::<Vec<_>>());
    }
    gateway.finish().await;
}

/// A new key or capacity for the same URL: the engine stays the same one, in the middle of its work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_entry_is_the_same_engine() {
    let folder = tempfile::tempdir().unwrap();
    let engine = paced(Dialect::Sglang, 0, 30).await;
    let entry = |more: &str| {
        std::fs::write(file(&folder), format!("[[engines]]\nurl = \"{}\"\n{more}", engine.url())).unwrap();
    };
    entry("api_key = \"old\"\n");
    let gateway = Plan::default().config(&file(&folder), 1).start().await;
    let id = gateway.engine_id(&engine.url()).await;
    let mut stream = gateway.stream(CHAT, &body(CHAT, true, 100)).await;
    stream.data().await.unwrap();

    entry(
        "api_key = \"new\"\ncapacity_kv_tokens = 777777\n[upstream]\nmax_idle_per_engine = 7\n\
         [decisions]\nring_records = 9\n[gateway]\nmax_connections = 999\n",
    );
    reload(&gateway).await;
    // No gap: it is healthy, knows its models and has its request on the books.
    assert_eq!(gateway.post(CHAT, &body(CHAT, false, 1)).await.status(), 200);
    assert_eq!(engine.snapshot().last_header("authorization"), Some("Bearer new"));
    assert_eq!(gateway.engine_id(&engine.url()).await, id);
    assert_eq!(gateway.states().await, ["healthy"]);
    let totals = gateway.ledger().await["totals"].clone();
    assert_eq!((totals["entries"].as_u64(), totals["orphans"].as_u64()), (Some(1), Some(0)), "{totals}");
    let output = gateway.process.output();
    for key in ["decisions.ring_records", "gateway.max_connections"] {
        let told = output.lines().any(|line| line.contains("needs a restart") && line.contains(key));
        assert!(told, "{key} is not taken over, and nobody says so");
    }
    while let Some(event) = stream.data().await {
        assert!(event.error_code().is_none(), "{event:?}");
    }
    gateway.finish().await;
}

/// One engine that cannot be used: nothing of the new config is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_is_taken_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, added) = (fake(Dialect::Vllm).await, fake(Dialect::Vllm).await);
    write(&file(&folder), &[engine.url()], "");
    let gateway = Plan::default().config(&file(&folder), 1).start().await;
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let broken = format!("[[engines]]\nurl = \"https://localhost:1\"\nca_file = \"{}\"\n", ca.display());
    write(&file(&folder), &[added.url()], &format!("[limits]\nbody_bytes = 1000\n{broken}"));
    reload(&gateway).await;
    assert_eq!(gateway.metric("plimsoll_reloads_total", &["result=\"refused\""]).await, 1.0);
    assert!(gateway.process.output().contains("ca.pem"), "the reason names the file");
    let engines = gateway.engines().await;
    assert_eq!(engines.len(), 1, "{engines:?}");
    let large = body(CHAT, false, 2).to_string() + &" ".repeat(2_000);
    assert_eq!(gateway.post_raw(CHAT, &[], large.as_bytes()).await.status(), 200, "the old limit and engine hold");
    gateway.finish().await;
}
