//! The gateway as the simulator drives it: the production objects, told what they would be told by real engines.
//!
//! No rule of choice is here. A request is looked up in the cache view, classified, placed and charged by
//! [`plimsoll_load::Scheduler`], exactly as `plimsoll-gateway` does it, and settled with what its engine said.

use plimsoll_cache::chain::NameFormat;
use plimsoll_cache::view::{Family, FleetView, Hit, Prompt, ViewConfig};
use plimsoll_core::{
    BlockName, Class, EngineKind, InstanceId, KvBatch, KvEvent, LegRole, LoadReport, Nanos, RequestId, Target,
};
use plimsoll_load::{
    Ask, AttemptEnd, Charge, Coefficients, HeldTokens, InstanceSpec, PlaceError, Placed, Placement, PoolLoad,
    Scheduler, SchedulerConfig, Ticket,
};
use plimsoll_traffic::class::{ClassRules, Past, classify};
use std::collections::{BTreeMap, VecDeque};

/// The one model of a simulation.
const MODEL: &str = "model";

/// How the gateway is set.
#[derive(Debug)]
pub struct GatewayConfig {
    pub scheduler: SchedulerConfig,
    /// In place of the configured policy.
    pub placement: Option<Box<dyn Placement>>,
    /// Knows of caches. Without, requests are placed by load alone.
    pub cache_view: bool,
    /// From a step's end to the view's knowledge of what it stored and removed.
    pub event_lag: Nanos,
    /// What a request is taken to generate where the trace does not know what its client asked for.
    pub assumed_output_tokens: u64,
    pub classes: ClassRules,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        GatewayConfig {
            scheduler: SchedulerConfig { record_candidates: 0, ..SchedulerConfig::default() },
            placement: None,
            cache_view: true,
            event_lag: Nanos::from_millis(10),
            assumed_output_tokens: 512,
            classes: ClassRules::default(),
        }
    }
}

/// Who asks for a place.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub request: u64,
    pub leg: u8,
    pub attempt: u8,
    pub role: LegRole,
    /// Names of the prompt's full blocks.
    pub names: &'a [BlockName],
    pub prompt_tokens: u64,
    /// The most that its client asked for; `None` where the trace does not say.
    pub max_output_tokens: Option<u64>,
    /// Turns of its session before it that found most of the turn before them cached.
    pub past: Past,
    pub exclude: &'a [InstanceId],
    /// Nobody else will do: a running request moves there.
    pub only: Option<Target>,
    /// Its KV comes with it.
    pub computed: bool,
}

impl<'a> Wanted<'a> {
    /// The first attempt of a whole request.
    #[must_use]
    pub fn new(request: u64, names: &'a [BlockName], prompt_tokens: u64) -> Self {
        Wanted {
            request,
            leg: 0,
            attempt: 0,
            role: LegRole::Unified,
            names,
            prompt_tokens,
            max_output_tokens: None,
            past: Past::default(),
            exclude: &[],
            only: None,
            computed: false,
        }
    }
}

/// A request that has its place.
#[derive(Debug)]
pub struct Open {
    pub ticket: Ticket,
    pub target: Target,
    pub class: Class,
    /// Prompt tokens that the target was believed to have.
    pub believed: Hit,
    /// The most that any place was believed to have; `None` where that cannot be known.
    pub best_tokens: Option<u64>,
    prompt: Prompt,
    placed_at: Nanos,
    /// Its engine computes nothing of its prompt.
    computed: bool,
}

impl Open {
    /// Names of its prompt's full blocks.
    #[must_use]
    pub fn names(&self) -> &[BlockName] {
        self.prompt.chains().next().map_or(&[], |(_, names)| names)
    }
}

/// Scheduler, view and the events that are on their way to it.
#[derive(Debug)]
pub struct Gateway {
    pub scheduler: Scheduler,
    pub view: FleetView,
    config: GatewayConfig,
    block_tokens: u32,
    events: VecDeque<(Nanos, Target, KvBatch)>,
    /// Number of the next message of each target, by instance and rank.
    heard: Vec<Vec<u64>>,
    hits: Vec<(Target, HeldTokens)>,
}

impl Gateway {
    #[must_use]
    pub fn new(mut config: GatewayConfig, block_tokens: u64) -> Self {
        let mut scheduler = Scheduler::new(config.scheduler);
        if let Some(placement) = config.placement.take() {
            scheduler.set_placement(placement);
        }
        Gateway {
            scheduler,
            view: FleetView::new(ViewConfig::default()),
            config,
            block_tokens: block_tokens as u32,
            events: VecDeque::new(),
            heard: Vec::new(),
            hits: Vec::new(),
        }
    }

