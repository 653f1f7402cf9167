//! The report of a run that is over.

use super::World;
use crate::engine::InstanceTotals;
use crate::report::{FORMAT, InstanceFigures, Report};
use crate::step_time::FS_PER_NS;

impl World<'_> {
    pub(super) fn report(mut self) -> Report {
        debug_assert_eq!(self.gateway.scheduler.check_invariants(), Ok(()));
        debug_assert_eq!(self.gateway.scheduler.totals(self.now).entries, 0);
        let duration_s = self.figures.duration().as_secs_f64();
        let mut sum = InstanceTotals::default();
        let seconds = |fs: u128| fs as f64 / FS_PER_NS as f64 / 1e9;
        let completed = self.figures.requests.completed;
        let (mut instances, mut fleet_s) = (Vec::new(), 0.0);
        for (at, engine) in self.engines.iter().enumerate() {
            let totals = engine.instance.totals();
            sum.busy_fs += totals.busy_fs;
            sum.prefill_fs += totals.prefill_fs;
            sum.prefilled_tokens += totals.prefilled_tokens;
            sum.loaded_tokens += totals.loaded_tokens;
            sum.preemptions += totals.preemptions;
            let paid = self.figures.last_end.since(engine.since).as_secs_f64().min(duration_s);
            fleet_s += paid;
            let of = self.figures.instances.get(at).copied().unwrap_or_default();
            instances.push(InstanceFigures {
                role: match engine.role {
                    plimsoll_core::LegRole::Unified => "unified",
                    plimsoll_core::LegRole::Prefill => "prefill",
                    plimsoll_core::LegRole::Decode => "decode",
                }
                .to_owned(),
                requests: of.requests,
                share: share(of.requests as f64, completed as f64),
                prompt_tokens: of.prompt_tokens,
                cached_tokens: of.cached_tokens,
                prefilled_tokens: totals.prefilled_tokens,
                output_tokens: totals.output_tokens,
                busy_share: share(seconds(totals.busy_fs), paid),
                preemptions: totals.preemptions,
            });
        }
        self.setup.ranks = self.fleet.ranks.max(1);
        self.setup.instances = self.engines.len() as u32;
        self.setup.gpus = self.fleet.gpus_per_instance * self.setup.instances;
        let notes = super::too_late(&self.changes, self.figures.last_end).into_iter().collect();
        Report {
            format: FORMAT,
            notes,
            duration_s,
            ttft_ms: self.figures.ttft.summary(),
            itl_ms: self.figures.itl.summary(),
            tpot_ms: self.figures.tpot.summary(),
            e2e_ms: self.figures.e2e.summary(),
            tokens: self.figures.tokens(sum.prefilled_tokens, sum.loaded_tokens),
            gpu_hours: fleet_s * f64::from(self.fleet.gpus_per_instance) / 3_600.0,
            busy_share: share(seconds(sum.busy_fs), fleet_s),
            prefill_share: share(seconds(sum.prefill_fs), fleet_s),
            preemptions: sum.preemptions,
            moves: self.moves.figures(),
            classes: self.figures.classes(),
            regions: self.figures.regions(),
            instances,
            over_time: self.figures.series.columns(),
            bucket_map: self.figures.contexts.map(self.engines.len() as u32),
            requests: self.figures.requests,
            setup: self.setup,
        }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
