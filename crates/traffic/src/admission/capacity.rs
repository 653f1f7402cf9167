//! What the pool really serves, in the tokens that are admitted: measured while it had all it could take.
//!
//! Quotas are shares of it. The rates of the engines' prefill are the least of it; output is charged too, and what a pool does of both is
//! only seen: in a span of time in which something waited and no engine had room throughout. Any other span says what was asked, or
//! let go, and not what could be done, and counts for nothing. A higher figure is believed quickly and a
//! lower one slowly: an estimate that followed its own refusals down would never come back.

use plimsoll_core::Nanos;

const SPAN: Nanos = Nanos::from_secs(2);
const UP: f64 = 0.5;
const DOWN: f64 = 0.1;

/// Tokens served per second under load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capacity {
    estimate: Option<f64>,
    /// Start of the span that runs; `None` while the pool is not full.
    since: Option<Nanos>,
    served: u64,
}

impl Capacity {
    pub(crate) fn served(&mut self, tokens: u64) {
        self.served = self.served.saturating_add(tokens);
    }

    /// `full`: something waits and no engine has room; whatever changes that is told at once.
    pub(crate) fn update(&mut self, now: Nanos, full: bool) {
        if !full {
            self.since = None;
            return;
        }
        let Some(since) = self.since else {
            (self.since, self.served) = (Some(now), 0);
            return;
        };
        let span = now.since(since);
        if span < SPAN {
            return;
        }
        let rate = self.served as f64 / span.as_secs_f64();
        self.estimate = Some(match self.estimate {
            None => rate,
            Some(old) => old + (rate - old) * if rate > old { UP } else { DOWN },
        });
        (self.since, self.served) = (Some(now), 0);
    }

    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        self.estimate.filter(|rate| *rate > 0.0)
    }
}
