//! The task that gives turns: when something moved, and when the next one's time is up.

use crate::state::Shared;
use plimsoll_core::Nanos;
use std::sync::Arc;
use std::time::Duration;

/// Turns are given at most this often: every first token and every end of a busy fleet asks for one.
const AT_MOST_EVERY: Duration = Duration::from_millis(1);

/// Runs until its task is ended.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        let next = turn(&shared);
        let wait = async {
            match next {
                Some(at) => tokio::time::sleep(Duration::from_nanos(at.since(shared.now()).0)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.traffic.wake.notified() => {}
            () = wait => {}
        }
        tokio::time::sleep(AT_MOST_EVERY).await;
    }
}

fn turn(shared: &Shared) -> Option<Nanos> {
    let traffic = &shared.traffic;
    traffic.lanes().values().filter_map(|lane| lane.turn(shared, traffic)).min()
}
