//! Complaints about placement that only sockets can show; the others are tests of `plimsoll-load` (`docs/operating/placement.md`).

use crate::{CHAT, body};
use plimsoll_end_to_end::{FakeProcess, Plan, patient};
use plimsoll_fakes::Dialect;
use std::collections::{BTreeMap, BTreeSet};

const REQUESTS: u64 = 200;

/// Requests of each path that these engines have received.
async fn received(engines: &[&FakeProcess]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for engine in engines {
        for (path, count) in engine.snapshot().await.requests {
            *all.entry(path).or_default() += count;
        }
    }
    all
}

/// A peer renders and tokenises on every worker for every request, so that a frozen one costs everybody a second. Here a
/// choice asks nobody: engines see the request itself, once, and the probes that they see anyway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_14_a_choice_asks_no_engine_and_a_frozen_one_delays_nobody() {
    let engines: Vec<FakeProcess> = (0..4).map(|_| FakeProcess::start(Dialect::Vllm, &["--ttft-ms", "5"])).collect();
    let gateway = Plan::with(engines.iter().map(FakeProcess::url)).start().await;
    let living: Vec<&FakeProcess> = engines[1..].iter().collect();
    let before = received(&living).await;
    engines[0].process.freeze();
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..REQUESTS {
        let addr = gateway.addr;
        asked.spawn(async move {
            let ask = body(CHAT, false, 2).to_string();
            plimsoll_end_to_end::client::ask(addr, "POST", CHAT, &[], ask.as_bytes()).await
        });
    }
    while let Some(answer) = patient("an answer", asked.join_next()).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    let after = received(&living).await;
    let new = |path: &str| after.get(path).copied().unwrap_or(0) - before.get(path).copied().unwrap_or(0);
    assert_eq!(new(CHAT), REQUESTS, "each came to one living engine once, those of the frozen one too: {after:?}");
    let paths =
        |seen: &BTreeMap<String, u64>| seen.keys().filter(|path| *path != CHAT).cloned().collect::<BTreeSet<_>>();
    assert_eq!(paths(&before), paths(&after), "nothing is asked that a probe does not ask");
    let probes: u64 = paths(&after).iter().map(|path| new(path)).sum();
    assert!(probes < REQUESTS, "{probes} calls besides {REQUESTS} requests");
    let (sum, count) = (
        gateway.metric("plimsoll_placement_seconds_sum", &[]).await,
        gateway.metric("plimsoll_placement_seconds_count", &[]).await,
    );
    assert!(count >= REQUESTS as f64 && sum / count < 0.01, "{count} choices took {sum} s");
    engines[0].process.thaw();
    gateway.finish().await;
}
