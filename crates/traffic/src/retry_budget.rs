//! Retries as a fraction of requests, so that they never multiply an overload.
//!
//! Peers allow five attempts per request with no total: a fleet that answers 503 sees five times its traffic
//! (`gateways.md` §3.3). A budget in the manner of Finagle's and linkerd's: each request pays in a fraction of a
//! retry, a retry takes a whole one out, and the balance is bounded. Counts only; without a clock the result depends on
//! the order of calls alone.

#[cfg(test)]
mod tests;

/// Balance in millionths of a retry, so that many small deposits add up exactly.
const UNIT: u64 = 1_000_000;

/// Token bucket filled by requests and emptied by retries.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    per_request: u64,
    capacity: u64,
    balance: u64,
}

impl RetryBudget {
    /// `fraction` retries per request in the long run (clamped to 0..=1), and at most `burst` at once. Starts full.
    /// With a `burst` of 0 there are no retries at all.
    #[must_use]
    pub fn new(fraction: f64, burst: u32) -> Self {
        // `as` maps NaN to zero: no retries rather than unbounded ones.
        let per_request = (fraction.clamp(0.0, 1.0) * UNIT as f64).round() as u64;
        let capacity = u64::from(burst) * UNIT;
        RetryBudget { per_request, capacity, balance: capacity }
    }

    /// A request (not a retry) arrived.
    pub fn on_request(&mut self) {
        self.balance = (self.balance + self.per_request).min(self.capacity);
    }

    /// Takes one retry out. False: the budget is spent; answer what the engine answered.
    #[must_use]
    pub fn try_retry(&mut self) -> bool {
        let allowed = self.balance >= UNIT;
        if allowed {
            self.balance -= UNIT;
        }
        allowed
    }

    /// Whole retries available now, for a gauge.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.balance / UNIT
    }

    /// Takes new settings; the balance stays as far as it fits.
    pub fn reconfigure(&mut self, fraction: f64, burst: u32) {
        let fresh = RetryBudget::new(fraction, burst);
        *self = RetryBudget { balance: self.balance.min(fresh.capacity), ..fresh };
    }
}
