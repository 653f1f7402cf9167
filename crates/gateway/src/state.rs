//! What all requests share, and the only door to the scheduler.
//!
//! Every call that can change an engine's health goes through [`Shared`], so that each transition is logged, counted
//! and signalled to the requests that wait on that engine, in one place.

use crate::auth::Keys;
use crate::body_budget::BodyBudget;
use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::funnel::Funnels;
use crate::idempotency::Idempotency;
use crate::kv_view::KvViews;
use crate::leases::LeaseBoard;
use crate::metrics::{
    CacheLabel, EngineCoefficient, EngineInfo, EngineLabel, EngineStage, EngineWord, Metrics, ModelLabel, OTHER_MODEL,
};
use crate::model_text::{ModelTexts, segment_cache};
use crate::pending::PendingWork;
use crate::record::Decisions;
use crate::spans::SpanSink;
use crate::stream_slots::StreamSlots;
use crate::token_estimate::TokenEstimate;
use crate::traffic::Traffic;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use plimsoll_cache::session::Sessions;
use plimsoll_core::Nanos;
use plimsoll_load::{
    AttemptEnd, HealthChange, HealthConfig, HealthState, PolicyKind, Scheduler, SchedulerConfig, Settled, Ticket,
};
use plimsoll_pools::chunk::Usage;
use plimsoll_protocol::tokenizer::SegmentCache;
use plimsoll_settings::{Classes, PolicyName, Settings};
use plimsoll_traffic::class::ClassRules;
use plimsoll_traffic::retry_budget::RetryBudget;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Changes the log filter of the running process; the error says what is wrong with the new one.
pub type LogFilter = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Everything that lives as long as the gateway.
pub struct Shared {
    pub settings: ArcSwap<Settings>,
    pub keys: ArcSwap<Keys>,
    pub clock: Clock,
    pub fleet: Fleet,
    pub metrics: Metrics,
    pub decisions: Decisions,
    pub bodies: BodyBudget,
    pub idempotency: Idempotency,
    pub token_estimate: TokenEstimate,
    pub retry_budget: Mutex<RetryBudget>,
    pub log_filter: Option<LogFilter>,
    pub spans: Option<SpanSink>,
    pub streams: StreamSlots,
    pub pending_aborts: PendingWork,
    /// What the engines hold, as far as they say so.
    pub kv_views: KvViews,
    /// Which prompts go which sessions on.
    pub sessions: Mutex<Sessions>,
    pub funnel: Funnels,
    pub texts: ArcSwap<ModelTexts>,
    /// Token ids of texts seen before.
    pub segments: Arc<SegmentCache>,
    pub traffic: Traffic,
    /// This gateway's part of the quotas.
    pub leases: LeaseBoard,
    scheduler: Mutex<Scheduler>,
    /// Served model names, for metric labels.
    models: ArcSwap<BTreeSet<String>>,
    stopping: AtomicBool,
}

impl Shared {
    #[must_use]
    pub fn new(
        settings: Settings,
        decisions: Decisions,
        log_filter: Option<LogFilter>,
        spans: Option<SpanSink>,
    ) -> Self {
        Shared {
            keys: ArcSwap::from_pointee(Keys::new(&settings.auth)),
            clock: Clock::start(),
            fleet: Fleet::default(),
            metrics: Metrics::default(),
            decisions,
            bodies: BodyBudget::default(),
            idempotency: Idempotency::default(),
            token_estimate: TokenEstimate::new(settings.policy.assumed_bytes_per_token),
            retry_budget: Mutex::new(RetryBudget::new(settings.retry.budget_fraction, settings.retry.budget_burst)),
            scheduler: Mutex::new(Scheduler::new(scheduler_config(&settings))),
            models: ArcSwap::default(),
            stopping: AtomicBool::new(false),
            log_filter,
            spans,
            streams: StreamSlots::default(),
            pending_aborts: PendingWork::default(),
            kv_views: KvViews::default(),
            sessions: Mutex::default(),
            funnel: Funnels::new(&settings),
            texts: ArcSwap::default(),
            segments: segment_cache(settings.tokens.segment_cache_bytes),
            traffic: Traffic::new(&settings),
            leases: LeaseBoard::new(&settings),
            settings: ArcSwap::from_pointee(settings),
        }
    }

    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Runs `f` in the critical section of all choices. Keep it short; no IO.
    pub fn with_scheduler<T>(&self, f: impl FnOnce(&mut Scheduler) -> T) -> T {
        f(&mut self.scheduler.lock())
    }

