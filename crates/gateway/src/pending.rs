//! Work that goes on after its request has ended, counted so that the end of the process can wait for it.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A count of running pieces of work.
pub struct PendingWork {
    count: Arc<watch::Sender<usize>>,
}

/// One piece; done when dropped.
pub struct Piece {
    count: Arc<watch::Sender<usize>>,
}

impl Default for PendingWork {
    fn default() -> Self {
        PendingWork { count: Arc::new(watch::channel(0).0) }
    }
}

impl PendingWork {
    #[must_use]
    pub fn begin(&self) -> Piece {
        self.count.send_modify(|count| *count += 1);
        Piece { count: self.count.clone() }
    }

    /// Waits until nothing runs, at most `limit`.
    pub async fn done(&self, limit: Duration) {
        let mut count = self.count.subscribe();
        let _ = tokio::time::timeout(limit, count.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count = count.saturating_sub(1));
    }
}
