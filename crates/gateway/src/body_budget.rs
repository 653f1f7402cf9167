//! Request bodies held in memory, counted over all requests and bounded (`limits.total_body_bytes`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct BodyBudget {
    held_bytes: Arc<AtomicUsize>,
}

/// Bytes of one request; given back on drop.
#[derive(Debug)]
pub struct BodyHold {
    held_bytes: Arc<AtomicUsize>,
    bytes: usize,
}

impl BodyBudget {
    #[must_use]
    pub fn hold(&self) -> BodyHold {
        BodyHold { held_bytes: self.held_bytes.clone(), bytes: 0 }
    }

    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }
}

impl BodyHold {
    /// Adds `bytes`; false when that would pass `limit_bytes` in all.
    #[must_use]
    pub fn grow(&mut self, bytes: usize, limit_bytes: usize) -> bool {
        let before = self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        before.saturating_add(bytes) <= limit_bytes
    }
}

impl Drop for BodyHold {
    fn drop(&mut self) {
        self.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
