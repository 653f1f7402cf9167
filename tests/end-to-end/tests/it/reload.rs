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