    /// Settles an attempt. Later calls for the same ticket change nothing.
    pub fn settle(&self, ticket: Ticket, end: AttemptEnd) {
        self.with_health(|s| match s.settle(ticket, self.now(), end) {
            Settled::Released { health } => health,
            Settled::InstanceGone | Settled::Already => None,
        });
        self.traffic.nudge();
    }

    pub fn first_token(&self, ticket: Ticket) {
        self.with_health(|s| s.first_token(ticket, self.now()));
    }

    /// An answer is whole: what the engine said of its prompt teaches its rate, and that it said nothing its model's.
    pub fn prefilled(&self, ticket: Ticket, usage: Option<Usage>) {
        let reported = usage.and_then(|usage| Some((usage.prompt_tokens, usage.cached_tokens?)));
        self.with_scheduler(|s| match reported {
            Some((prompt_tokens, cached)) => s.prefilled(ticket, prompt_tokens.saturating_sub(cached), cached),
            None => s.unreported(ticket),
        });
    }

    /// Runs what may change an engine's health. The change is signalled inside the critical section, so that two
    /// changes cannot be told in the wrong order; logged and counted after it.
    pub fn with_health(&self, f: impl FnOnce(&mut Scheduler) -> Option<HealthChange>) {
        let change = {
            let mut scheduler = self.scheduler.lock();
            let change = f(&mut scheduler);
            if let Some(engine) = change.and_then(|change| self.fleet.get(change.instance)) {
                engine.set_health(change.map_or(HealthState::Unproven, |change| change.to));
            }
            change
        };
        if let Some(change) = change {
            self.tell(change);
        }
    }

    fn tell(&self, change: HealthChange) {
        let Some(engine) = self.fleet.get(change.instance) else { return };
        let result = change.to.as_str();
        self.metrics.health_changes.get_or_create(&EngineWord { engine: change.instance.0, result }).inc();
        let (from, url) = (change.from.as_str(), engine.endpoint().url().to_owned());
        if change.to == HealthState::Ejected {
            tracing::warn!(engine = %change.instance, url, from, why = change.why, "engine is out");
        } else {
            tracing::info!(engine = %change.instance, url, from, to = result, why = change.why, "engine health changed");
        }
    }

    /// The set of served models may have changed.
    pub fn refresh_models(&self) {
        let models: BTreeSet<String> = self.with_scheduler(|s| s.models()).into_iter().collect();
        self.token_estimate.keep(|model| model == OTHER_MODEL || models.contains(model));
        self.models.store(Arc::new(models));
    }

    #[must_use]
    pub fn served_models(&self) -> Arc<BTreeSet<String>> {
        self.models.load_full()
    }

    /// `model` if it is served, else [`OTHER_MODEL`]: label values stay bounded whatever clients send.
    #[must_use]
    pub fn model_label(&self, model: Option<&str>) -> String {
        let models = self.models.load();
        match model {
            Some(model) if models.contains(model) => model.to_owned(),
            None if models.len() == 1 => models.first().cloned().unwrap_or_default(),
            _ => OTHER_MODEL.to_owned(),
        }
    }

