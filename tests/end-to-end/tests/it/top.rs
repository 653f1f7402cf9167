//! `plimsoll top --once` prints what a gateway does, and says clearly when there is none.

use crate::{CHAT, body, fake};
use plimsoll_end_to_end::{Plan, Process, binaries};
use plimsoll_fakes::Dialect;
use std::process::Command;
use std::time::Duration;

async fn top(args: &[&str]) -> (bool, String) {
    let mut command = Command::new(binaries::plimsoll());
    command.args(["top", "--once"]).args(args).env_remove("PLIMSOLL_ADMIN__TOKEN");
    let mut process = Process::start("plimsoll top", &mut command).unwrap();
    let status = process.ended(Duration::from_secs(30)).await;
    (status.success(), process.output())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_prints_the_tables_and_a_missing_gateway_is_said() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).token("secret").start().await;
    for _ in 0..3 {
        assert_eq!(gateway.post(CHAT, &body(CHAT, true, 4)).await.status(), 200);
    }
    assert_eq!(gateway.post_raw(CHAT, &[], b"{").await.status(), 400);
    let admin = format!("http://{}", gateway.admin);
    let (ended_well, text) = top(&["--admin", &admin, "--token", "secret"]).await;
    assert!(ended_well, "{text}");
    for part in ["ENGINES", "CLASSES", "WATER LEVELS", "CACHE HITS", "REFUSALS", "healthy", "high", "invalid_json"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let url = engine.url();
    assert!(text.contains(url.trim_start_matches("http://").trim_end_matches('/')), "{text}");
    let (ended_well, text) = top(&["--admin", &admin, "--token", "wrong"]).await;
    assert!(!ended_well && text.contains("--admin-token"), "{text}");
    gateway.finish().await;
    let (ended_well, text) = top(&["--admin", &admin]).await;
    assert!(!ended_well && text.contains("is the gateway running?"), "{text}");
}