    #[must_use]
    pub fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// An engine that has answered its first probe.
    pub fn add(&mut self, now: Nanos, id: InstanceId, role: LegRole, ranks: u16, kv_tokens: u64, context_tokens: u64) {
        let spec = InstanceSpec {
            models: vec![MODEL.to_owned()],
            kind: EngineKind::Sglang,
            ranks,
            capacity_kv_tokens: Some(kv_tokens * u64::from(ranks.max(1))),
            context_tokens: Some(context_tokens),
            role,
            ready: true,
            ..InstanceSpec::default()
        };
        self.scheduler.add_instance(id, spec);
        self.scheduler.probe_ok(id, now);
        if self.config.cache_view {
            for target in targets(id, ranks) {
                self.view.add(target, EngineKind::Sglang, Some(self.block_tokens));
            }
        }
        let at = id.0 as usize;
        if self.heard.len() <= at {
            self.heard.resize(at + 1, Vec::new());
        }
        self.heard[at] = vec![0; usize::from(ranks.max(1))];
    }

    /// Its process is gone: nothing is believed of it any more, and nothing it said is on its way.
    pub fn lost(&mut self, id: InstanceId, ranks: u16) {
        if !self.config.cache_view {
            return;
        }
        self.events.retain(|(_, target, _)| target.instance != id);
        for target in targets(id, ranks) {
            self.view.remove(target);
            self.view.add(target, EngineKind::Sglang, Some(self.block_tokens));
            if let Some(heard) = self.heard.get_mut(id.0 as usize) {
                heard[usize::from(target.rank.0)] = 0;
            }
        }
    }

    /// A rank has something to tell of its cache.
    pub fn kv_events(&mut self, now: Nanos, target: Target, events: Vec<KvEvent>) {
        if events.is_empty() || !self.config.cache_view {
            return;
        }
        let batch = KvBatch { at_unix_s: now.as_secs_f64(), events, ..KvBatch::default() };
        self.events.push_back((now + self.config.event_lag, target, batch));
    }

    fn hear(&mut self, now: Nanos) {
        while self.events.front().is_some_and(|(due, ..)| *due <= now) {
            let Some((due, target, batch)) = self.events.pop_front() else { return };
            let seq = &mut self.heard[target.instance.0 as usize][usize::from(target.rank.0)];
            // A stream without holes: whoever wants replays is not here.
            let wants = self.view.live(due, target, *seq, batch);
            debug_assert!(wants.is_empty());
            *seq += 1;
        }
    }

    /// Between two polls of the fleet.
    pub fn tick(&mut self, now: Nanos) {
        self.hear(now);
        let _ = self.view.tick(now);
    }

    pub fn report(&mut self, id: InstanceId, report: LoadReport, now: Nanos) {
        self.scheduler.report(id, report, now);
    }

    /// What admission is told of the pool.
    pub fn pool_loads(&mut self, now: Nanos, into: &mut Vec<PoolLoad>) {
        self.scheduler.pool_loads(MODEL, now, into);
    }

    /// Uncached prompt tokens in front of the engine that has the fewest.
    pub fn least_busy_tokens(&mut self, now: Nanos) -> u64 {
        let tokens = |ranks: &[plimsoll_load::RankLoad]| ranks.iter().map(|rank| rank.uncached_prefill_tokens).sum();
        self.scheduler.instances(now).iter().map(|one| tokens(&one.ranks)).min().unwrap_or(0)
    }

    /// What engines have shown of prefill times.
    pub fn prefill_model(&self) -> Option<Coefficients> {
        self.scheduler.prefill_model(Some(MODEL))
    }

    /// A prompt's class, and how much of it the best place has.
    pub fn classify(&mut self, now: Nanos, names: &[BlockName], prompt_tokens: u64, past: Past) -> (Class, u64) {
        self.hear(now);
        let family = Family { format: NameFormat::Sglang, block_tokens: self.block_tokens };
        let best = self.config.cache_view.then(|| {
            let prompt = Prompt::of_names(family, names.to_vec(), prompt_tokens);
            best(&self.scheduler, &self.config, &self.view.hits(now, &prompt))
        });
        (classify(&self.config.classes, prompt_tokens, best, past).class, best.unwrap_or(0))
    }

