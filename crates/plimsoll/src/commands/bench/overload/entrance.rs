//! What stands before the gateway under the controls that are not its own.
//!
//! Both are the best case of their kind: they cost nothing and refuse at once.
//! - `uniform`: one token bucket for everything, refilled at a fixed rate, two seconds deep.
//! - `static`: Dynamo's busy threshold. A request is refused while every engine has more than a fixed number of tokens
//!   to prefill (its `--active-prefill-tokens-threshold`, 20,000 in the runs it is known from), as last seen; loads are read every
//!   50 ms, as its own are.

use super::fleet::Fleet;
use super::plan::{Ask, Plan};
use super::{Control, OverloadArgs, SCALE};
use crate::Failure;
use serde_json::Value;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const BURST_S: f64 = 2.0;
const BUSY_TOKENS: u64 = 20_000 / SCALE;
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(super) enum Entrance {
    Open,
    Bucket(Mutex<Bucket>),
    /// Uncached prefill tokens of the least busy engine, and who reads them.
    Busy(Arc<AtomicU64>, JoinHandle<()>),
}

pub(super) struct Bucket {
    per_s: f64,
    tokens: f64,
    at: Instant,
    time_scale: f64,
}

impl Bucket {
    fn new(per_s: f64, time_scale: f64, now: Instant) -> Self {
        Bucket { per_s, tokens: per_s * BURST_S, at: now, time_scale }
    }

    fn take(&mut self, cost_tokens: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64() * self.time_scale;
        self.at = now;
        let deepest = self.per_s * BURST_S;
        self.tokens = (self.tokens + passed * self.per_s).min(deepest);
        // What is larger than the bucket goes when the bucket is full.
        let cost = (cost_tokens as f64).min(deepest);
        let fits = self.tokens >= cost;
        if fits {
            self.tokens -= cost;
        }
        fits
    }
}

impl Entrance {
    pub(super) fn new(args: &OverloadArgs, plan: &Plan, fleet: &Fleet) -> Result<Entrance, Failure> {
        Ok(match args.control {
            Control::None | Control::Plimsoll => Entrance::Open,
            Control::Uniform => {
                let per_s = args.uniform_tokens_per_s.unwrap_or(plan.capacity_tokens_per_s);
                Entrance::Bucket(Mutex::new(Bucket::new(per_s, args.time_scale, Instant::now())))
            }
            Control::Static => {
                let (least, operator) = (Arc::new(AtomicU64::new(0)), fleet.operator()?);
                let seen = Arc::clone(&least);
                let reading = tokio::spawn(async move {
                    loop {
                        if let Some(tokens) = operator.get("/admin/engines").await.as_ref().and_then(least_busy) {
                            seen.store(tokens, Ordering::Relaxed);
                        }
                        tokio::time::sleep(LOOK_EVERY).await;
                    }
                });
                Entrance::Busy(least, reading)
            }
        })
    }

    /// Whether it may go on to the gateway.
    pub(super) fn admits(&self, ask: &Ask) -> bool {
        match self {
            Entrance::Open => true,
            Entrance::Bucket(bucket) => {
                bucket.lock().unwrap_or_else(PoisonError::into_inner).take(ask.cost_tokens(), Instant::now())
            }
            Entrance::Busy(least, _) => least.load(Ordering::Relaxed) <= BUSY_TOKENS,
        }
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        if let Entrance::Busy(_, reading) = self {
            reading.abort();
        }
    }
}

fn least_busy(engines: &Value) -> Option<u64> {
    let tokens = |engine: &Value| {
        let ranks = engine["state"]["ranks"].as_array()?;
        Some(ranks.iter().filter_map(|rank| rank["uncached_prefill_tokens"].as_u64()).sum::<u64>())
    };
    engines["engines"].as_array()?.iter().filter_map(tokens).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bucket_lets_its_rate_through() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100.0, 2.0, start);
        let mut passed = 0;
        // Twice as fast: fifty real seconds are a hundred of the scenario.
        for tick in 0..5_000u64 {
            passed += u64::from(bucket.take(7, start + Duration::from_millis(10 * tick))) * 7;
        }
        assert!((9_990..=10_210).contains(&passed), "{passed}");
        assert!(bucket.take(1_000_000, start + Duration::from_secs(60)), "a full bucket holds anything");
    }

    #[test]
    fn the_least_busy_engine_counts_all_its_ranks() {
        let engine = |tokens: &[u64]| {
            let ranks: Vec<Value> = tokens.iter().map(|tokens| json!({"uncached_prefill_tokens": tokens})).collect();
            json!({"state": {"ranks": ranks}})
        };
        let engines = json!({"engines": [engine(&[9, 3]), engine(&[5, 6]), json!({})]});
        assert_eq!(least_busy(&engines), Some(11));
    }
}