    #[must_use]
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub fn begin_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Takes new settings. Listeners and engines are the caller's part.
    pub fn apply(&self, settings: Settings) {
        self.keys.store(Arc::new(Keys::new(&settings.auth)));
        self.retry_budget.lock().reconfigure(settings.retry.budget_fraction, settings.retry.budget_burst);
        self.with_scheduler(|s| s.reconfigure(scheduler_config(&settings)));
        self.segments.set_capacity(settings.tokens.segment_cache_bytes);
        self.traffic.reconfigure(self, &settings);
        self.settings.store(Arc::new(settings));
    }

    /// Gauges as of now, then the text exposition.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let metrics = &self.metrics;
        metrics.engine_health.clear();
        metrics.engine_requests.clear();
        metrics.engine_prefill_tokens.clear();
        metrics.engine_kv_tokens.clear();
        metrics.engine_prefill_rate.clear();
        metrics.cache_belief_error.clear();
        metrics.cache_belief_deviation.clear();
        metrics.cache_approximate.clear();
        metrics.cache_credited.clear();
        metrics.cache_view_blocks.clear();
        for view in self.with_scheduler(|s| s.instances(self.now())) {
            let engine = EngineLabel { engine: view.id.0 };
            let result = if view.draining { "draining" } else { view.health.as_str() };
            metrics.engine_health.get_or_create(&EngineWord { engine: view.id.0, result }).set(1);
            let sum = |f: fn(&plimsoll_load::RankLoad) -> u64| {
                view.ranks.iter().map(f).sum::<u64>().try_into().unwrap_or(i64::MAX)
            };
            metrics.engine_requests.get_or_create(&engine).set(sum(|r| u64::from(r.requests)));
            metrics.engine_prefill_tokens.get_or_create(&engine).set(sum(|r| r.uncached_prefill_tokens));
            metrics.engine_kv_tokens.get_or_create(&engine).set(sum(|r| r.reserved_kv_tokens));
            if let Some(rate) = view.prefill_tokens_per_s {
                metrics.engine_prefill_rate.get_or_create(&engine).set(rate);
            }
        }
        self.render_engine_info();
        self.render_latency_models();
        self.render_cache_view();
        crate::traffic::show::render(self);
        crate::traffic::engine_levels::render(self);
        self.leases.render(self);
        let segments = self.segments.size();
        metrics.segment_cache_bytes.set(segments.bytes.try_into().unwrap_or(i64::MAX));
        metrics.segment_cache_entries.set(segments.entries.try_into().unwrap_or(i64::MAX));
        self.funnel.render(self.now(), metrics);
        metrics.body_bytes.set(self.bodies.held_bytes().try_into().unwrap_or(i64::MAX));
        for (model, ratio) in self.token_estimate.by_model() {
            metrics.bytes_per_token.get_or_create(&ModelLabel { model }).set(ratio);
        }
        metrics.decisions_dropped.set(self.decisions.dropped().try_into().unwrap_or(i64::MAX));
        metrics.render()
    }

    fn render_latency_models(&self) {
        let metrics = &self.metrics;
        metrics.latency_error.clear();
        metrics.latency_samples.clear();
        metrics.latency_coefficient.clear();
        for view in self.with_scheduler(|s| s.latency_models()) {
            let engine = view.id.0;
            let stages = [
                ("prefill", view.prefill_samples, view.prefill_error_ratio),
                ("decode", view.decode_samples, view.decode_error_ratio),
            ];
            for (stage, samples, error) in stages {
                let label = EngineStage { engine, stage };
                metrics.latency_samples.get_or_create(&label).set(samples.try_into().unwrap_or(i64::MAX));
                if let Some(error) = error {
                    metrics.latency_error.get_or_create(&label).set(error);
                }
            }
            let (prefill, decode) = (view.coefficients.prefill, view.coefficients.decode);
            for (coefficient, value) in
                ["p0", "p1", "p2"].into_iter().zip(prefill).chain(["a", "b", "c"].into_iter().zip(decode))
            {
                metrics.latency_coefficient.get_or_create(&EngineCoefficient { engine, coefficient }).set(value);
            }
        }
    }

    /// Numbers change when engines come and go: those of today, and no others.
    fn render_engine_info(&self) {
        self.metrics.engine_info.clear();
        for (id, engine) in self.fleet.all().iter() {
            let found = engine.capability.load_full();
            let unknown = || "unknown".to_owned();
            let info = EngineInfo {
                engine: id.0,
                url: engine.endpoint().url().to_owned(),
                kind: found.as_ref().map_or_else(unknown, |found| found.kind.to_string()),
                version: found.and_then(|found| found.version.clone()).unwrap_or_else(unknown),
            };
            self.metrics.engine_info.get_or_create(&info).set(1);
        }
    }

    fn render_cache_view(&self) {
        let metrics = &self.metrics;
        for (basis, _, target, state) in self.kv_views.publishers(self.now()) {
            let rank = CacheLabel { engine: target.instance.0, dp_rank: target.rank.0, basis: basis.as_str() };
            metrics.cache_belief_error.get_or_create(&rank).set(state.belief.error);
            metrics.cache_belief_deviation.get_or_create(&rank).set(state.belief.deviation);
            metrics.cache_approximate.get_or_create(&rank).set(i64::from(state.approximate));
            metrics.cache_credited.get_or_create(&rank).set(i64::from(state.credited));
            let blocks = state.device_blocks + state.host_blocks;
            metrics.cache_view_blocks.get_or_create(&rank).set(blocks.try_into().unwrap_or(i64::MAX));
        }
        metrics.cache_index_bytes.set(self.kv_views.size().1.try_into().unwrap_or(i64::MAX));
    }
}

