//! Log-probabilities of tokens under the model's own distribution: before bias, penalties, temperature and restrictions,
//! as vLLM's default has it (`raw_logprobs`), so that they mean the same on every route and for every setting.

use crate::kernels::exp;

/// Stands for "impossible" in JSON, which has no infinity; vLLM's value.
pub const IMPOSSIBLE: f32 = -9999.0;

/// What to report besides the token that was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LogprobAsk {
    /// The most likely ids, this many.
    pub top: usize,
    /// These ids.
    pub ids: Vec<u32>,
    /// Also report the prompt, from this position on; the token there has none itself. `None`: output only.
    pub prompt_from: Option<usize>,
}

/// One position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub id: u32,
    /// At most 0, at least [`IMPOSSIBLE`].
    pub logprob: f32,
    /// Most likely first, the smaller id first on ties.
    pub top: Vec<(u32, f32)>,
    /// In the order in which they were asked for.
    pub asked: Vec<(u32, f32)>,
}

/// The log-probabilities at a position whose logits these are and where `id` came. Ids without a logit are impossible.
#[must_use]
pub fn logprobs(logits: &[f32], first_logit: u32, id: u32, ask: &LogprobAsk) -> TokenLogprobs {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |m, logit| m.max(*logit));
    // In f64: a sum of a hundred thousand small numbers.
    let total: f64 = logits.iter().map(|logit| f64::from(exp(*logit - largest))).sum();
    let log_total = total.ln() as f32;
    let of_logit = |logit: f32| (logit - largest - log_total).clamp(IMPOSSIBLE, 0.0);
    let of = |id: u32| {
        let at = id.checked_sub(first_logit).and_then(|at| logits.get(at as usize));
        at.map_or(IMPOSSIBLE, |logit| of_logit(*logit))
    };
    TokenLogprobs {
        id,
        logprob: of(id),
        top: top(logits, first_logit, ask.top).into_iter().map(|(id, logit)| (id, of_logit(logit))).collect(),
        asked: ask.ids.iter().map(|id| (*id, of(*id))).collect(),
    }
}

/// The `count` largest logits with their ids.
fn top(logits: &[f32], first_logit: u32, count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    if count == 0 {
        return best;
    }
    for (logit, id) in logits.iter().zip(first_logit..) {
        if best.len() == count && best.last().is_some_and(|(_, least)| logit <= least) {
            continue;
        }
        let at = best.partition_point(|(_, other)| other >= logit);
        best.insert(at, (id, *logit));
        best.truncate(count);
    }
    best
}
