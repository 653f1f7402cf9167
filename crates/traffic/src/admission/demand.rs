//! Who asks for what of late: quotas and holding back are for the good of somebody, and only as far as he is there.

use plimsoll_core::{Class, ModelDemand, Nanos};

/// Time constant of what is asked for.
const MEMORY: Nanos = Nanos::from_secs(10);

/// Recent arrivals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    classes: [Asked; 3],
}

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    last: Option<Nanos>,
    cost: Flow,
    prefill: Flow,
}

/// Tokens per second, smoothed.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    tokens_per_s: f64,
    at: Nanos,
}

impl Flow {
    /// Each arrival adds an impulse whose integral is its tokens.
    fn add(&mut self, tokens: u64, now: Nanos) {
        self.tokens_per_s = self.value(now) + tokens as f64 / MEMORY.as_secs_f64();
        self.at = self.at.max(now);
    }

    /// Decays by `c / (dt + c)`, as the level does, so that no `exp` is needed.
    fn value(&self, now: Nanos) -> f64 {
        let (dt, constant) = (now.since(self.at).as_secs_f64(), MEMORY.as_secs_f64());
        self.tokens_per_s * constant / (dt + constant)
    }
}

impl Demand {
    pub(crate) fn asked(&mut self, class: Class, cost_tokens: u64, prefill_tokens: u64, now: Nanos) {
        let asked = &mut self.classes[class as usize];
        asked.last = Some(now);
        asked.cost.add(cost_tokens, now);
        asked.prefill.add(prefill_tokens, now);
    }

    /// No other class had a request within `memory`, here or at the `others`.
    pub(crate) fn is_alone(&self, class: Class, now: Nanos, memory: Nanos, others: &ModelDemand) -> bool {
        let asks = |other: &Class| self.asks(*other, now, memory) || others.asked_tokens_per_s[*other as usize] > 0.0;
        !Class::ALL.iter().filter(|other| **other != class).any(asks)
    }

    /// Tokens per second, as they are charged, that the classes above this one ask for, here and at the `others`.
    pub(crate) fn above_tokens_per_s(&self, class: Class, now: Nanos, others: &ModelDemand) -> f64 {
        let own: f64 = self.classes[..class as usize].iter().map(|asked| asked.cost.value(now)).sum();
        own + others.asked_tokens_per_s[..class as usize].iter().sum::<f64>()
    }

    /// Tokens per second, as they are charged, that a class asks for; none where it had no request within `memory`.
    pub(crate) fn asked_tokens_per_s(&self, class: Class, now: Nanos, memory: Nanos) -> f64 {
        if self.asks(class, now, memory) { self.classes[class as usize].cost.value(now) } else { 0.0 }
    }

    /// Tokens of prefill per second that the high class asks for; `None` where it had no request within `memory`.
    pub(crate) fn high_prefill_tokens_per_s(&self, now: Nanos, memory: Nanos) -> Option<f64> {
        self.asks(Class::High, now, memory).then(|| self.classes[Class::High as usize].prefill.value(now))
    }

    fn asks(&self, class: Class, now: Nanos, memory: Nanos) -> bool {
        self.classes[class as usize].last.is_some_and(|at| now.since(at) <= memory)
    }
}
