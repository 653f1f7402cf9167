//! Waiting with an end.

use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// Longest that any single step may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The future's result, or a panic that names the wait.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn patient<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} for: {what}"),
    }
}

/// Asks again until `seen` gives something; says what it saw last when it never does.
///
/// # Panics
/// After `within`.
pub async fn eventually<T, S: std::fmt::Debug, F: Future<Output = Result<T, S>>>(
    what: &str,
    within: Duration,
    mut seen: impl FnMut() -> F,
) -> T {
    let start = Instant::now();
    loop {
        match seen().await {
            Ok(value) => return value,
            Err(instead) => {
                assert!(start.elapsed() < within, "waited {within:?} for: {what}; last seen: {instead:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