/// The scheduler's share of the settings.
#[must_use]
pub fn scheduler_config(settings: &Settings) -> SchedulerConfig {
    SchedulerConfig {
        policy: match settings.policy.name {
            PolicyName::LeastDelay => PolicyKind::LeastDelay,
            PolicyName::LeastWait => PolicyKind::LeastWait,
            PolicyName::RoundRobin => PolicyKind::RoundRobin,
            PolicyName::PowerOfTwo => PolicyKind::PowerOfTwo,
        },
        seed: settings.policy.seed,
        tie_fraction: settings.policy.tie_fraction,
        others_weight: settings.policy.others_weight,
        pressure_weight: settings.policy.pressure_weight,
        assumed_prefill_tokens_per_s: settings.policy.assumed_prefill_tokens_per_s,
        assumed_kv_load_tokens_per_s: settings.policy.assumed_kv_load_tokens_per_s,
        record_candidates: settings.decisions.candidates,
        report_stale: Nanos::from_millis(settings.health.report_stale_ms),
        health: HealthConfig {
            probe_failures: settings.health.probe_failures,
            request_failures: settings.health.request_failures,
            connect_failures: settings.health.connect_failures,
            half_open_requests: settings.health.half_open_requests,
        },
    }
}

/// The classifier's share of the settings.
#[must_use]
pub fn class_rules(classes: &Classes) -> ClassRules {
    ClassRules {
        high_uncached_tokens: classes.high_uncached_tokens,
        high_hit_fraction: classes.high_hit_fraction,
        low_uncached_tokens: classes.low_uncached_tokens,
        low_hit_fraction: classes.low_hit_fraction,
        established_hit_rounds: classes.established_hit_rounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The deciding crates carry defaults for tests and the simulator; the settings tree is where they are meant.
    #[test]
    fn defaults_stand_in_one_place() {
        let settings = Settings::default();
        assert_eq!(scheduler_config(&settings), SchedulerConfig::default());
        assert_eq!(class_rules(&settings.classes), ClassRules::default());
        assert_eq!(crate::funnel::funnel_config(&settings), plimsoll_cache::funnel::FunnelConfig::default());
    }
}
