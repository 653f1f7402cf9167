//! Rate limit in tokens: what a class, or a tenant within it, may have admitted per second.
//!
//! The generic cell rate algorithm (ITU-T I.371) as a leaky bucket: admitted tokens lie in the bucket and run out at the
//! rate; a request is admitted if it fits under the brim (`burst`), and a request larger than the brim when the bucket is
//! empty, for otherwise it could never be served. The textbook form keeps a time of arrival in place of tokens; tokens stay
//! right when the rate changes under them, and the rate follows the water level.
//!
//! In any span of time at most `rate x span + burst + largest request` tokens are admitted.

use plimsoll_core::Nanos;
use serde::Serialize;

#[cfg(test)]
mod tests;

/// What may be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// Zero admits nothing that does not fit the burst; infinity limits nothing.
    pub tokens_per_s: f64,
    pub burst_tokens: u64,
}

/// What limits nothing.
pub(crate) const UNLIMITED: Limit = Limit { tokens_per_s: f64::INFINITY, burst_tokens: 0 };

/// Why and for how long a request must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Until it would be admitted if nothing else were; `None`: never at this rate.
    pub retry_after: Option<Nanos>,
}

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    limit: Limit,
    /// Admitted and not yet run out.
    filled_tokens: f64,
    at: Nanos,
}

impl Meter {
    /// Empty.
    #[must_use]
    pub fn new(limit: Limit, now: Nanos) -> Self {
        Meter { limit: sane(limit), filled_tokens: 0.0, at: now }
    }

    /// Changes the limit; what was admitted until now has run out at the old rate.
    pub fn set_limit(&mut self, limit: Limit, now: Nanos) {
        self.drain(now);
        self.limit = sane(limit);
    }

    /// Admits a request of `tokens`, or says when to come back.
    ///
    /// # Errors
    /// When it does not fit now. Nothing is taken then.
    pub fn admit(&mut self, tokens: u64, now: Nanos) -> Result<(), Refused> {
        self.check(tokens, now)?;
        self.charge(tokens, now);
        Ok(())
    }

    /// Takes tokens whether they fit or not: what is admitted for another reason is missing to those who come after.
    pub fn charge(&mut self, tokens: u64, now: Nanos) {
        self.drain(now);
        if self.limit.tokens_per_s.is_finite() {
            self.filled_tokens += tokens as f64;
        }
    }

    /// As [`Self::admit`], and takes nothing: for asking several meters before any is charged.
    ///
    /// # Errors
    /// When it does not fit now.
    pub fn check(&mut self, tokens: u64, now: Nanos) -> Result<(), Refused> {
        self.drain(now);
        let brim = (self.limit.burst_tokens as f64).max(tokens as f64);
        let over = self.filled_tokens + tokens as f64 - brim;
        if over <= 0.0 || self.limit.tokens_per_s.is_infinite() {
            return Ok(());
        }
        let rate = self.limit.tokens_per_s;
        // Rounded up: whoever comes back then finds room.
        let retry_after = (rate > 0.0).then(|| Nanos::from_secs_f64(over / rate) + Nanos(1_000));
        Err(Refused { retry_after })
    }

    /// Gives back what was admitted and then not run, as far as it has not run out.
    pub fn refund(&mut self, tokens: u64, now: Nanos) {
        self.drain(now);
        self.filled_tokens = (self.filled_tokens - tokens as f64).max(0.0);
    }

    /// Nothing of what was admitted is left: it may be forgotten.
    #[must_use]
    pub fn is_empty(&mut self, now: Nanos) -> bool {
        self.drain(now);
        self.filled_tokens <= 0.0
    }

    /// Admitted and not yet run out.
    pub fn filled_tokens(&mut self, now: Nanos) -> f64 {
        self.drain(now);
        self.filled_tokens
    }

    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    fn drain(&mut self, now: Nanos) {
        // Time that goes back is no time.
        let span = now.since(self.at);
        self.at = self.at.max(now);
        let drained = span.as_secs_f64() * self.limit.tokens_per_s;
        // Infinity times nothing is no number.
        self.filled_tokens = if drained.is_nan() { 0.0 } else { (self.filled_tokens - drained).max(0.0) };
    }
}

/// A rate that is no number admits nothing, as a negative one does.
fn sane(limit: Limit) -> Limit {
    Limit { tokens_per_s: if limit.tokens_per_s > 0.0 { limit.tokens_per_s } else { 0.0 }, ..limit }
}
