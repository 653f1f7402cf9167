//! What came of each request of a plan, and what the fleet as a whole did.

use super::plan::{Ask, Plan};

/// A client that has no whole answer after so many scenario seconds gives up.
pub const PATIENCE_S: f64 = 60.0;
/// Pause before a repetition, in scenario seconds, by attempt.
const REPEAT_S: [f64; 3] = [0.3, 0.6, 1.2];

/// Pause before a request is sent again that was sent so many times (at least once), in scenario seconds.
#[must_use]
pub fn repeat_after_s(sent: u32) -> f64 {
    REPEAT_S[(sent.max(1) as usize - 1).min(REPEAT_S.len() - 1)]
}

/// What came of one request; times in scenario seconds from its arrival.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Served {
        ttft_s: f64,
        e2e_s: f64,
        uncached_tokens: u64,
        output_tokens: u64,
    },
    Refused {
        code: String,
        after_s: f64,
    },
    /// No whole answer within [`PATIENCE_S`].
    GaveUp,
    Failed {
        code: String,
    },
}

/// One request of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Index in the plan.
    pub ask: usize,
    pub outcome: Outcome,
    /// How often it was sent.
    pub sent: u32,
}

/// Its first token came as promised.
#[must_use]
pub fn in_time(ask: &Ask, outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Served { ttft_s, .. } if *ttft_s <= ask.promised_s)
}

/// Of a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Whole {
    /// Cost of what was let in, per second of the scenario: computed prompt tokens and output.
    pub admitted_tokens_per_s: f64,
    /// Cost served in time while there was too much, as a share of what the engines can do.
    pub crowd_goodput_of_capacity: f64,
    /// Cost served at all in that time, likewise.
    pub crowd_served_of_capacity: f64,
    /// GPU time of requests that were served too late.
    pub wasted_gpu_s: f64,
    pub sends: u64,
}

impl Whole {
    #[must_use]
    pub fn of(plan: &Plan, engines: u16, done: &[Done]) -> Whole {
        let (mut admitted, mut wasted, mut crowd_served, mut crowd_good, mut sends) = (0u64, 0u64, 0u64, 0u64, 0u64);
        for done in done {
            let ask = &plan.asks[done.ask];
            sends += u64::from(done.sent);
            match &done.outcome {
                Outcome::Served { ttft_s, uncached_tokens, output_tokens, .. } => {
                    let cost = uncached_tokens + output_tokens;
                    admitted += cost;
                    let good = in_time(ask, &done.outcome);
                    wasted += if good { 0 } else { cost };
                    if plan.crowd.contains(&(ask.at + ttft_s)) {
                        crowd_served += cost;
                        crowd_good += if good { cost } else { 0 };
                    }
                }
                Outcome::GaveUp => admitted += ask.cost_tokens(),
                Outcome::Refused { .. } | Outcome::Failed { .. } => {}
            }
        }
        let crowd = (plan.crowd.end - plan.crowd.start) * plan.capacity_tokens_per_s;
        let per_engine = plan.capacity_tokens_per_s / f64::from(engines);
        Whole {
            admitted_tokens_per_s: admitted as f64 / plan.seconds,
            crowd_goodput_of_capacity: crowd_good as f64 / crowd,
            crowd_served_of_capacity: crowd_served as f64 / crowd,
            wasted_gpu_s: wasted as f64 / per_engine,
            sends,
        }
    }
}
