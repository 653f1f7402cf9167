//! Traffic scheduling before the fleet: the gateway's [`Admission`], with its own view of the pool, as it is.
//!
//! It lets a request go, lets it wait, or refuses it with its rule. Tenants and promises are those of the callers ([`Terms`]); a trace's
//! are one tenant without a promise, and only the rules' own order who waits.

use crate::gateway::Gateway;
use crate::world::Terms;
use plimsoll_core::{Class, InstanceLoad, Nanos, RequestId};
use plimsoll_load::{Coefficients, PoolLoad};
use plimsoll_traffic::admission::{Admission, Arrival, Decision, LikelyOutput, PoolView, Rules, Verdict};

/// The model of prefill times moves slowly; it is asked again after this long, as in the gateway.
const MODEL_FRESH: Nanos = Nanos::from_millis(500);

/// A request must be answered by then, whatever the answer.
const ANSWER_WITHIN: Nanos = Nanos::from_secs(3_600);

/// Admission and what it sees.
#[derive(Debug)]
pub(crate) struct Door {
    admission: Admission,
    scratch: Vec<PoolLoad>,
    loads: Vec<InstanceLoad>,
    likely_output: LikelyOutput,
    /// How long a prefill takes, as far as engines have shown, and when that was asked.
    prefill: Option<Coefficients>,
    prefill_at: Option<Nanos>,
}

/// Who comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) number: u64,
    pub(crate) class: Class,
    pub(crate) prompt_tokens: u64,
    /// Of those, what the best place has to compute.
    pub(crate) prefill_tokens: u64,
    /// As the caller names it.
    pub(crate) most_output_tokens: Option<u64>,
    pub(crate) terms: &'a Terms,
    pub(crate) repeats: bool,
}

impl Door {
    pub(crate) fn new(rules: Rules, assumed_output_tokens: u64) -> Self {
        Door {
            admission: Admission::new(rules),
            scratch: Vec::new(),
            loads: Vec::new(),
            likely_output: LikelyOutput::new(assumed_output_tokens),
            prefill: None,
            prefill_at: None,
        }
    }

    pub(crate) fn arrive(&mut self, now: Nanos, gateway: &mut Gateway, guest: &Guest<'_>) -> Verdict {
        self.see(now, gateway);
        let Guest { prompt_tokens, prefill_tokens, .. } = *guest;
        let hit_tokens = prompt_tokens.saturating_sub(prefill_tokens);
        let service = self.prefill.map(|model| Nanos::from_secs_f64(model.prefill_s(prefill_tokens, hit_tokens)));
        let likely = self.likely_output.tokens();
        let arrival = Arrival {
            key: key(guest.number),
            tenant: guest.terms.tenant.clone(),
            class: guest.class,
            prompt_tokens,
            prefill_tokens,
            decode_tokens: guest.most_output_tokens.map_or(likely, |most| most.min(likely)),
            bytes: prompt_tokens * 4,
            service,
            first_token_by: guest.terms.first_token_by,
            answer_by: now + ANSWER_WITHIN,
            retry: guest.repeats,
        };
        self.admission.arrive(now, arrival, &PoolView { taken_at: now, instances: &self.loads })
    }

    /// Whose turn it is, and who has to leave.
    pub(crate) fn dispatch(&mut self, now: Nanos, gateway: &mut Gateway) -> Vec<Decision> {
        if self.admission.is_idle() {
            return Vec::new();
        }
        self.see(now, gateway);
        self.admission.dispatch(now, &PoolView { taken_at: now, instances: &self.loads })
    }

    /// When to look again at the latest; `None` while nobody waits.
    pub(crate) fn next_look(&self, now: Nanos) -> Option<Nanos> {
        self.admission.next_look(now)
    }

    pub(crate) fn begun(&mut self, number: u64) {
        self.admission.begun(key(number), None);
    }

    pub(crate) fn first_token(&mut self, now: Nanos, number: u64) {
        self.admission.first_token(key(number), now);
    }

    pub(crate) fn settle(&mut self, now: Nanos, number: u64, prefill_tokens: u64, output_tokens: u64) {
        self.admission.settle(key(number), now, Some(prefill_tokens), Some(output_tokens));
        self.likely_output.learn(output_tokens, 1);
    }

    /// Its caller has gone while an engine had it; what was computed for it is not known.
    pub(crate) fn left(&mut self, now: Nanos, number: u64) {
        self.admission.settle(key(number), now, None, Some(0));
    }

    /// Nothing was done for it.
    pub(crate) fn cancel(&mut self, now: Nanos, number: u64) {
        self.admission.cancel(key(number), now);
    }

    fn see(&mut self, now: Nanos, gateway: &mut Gateway) {
        gateway.pool_loads(now, &mut self.scratch);
        self.loads.clear();
        self.loads.extend(self.scratch.iter().map(|one| one.load));
        if self.prefill_at.is_none_or(|at| now.since(at) > MODEL_FRESH) {
            self.prefill = gateway.prefill_model();
            self.prefill_at = Some(now);
        }
    }
}

/// Grows with arrival, as ties want it.
fn key(number: u64) -> RequestId {
    RequestId(u128::from(number))
}
