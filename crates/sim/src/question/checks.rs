//! Questions that must be refused, and what of one is not as it was asked.

use super::{Question, QuestionError};
use crate::world::Change;
use plimsoll_timing::{Profile, StepShape};

/// An hour. Steps are femtoseconds in 64 bits, which end at five hours.
const LONGEST_STEP_US: f64 = 3.6e9;

impl Question {
    /// An engine that steps its running requests has room for a token of each.
    pub(super) fn raised_budget(&self) -> Result<Option<String>, QuestionError> {
        let Some(asked) = self.token_budget else { return Ok(None) };
        let serving = self.profile()?.serving;
        let raised = serving.token_budget > asked;
        Ok(raised.then(|| {
            format!(
                "the token budget of {asked} was raised to {}, one for each of the {} requests that a step may hold",
                serving.token_budget, serving.max_running
            )
        }))
    }

    /// Names of engines that are and of those that join, in the changes.
    pub(super) fn check_changes(&self) -> Result<(), QuestionError> {
        let joins = self.changes.iter().filter(|(_, change)| matches!(change, Change::Join { .. })).count() as u32;
        let engines = self.instances.saturating_add(self.decode_instances).saturating_add(joins);
        for (_, change) in &self.changes {
            let (instance, times) = match change {
                Change::Die { instance } | Change::Return { instance, .. } => (*instance, 1),
                Change::Slow { instance, times } => (*instance, *times),
                Change::Join { .. } => continue,
            };
            if instance >= engines {
                return Err(QuestionError::Asked(format!(
                    "there is no engine {instance}: they are counted from 0, and the last one is {}",
                    engines.saturating_sub(1)
                )));
            }
            if times == 0 {
                return Err(QuestionError::Asked(format!("engine {instance}: a step cannot take 0 times as long")));
            }
        }
        Ok(())
    }

    /// Rates of links, and the longest steps that the profile can ask for.
    pub(super) fn check_speeds(&self, profile: &Profile) -> Result<(), QuestionError> {
        let links = [
            ("the network's", self.network_bytes_per_s),
            ("the host memory's", self.host.map(|tier| tier.bytes_per_s)),
            ("the pool's", self.pool.map(|tier| tier.bytes_per_s)),
        ];
        for (name, bytes_per_s) in links {
            if bytes_per_s.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
                return Err(QuestionError::Asked(format!("{name} rate must be above 0 GB/s")));
            }
        }
        let serving = &profile.serving;
        let mut prefill = StepShape::default();
        prefill.add_prefill(serving.token_budget, serving.context_tokens, true);
        let mut decode = StepShape::default();
        let running = serving.max_running;
        let contexts = running.saturating_mul(serving.context_tokens).min(serving.kv_tokens);
        decode.add_decodes(running, contexts, serving.context_tokens);
        for (name, shape) in
            [("prefill of a whole token budget", prefill), ("decoding as many requests as may run", decode)]
        {
            let step_us = profile.cost(&shape).total_us() / self.speedup;
            if !(0.0..=LONGEST_STEP_US).contains(&step_us) {
                return Err(QuestionError::Asked(format!(
                    "profile {}: {name}, at the longest context, would take {:e} s for one step; at most {} s, so look at \
                     its constants",
                    profile.name,
                    step_us / 1e6,
                    LONGEST_STEP_US / 1e6
                )));
            }
        }
        Ok(())
    }
}
