//! A session's calls in their order: each begins when the calls that it waits for have ended and its pause is over.

use plimsoll_core::Nanos;
use plimsoll_workload::Call;
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Makes all calls of a session that began at `begun`; `pause` says how long a pause of the source lasts here. `call` is given each
/// call with the moment that it is due, and its future runs from then on.
pub(crate) async fn play<F>(
    calls: Vec<Call>,
    begun: Instant,
    pause: impl Fn(Nanos) -> Duration,
    call: impl Fn(Call, Instant) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut ended: Vec<Option<Instant>> = vec![None; calls.len()];
    let mut waiting: Vec<(usize, Call)> = calls.into_iter().enumerate().rev().collect();
    let mut running = JoinSet::new();
    while !waiting.is_empty() || !running.is_empty() {
        // Calls wait for earlier ones only, so the due ones are near the end of this reversed list.
        for position in (0..waiting.len()).rev() {
            if let Some(due) = due(&waiting[position].1, &ended, begun, &pause) {
                let (index, next) = waiting.remove(position);
                let begins = call(next, due);
                running.spawn(async move {
                    sleep_until(due).await;
                    begins.await;
                    index
                });
            }
        }
        match running.join_next().await {
            Some(Ok(index)) => ended[index] = Some(Instant::now()),
            // A call that panicked has no index to release the others by; nothing is due without it.
            Some(Err(_)) | None => return,
        }
    }
}

/// When the call may start; `None` while a call that it waits for is running.
fn due(call: &Call, ended: &[Option<Instant>], begun: Instant, pause: &impl Fn(Nanos) -> Duration) -> Option<Instant> {
    call.after.iter().try_fold(begun, |latest, after| {
        let end = ended.get(after.call).copied().flatten()?;
        Some(latest.max(end + pause(after.delay)))
    })
}
