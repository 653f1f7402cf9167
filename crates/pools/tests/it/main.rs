//! The engine clients held against the fake engines, which were written from the recordings by other hands.

#![expect(clippy::unwrap_used, reason = "a test may panic, and says where")]

mod control;
mod streams;

use plimsoll_fakes::{Dialect, FakeEngine, Options};
use plimsoll_pools::http::{Endpoint, EndpointOptions};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

async fn fake(dialect: Dialect) -> (FakeEngine, Endpoint) {
    let engine = FakeEngine::start(Options::new(dialect)).await.unwrap();
    let endpoint = Endpoint::new(&engine.url(), EndpointOptions::default()).unwrap();
    (engine, endpoint)
}
