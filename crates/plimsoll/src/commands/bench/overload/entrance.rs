//! What stands before the gateway under the controls that are not its own, before real processes.

use super::fleet::Fleet;
use super::{Control, OverloadArgs};
use crate::Failure;
use plimsoll_sim::overload::entrance::{BUSY_TOKENS, Bucket, LOOK_EVERY};
use plimsoll_sim::overload::{Ask, Plan};
use serde_json::Value;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

pub(super) enum Entrance {
    Open,
    Bucket(Mutex<Bucket>),
    /// Uncached prefill tokens of the least busy engine, and who reads them.
    Busy(Arc<AtomicU64>, JoinHandle<()>),
}

impl Entrance {
    pub(super) fn new(args: &OverloadArgs, plan: &Plan, fleet: &Fleet) -> Result<Entrance, Failure> {
        Ok(match args.control {
            Control::None | Control::Plimsoll => Entrance::Open,
            Control::Uniform => {
                let per_s = args.uniform_tokens_per_s.unwrap_or(plan.capacity_tokens_per_s);
                Entrance::Bucket(Mutex::new(Bucket::new(per_s)))
            }
            Control::Static => {
                let (least, operator) = (Arc::new(AtomicU64::new(0)), fleet.operator()?);
                let seen = Arc::clone(&least);
                let reading = tokio::spawn(async move {
                    loop {
                        if let Some(tokens) = operator.get("/admin/engines").await.as_ref().and_then(least_busy) {
                            seen.store(tokens, Ordering::Relaxed);
                        }
                        tokio::time::sleep(Duration::from_nanos(LOOK_EVERY.0)).await;
                    }
                });
                Entrance::Busy(least, reading)
            }
        })
    }

    /// Whether it may go on to the gateway, at this second of the scenario.
    pub(super) fn admits(&self, ask: &Ask, now_s: f64) -> bool {
        match self {
            Entrance::Open => true,
            Entrance::Bucket(bucket) => {
                bucket.lock().unwrap_or_else(PoisonError::into_inner).take(ask.cost_tokens(), now_s)
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
    fn the_least_busy_engine_counts_all_its_ranks() {
        let engine = |tokens: &[u64]| {
            let ranks: Vec<Value> = tokens.iter().map(|tokens| json!({"uncached_prefill_tokens": tokens})).collect();
            json!({"state": {"ranks": ranks}})
        };
        let engines = json!({"engines": [engine(&[9, 3]), engine(&[5, 6]), json!({})]});
        assert_eq!(least_busy(&engines), Some(11));
    }
}
