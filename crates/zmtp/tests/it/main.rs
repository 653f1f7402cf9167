//! Sockets over loopback: what is promised to subscribers, and what hostile peers can do.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod hostile;
mod publish;
mod reply;

use plimsoll_zmtp::{Endpoint, Limits, Publisher};
use std::time::{Duration, Instant};

/// Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

fn local() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

fn publisher(limits: Limits) -> (Publisher, Endpoint) {
    let (listener, endpoint) = local().bind().unwrap();
    (Publisher::bind(listener, limits).unwrap(), endpoint)
}

async fn wait(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
