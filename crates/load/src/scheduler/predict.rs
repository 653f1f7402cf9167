//! What the latency models say of requests that have not been placed.

use super::Scheduler;
use crate::instance::Instance;
use crate::latency::{Coefficients, ENOUGH, LatencyModel};
use plimsoll_core::{InstanceId, Nanos};
use serde::Serialize;

/// One instance's latency model, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyView {
    pub id: InstanceId,
    pub coefficients: Coefficients,
    pub prefill_samples: u64,
    pub decode_samples: u64,
    /// Recent error of predictions, as a share; `None` before the first sample.
    pub prefill_error_ratio: Option<f64>,
    pub decode_error_ratio: Option<f64>,
}

impl Scheduler {
    /// Time to first token of a prompt with `uncached_tokens` behind `hit_tokens` on one engine that does nothing else: the middle
    /// one of those that serve the model and know. `None` while none does, or the model is not served.
    #[must_use]
    pub fn predict_prefill(&self, model: Option<&str>, uncached_tokens: u64, hit_tokens: u64) -> Option<Nanos> {
        let seconds = self.prefill_model(model)?.prefill_s(uncached_tokens, hit_tokens);
        Some(Nanos::from_secs_f64(seconds))
    }

    /// The model that [`Scheduler::predict_prefill`] asks, for whoever asks often: its `prefill` half is what counts.
    #[must_use]
    pub fn prefill_model(&self, model: Option<&str>) -> Option<Coefficients> {
        Coefficients::median(&self.known(model, |latency| latency.samples().0 >= ENOUGH))
    }

    /// Time of a decode step in a batch of `batch` sequences that hold `kv_tokens`, likewise.
    #[must_use]
    pub fn predict_step(&self, model: Option<&str>, batch: f64, kv_tokens: f64) -> Option<Nanos> {
        let known = self.known(model, |latency| latency.samples().1 >= ENOUGH);
        let seconds = Coefficients::median(&known)?.step_s(batch, kv_tokens);
        Some(Nanos::from_secs_f64(seconds))
    }

    /// Every instance's model, by id.
    #[must_use]
    pub fn latency_models(&self) -> Vec<LatencyView> {
        let view = |slot: &usize| {
            let instance = self.roster.get(*slot)?;
            let (prefill_samples, decode_samples) = instance.latency.samples();
            let (prefill_error_ratio, decode_error_ratio) = instance.latency.error_ratios();
            Some(LatencyView {
                id: instance.id,
                coefficients: instance.latency.coefficients(),
                prefill_samples,
                decode_samples,
                prefill_error_ratio,
                decode_error_ratio,
            })
        };
        self.index.values().filter_map(view).collect()
    }

    /// What the peers of an instance have learnt, else what is assumed.
    pub(super) fn prior_for(&self, own: &Instance) -> Coefficients {
        let assumed = Coefficients::assumed(self.config.assumed_prefill_tokens_per_s);
        let peers = self.roster.iter().filter(|peer| peer.id != own.id && peer.spec.models == own.spec.models);
        let peers: Vec<&LatencyModel> = peers.map(|peer| &*peer.latency).collect();
        let middle = |knows: fn(&LatencyModel) -> bool| {
            let known: Vec<Coefficients> =
                peers.iter().filter(|peer| knows(peer)).map(|peer| peer.coefficients()).collect();
            Coefficients::median(&known).unwrap_or(assumed)
        };
        Coefficients {
            prefill: middle(|peer| peer.samples().0 >= ENOUGH).prefill,
            decode: middle(|peer| peer.samples().1 >= ENOUGH).decode,
        }
    }

    fn known(&self, model: Option<&str>, knows: impl Fn(&LatencyModel) -> bool) -> Vec<Coefficients> {
        let serves = |models: &[String]| model.is_none_or(|model| models.iter().any(|name| name == model));
        let instances = self.roster.iter().filter(|instance| serves(&instance.spec.models));
        instances.filter(|instance| knows(&instance.latency)).map(|instance| instance.latency.coefficients()).collect()
    }
}