    /// Looks up, classifies, chooses and charges.
    ///
    /// # Errors
    /// When nobody can take it.
    pub fn place(&mut self, now: Nanos, wanted: &Wanted<'_>) -> Result<Open, PlaceError> {
        self.hear(now);
        let Wanted { prompt_tokens, names, .. } = *wanted;
        let family = Family { format: NameFormat::Sglang, block_tokens: self.block_tokens };
        let prompt = Prompt::of_names(family, names.to_vec(), prompt_tokens);
        self.hits.clear();
        let mut best = None;
        if self.config.cache_view && !wanted.computed {
            let found = self.view.hits(now, &prompt);
            best = Some(self::best(&self.scheduler, &self.config, &found));
            self.hits.extend(found.iter().map(|(target, hit)| (*target, held(hit))));
        }
        let class = classify(&self.config.classes, prompt_tokens, best, wanted.past).class;
        let others: Vec<InstanceId> = match wanted.only {
            Some(only) => {
                let all = self.scheduler.instances(now).into_iter().map(|instance| instance.id);
                all.filter(|id| *id != only.instance).collect()
            }
            None => Vec::new(),
        };
        let output_tokens = wanted.max_output_tokens.unwrap_or(self.config.assumed_output_tokens);
        let ask = Ask {
            request: RequestId(u128::from(wanted.request)),
            leg: wanted.leg,
            attempt: wanted.attempt,
            role: wanted.role,
            model: Some(MODEL),
            charge: Charge {
                uncached_prefill_tokens: if wanted.computed { 0 } else { prompt_tokens },
                reserved_kv_tokens: prompt_tokens + output_tokens,
                sequences: 1,
            },
            hits: &self.hits,
            exclude: if wanted.only.is_some() { &others } else { wanted.exclude },
            ..Ask::default()
        };
        let Placed { target, ticket, .. } = self.scheduler.place(now, &ask)?;
        let tells = self.config.cache_view && !wanted.computed;
        let believed = if tells { self.view.routed(now, target, &prompt) } else { Hit::default() };
        let (best_tokens, computed) = (best, wanted.computed);
        Ok(Open { ticket, target, class, believed, best_tokens, prompt, placed_at: now, computed })
    }

    /// Prefill is over.
    pub fn first_token(&mut self, now: Nanos, open: &Open) {
        self.scheduler.first_token(open.ticket, now);
    }

    /// It has ended well: its engine had `cached_tokens` of its prompt; `step` is its mean time between tokens after the first.
    pub fn completed(&mut self, now: Nanos, open: &Open, cached_tokens: u64, step: Option<Nanos>) {
        let prompt_tokens = open.prompt.tokens();
        if !open.computed {
            self.scheduler.prefilled(open.ticket, prompt_tokens.saturating_sub(cached_tokens), cached_tokens);
        }
        if let Some(step) = step {
            self.scheduler.decoded(open.ticket, step);
        }
        self.scheduler.settle(open.ticket, now, AttemptEnd::Ok);
        if self.config.cache_view && !open.computed {
            self.view.reported(now, open.target, &open.prompt, open.believed, cached_tokens);
            self.view.left(open.target, &open.prompt);
        }
    }

    /// It has not.
    pub fn failed(&mut self, now: Nanos, open: &Open, end: AttemptEnd) {
        self.scheduler.settle(open.ticket, now, end);
        if self.config.cache_view {
            self.view.withdrawn(open.placed_at, open.target, &open.prompt);
            if !open.computed {
                self.view.left(open.target, &open.prompt);
            }
        }
    }
}

fn targets(id: InstanceId, ranks: u16) -> impl Iterator<Item = Target> {
    (0..ranks.max(1)).map(move |rank| Target { instance: id, rank: plimsoll_core::Rank(rank) })
}

fn held(hit: &Hit) -> HeldTokens {
    HeldTokens { device_tokens: hit.device_tokens, host_tokens: hit.host_tokens, shared_tokens: hit.shared_tokens }
}

/// Tokens that the best engine which is not out need not compute, as the gateway reckons.
fn best(scheduler: &Scheduler, config: &GatewayConfig, hits: &BTreeMap<Target, Hit>) -> u64 {
    let rates = &config.scheduler;
    let is_in = |target: &Target| !scheduler.is_ejected(target.instance);
    let worth =
        |hit: &Hit| held(hit).worth_tokens(rates.assumed_prefill_tokens_per_s, rates.assumed_kv_load_tokens_per_s);
    hits.iter().filter(|(target, _)| is_in(target)).map(|(_, hit)| worth(hit)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that asks for little takes little room from those that come after it.
    #[test]
    fn what_a_client_asked_for_is_reserved_and_not_what_is_usual() {
        let reserved = |max_output_tokens| {
            let mut gateway = Gateway::new(GatewayConfig::default(), 16);
            gateway.add(Nanos::ZERO, InstanceId(0), LegRole::Unified, 1, 100_000, 10_000);
            let wanted = Wanted { max_output_tokens, ..Wanted::new(1, &[], 100) };
            gateway.place(Nanos::ZERO, &wanted).unwrap();
            gateway.scheduler.totals(Nanos::ZERO).reserved_kv_tokens
        };
        assert_eq!((reserved(None), reserved(Some(7))), (612, 107));
    }
}
