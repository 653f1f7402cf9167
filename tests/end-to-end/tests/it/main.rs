//! One module per promise of the product, against the real process through real sockets.

#![expect(clippy::unwrap_used, reason = "a test may panic, and says where")]

mod admin;
mod auth;
mod bad_answers;
mod bad_input;
mod bench_overload;
mod broken_streams;
mod cache_by_url;
mod cache_view;
mod decisions;
mod demo;
mod disconnect;
mod drain;
mod engine_priority;
mod fidelity;
mod freeze;
mod funnel;
mod h2c;
mod idempotency;
mod kill;
mod latency_model;
mod leases;
mod listing;
mod metrics;
mod overload;
mod pace;
mod passthrough;
mod placement_cases;
mod pool;
mod prefill_decode;
mod promises_by_url;
mod python_sdk;
mod quiet_streams;
mod ranks;
mod reload;
mod replay;
mod request_id;
mod routes;
mod shutdown;
mod slow_reader;
mod soak;
mod spread;
mod tls;
mod token_mode;
mod top;
mod traffic;
mod wishes;

use plimsoll_end_to_end::{PATIENCE, eventually};
use plimsoll_fakes::{Control, Dialect, FakeEngine, Fault, Options, Snapshot};
use serde_json::{Value, json};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";
pub(crate) const GENERATE: &str = "/generate";

pub(crate) async fn fake(dialect: Dialect) -> FakeEngine {
    FakeEngine::start(Options::new(dialect)).await.unwrap()
}

/// A fake with a first token after `ttft_ms` and one every `itl_ms` then.
pub(crate) async fn paced(dialect: Dialect, ttft_ms: u64, itl_ms: u64) -> FakeEngine {
    FakeEngine::start(Options { ttft_ms, itl_ms, ..Options::new(dialect) }).await.unwrap()
}

pub(crate) fn set_fault(engine: &FakeEngine, fault: Fault) {
    engine.control(Control { fault: Some(fault), ..Control::default() });
}

/// A request of this route's form for `tokens` tokens.
pub(crate) fn body(route: &str, stream: bool, tokens: u64) -> Value {
    match route {
        CHAT => json!({"model": "tiny", "messages": [{"role": "user", "content": "hello there"}],
            "max_tokens": tokens, "stream": stream}),
        COMPLETIONS => json!({"model": "tiny", "prompt": "hello there", "max_tokens": tokens, "stream": stream}),
        EMBEDDINGS => json!({"model": "tiny", "input": "hello there"}),
        _ => json!({"text": "hello there", "stream": stream, "sampling_params": {"max_new_tokens": tokens}}),
    }
}

/// What a fake answers with so many tokens.
pub(crate) fn text(tokens: u64) -> String {
    (0..tokens).map(|token| format!(" t{token}")).collect()
}

/// Waits until the fake has seen something.
pub(crate) async fn until(engine: &FakeEngine, what: &str, seen: impl Fn(&Snapshot) -> bool) -> Snapshot {
    eventually(what, PATIENCE, || async {
        let snapshot = engine.snapshot();
        if seen(&snapshot) { Ok(snapshot) } else { Err(snapshot) }
    })
    .await
}

/// Says that a test did not run, with the reason. Named in the output so that nobody takes it for a pass.
pub(crate) fn skipped(test: &str, why: &str) {
    use std::io::Write as _;
    // Past the test harness, which hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// 32 lower-case hex digits.
pub(crate) fn is_rid(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
