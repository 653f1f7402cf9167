//! What it costs to put a request on a rank, in seconds.
//!
//! ```text
//! expected wait = queue + KV load + prefill + requests * DECODE_SHARE_S
//!   queue    = uncached tokens in front / prefill rate
//!   KV load  = tokens of the hit that lie in host memory / load rate
//!   prefill  = own uncached tokens / prefill rate
//! score    = expected wait + weight * requests * (prefill + shared steps * STEP_SHARE_S) + pressure * prefill
//!   pressure = pressure weight * lesser of the tokens in front of it and in front of a rank in the mean / prompt tokens, at most MOST_PRESSURE
//! ```
//!
//! Seconds, so that affinity is what it saves and nothing else: a hit on a drowning engine loses to a miss on an idle one
//! as soon as the queue costs more than the prefill (`gateways.md` §5, cases 1, 8, 11; the article's token-based load, and
//! SMG's expected wait with real token counts in place of a constant per request).
//!
//! The second line is the marginal delay put on others. A request that minds only itself computes again on a busy engine
//! what another holds, and every stream there stands still meanwhile; nobody who chose so waits for it. The tokens in
//! front are prefilled first and their requests decode by the time this one's prefill runs, so all requests of the
//! rank are delayed by it. An idle engine delays nobody: the term makes a miss more expensive where many run, never
//! a hit there cheaper.
//!
//! The third term is for those who come next. While there is time to spare, computing again what a busy engine holds costs nobody
//! anything. Once work waits everywhere it does: what is computed twice takes the time of the next, which then leaves its own
//! holder for the same reason, and its second copy pushes out what another would have found. A fleet can stay in that state by
//! itself: simulated, sessions that ask for 0.17 of what 16 engines can do kept them busy for a minute after a crowd had gone, a third
//! of their turns computed from nothing, first tokens 10 to 15 s late at the 90th percentile; with this term 1.6 s. How many
//! wait is taken for how many will: where work is in front of the candidate and, in the mean, of all. One that is idle stays as cheap as it is, or a
//! new engine would get nothing while the others hold what everybody begins with.

use crate::replay::Asked;

/// Delay that one request in flight puts on a newcomer's first token, in seconds.
///
/// An assumption between two measured bounds (42 SGLang configurations on H100/H200 in aiconfigurator's silicon table):
/// one more concurrent request lengthens a decode step by 0.34 ms in the median, and the closed-loop time to first
/// token by 28 ms, which includes its prefill, counted apart here. It must exceed the tie floor, so that requests
/// past their prefill still tell instances apart.
pub const DECODE_SHARE_S: f64 = 0.004;

/// What one more sequence adds to everybody's decode step, in seconds: the median named above.
pub const STEP_SHARE_S: f64 = 0.000_34;

/// Decode steps that a newcomer shares with those that run already, at most. They end before it does, and clients ask
/// for far more output than they get, so the maximum of a request says little beyond this.
pub const MOST_SHARED_STEPS: f64 = 256.0;

/// A prefill that could have been a hit counts so many times more, at most.
pub const MOST_PRESSURE: f64 = 2.0;

/// What is the same for all candidates of one choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prices {
    pub prompt_tokens: f64,
    pub load_s_per_token: f64,
    pub others_weight: f64,
    /// Mean of uncached tokens in front of a rank of the pool.
    pub front_tokens: f64,
    /// What a second of prefill counts beside itself, for each token in front.
    pub pressure_per_token: f64,
    /// What the request's sequences add to one other's decode time until that one ends.
    pub shared_decode_s: f64,
}

impl Prices {
    pub(crate) fn of(asked: &Asked) -> Self {
        let Asked { prompt_tokens, growth_tokens, sequences, load_tokens_per_s, .. } = *asked;
        let steps = (growth_tokens / sequences).clamp(0.0, MOST_SHARED_STEPS);
        Prices {
            prompt_tokens,
            load_s_per_token: 1.0 / load_tokens_per_s.max(1.0),
            others_weight: asked.others_weight.max(0.0),
            front_tokens: asked.front_tokens,
            pressure_per_token: asked.pressure_weight.max(0.0) / prompt_tokens.max(1.0),
            shared_decode_s: steps * sequences * STEP_SHARE_S,
        }
    }

    /// Seconds of a rank with these numbers.
    #[inline(always)]
    pub(crate) fn seconds(&self, load: &RankLoad) -> Seconds {
        let prefill = (self.prompt_tokens - load.hit_tokens) * load.prefill_s_per_token;
        let queue = load.uncached_prefill_tokens * load.prefill_s_per_token;
        let kv_load = load.host_tokens * self.load_s_per_token;
        let expected_wait_s = queue + kv_load + prefill + load.requests * DECODE_SHARE_S;
        let others = load.requests * (prefill + self.shared_decode_s);
        let front_tokens = self.front_tokens.min(load.uncached_prefill_tokens);
        let pressure = (self.pressure_per_token * front_tokens).min(MOST_PRESSURE);
        let score_s = expected_wait_s + self.others_weight * others + pressure * prefill;
        Seconds { expected_wait_s, score_s }
    }
}

/// What the seconds of one rank depend on, as in [`super::Candidate`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankLoad {
    pub requests: f64,
    pub uncached_prefill_tokens: f64,
    pub hit_tokens: f64,
    pub host_tokens: f64,
    pub prefill_s_per_token: f64,
}

/// Both sums of the formula.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds {
    pub expected_wait_s: f64,
    pub score_s: f64,
}
