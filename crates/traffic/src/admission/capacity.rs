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

/// Served under load, as a multiple of what the engines' prefill rates added up to then: engines that come or go change it with them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capacity {
    times_rates: Option<f64>,
    /// Start of the span that runs; `None` while the pool is not full.
    since: Option<Nanos>,
    served: u64,
}

impl Capacity {
    pub(crate) fn served(&mut self, tokens: u64) {
        self.served = self.served.saturating_add(tokens);
    }

    /// `full`: something waits and no engine has room; whatever changes that is told at once. `rates`: tokens per second of the engines'
    /// prefill; nothing is learnt while they are unknown.
    pub(crate) fn update(&mut self, now: Nanos, full: bool, rates: Option<f64>) {
        let Some(rates) = rates.filter(|rates| full && *rates > 0.0) else {
            self.since = None;
            return;
        };
        let Some(since) = self.since else {
            (self.since, self.served) = (Some(now), 0);
            return;
        };
        let span = now.since(since);
        if span < SPAN {
            return;
        }
        let times = self.served as f64 / span.as_secs_f64() / rates;
        self.times_rates = Some(match self.times_rates {
            None => times,
            Some(old) => old + (times - old) * if times > old { UP } else { DOWN },
        });
        (self.since, self.served) = (Some(now), 0);
    }

    /// Tokens per second of engines whose prefill rates add up to `rates`.
    pub(crate) fn tokens_per_s(&self, rates: f64) -> Option<f64> {
        self.times_rates.map(|times| times * rates).filter(|rate| *rate > 0.0)
    }
}
