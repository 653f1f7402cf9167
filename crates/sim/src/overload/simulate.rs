//! A plan on the virtual clock: the production gateway's decisions before iteration-level engines.
//!
//! What real processes add is left out: sockets, the gateway's own milliseconds, late timers, a machine that cannot keep up.

use super::entrance::{BUSY_TOKENS, Bucket, LOOK_EVERY};
use super::outcome::{Done, Outcome, PATIENCE_S, Whole, repeat_after_s};
use super::plan::{Ask, Plan, class_rules, promised};
use super::{Control, PAGE_TOKENS, PROFILE, SCALE, engine_shape};
use crate::gateway::GatewayConfig;
use crate::step_time::StepTime;
use crate::world::{Answer, Asked, Callers, Config, FleetConfig, Nobody, Source, Terms, run_with};
use plimsoll_cache::session::is_hit_round;
use plimsoll_core::Nanos;
use plimsoll_load::SchedulerConfig;
use plimsoll_timing::{Profile, StepShape};
use plimsoll_traffic::admission::Rules;
use plimsoll_traffic::class::Past;
use plimsoll_workload::{Call, Prompt, Run, Session, Tail};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Between two reports of an engine's load, as the real fleet is set.
const POLL: Nanos = Nanos::from_secs(1);
/// What a request is taken to generate, likewise.
const ASSUMED_OUTPUT_TOKENS: u64 = 8;
/// A block of a session is named by both numbers.
const BLOCKS_OF_A_SESSION: u32 = 20;

/// What to play.
#[derive(Debug)]
pub struct Simulation<'a> {
    pub plan: &'a Plan,
    pub engines: u16,
    pub control: Control,
    pub scheduler: SchedulerConfig,
    pub rules: Rules,
}

impl<'a> Simulation<'a> {
    /// As `plimsoll bench overload` sets its gateway.
    #[must_use]
    pub fn new(plan: &'a Plan, engines: u16, control: Control) -> Self {
        let scheduler = SchedulerConfig {
            assumed_prefill_tokens_per_s: plan.capacity_tokens_per_s / f64::from(engines.max(1)),
            report_stale: Nanos::from_secs(8),
            record_candidates: 0,
            ..SchedulerConfig::default()
        };
        Simulation { plan, engines, control, scheduler, rules: rules() }
    }
}

/// The gateway's defaults in scaled tokens.
#[must_use]
fn rules() -> Rules {
    let usual = Rules::default();
    let base = promised().map(|(tokens, seconds)| (tokens.min(1 << 30), Nanos::from_secs_f64(seconds))).collect();
    Rules {
        engine_queue_tokens: usual.engine_queue_tokens / SCALE,
        slo: plimsoll_traffic::admission::SloRules { base, ..usual.slo },
        ..usual
    }
}

/// Plays it. What came of each request, in the order in which it was over.
///
/// # Errors
/// When the profile cannot be read, or the run cannot end.
pub fn simulate(simulation: &Simulation<'_>) -> Result<Vec<Done>, String> {
    let Simulation { plan, engines, control, scheduler, rules } = simulation;
    let profile = plimsoll_timing::find(PROFILE).map_err(|error| error.to_string())?;
    let fleet = FleetConfig::with(Box::new(Slowed(profile)), u32::from(*engines), engine_shape()?);
    let gateway = GatewayConfig {
        scheduler: *scheduler,
        assumed_output_tokens: ASSUMED_OUTPUT_TOKENS,
        classes: class_rules(),
        ..GatewayConfig::default()
    };
    let admission = (*control == Control::Plimsoll).then(|| rules.clone());
    let config = Config { poll: POLL, admission, ..Config::new(fleet, gateway) };
    let source: Source<'_> = Box::new(plan.asks.iter().map(|ask| Ok(session(ask))));
    let mut crowd = Crowd::new(plan, *control);
    run_with(config, source, &mut Nobody, &mut crowd).map_err(|error| error.to_string())?;
    Ok(crowd.done)
}

/// What engines serve at most of this plan's crowd, in time or not, as a share of what they prefill in full steps: simulated, without any control, so that they
/// never want for work. The yardstick for goodput: it counts decoding and steps that this mix does not fill.
///
/// # Errors
/// As [`simulate`].
pub fn saturation_of_capacity(plan: &Plan, engines: u16) -> Result<f64, String> {
    let done = simulate(&Simulation::new(plan, engines, Control::None))?;
    Ok(Whole::of(plan, engines, &done).crowd_served_of_capacity)
}

/// A request as a session of one call.
fn session(ask: &Ask) -> Session {
    let first = ask.session << BLOCKS_OF_A_SESSION;
    let (len, rest) = (ask.prompt_tokens / PAGE_TOKENS, ask.prompt_tokens % PAGE_TOKENS);
    let prompt = Prompt {
        block_tokens: PAGE_TOKENS,
        runs: vec![Run { first, len }],
        tail: (rest > 0).then_some(Tail { id: first + len, tokens: rest }),
    };
    let call = Call {
        after: Vec::new(),
        prompt,
        echo_tokens: 0,
        output_tokens: ask.output_tokens,
        max_output_tokens: Some(ask.output_tokens),
        recorded: None,
    };
    Session { id: String::new(), start: Nanos::from_secs_f64(ask.at), prefix_blocks: None, calls: vec![call] }
}

/// A profile whose steps take [`SCALE`] times as long.
#[derive(Debug)]
struct Slowed(Profile);

impl StepTime for Slowed {
    fn step_us(&self, shape: &StepShape) -> f64 {
        self.0.step_us(shape) * SCALE as f64
    }

    fn context_token_us(&self) -> Option<f64> {
        self.0.context_token_us().map(|us| us * SCALE as f64)
    }
}

/// The clients, and what stands before the gateway.
#[derive(Debug)]
struct Crowd<'a> {
    plan: &'a Plan,
    tenants: Vec<Arc<str>>,
    bucket: Option<Bucket>,
    /// Looks at the least busy engine; what it saw last, and when.
    watch: Option<(Nanos, u64)>,
    /// What the gateway knows of a tenant's session: turns come one by one and not as one session.
    sessions: BTreeMap<(u64, usize), Past>,
    done: Vec<Done>,
}

impl<'a> Crowd<'a> {
    fn new(plan: &'a Plan, control: Control) -> Self {
        let bucket =
            if let Control::Uniform { tokens_per_s } = control { Some(Bucket::new(tokens_per_s)) } else { None };
        Crowd {
            plan,
            tenants: (0..super::TENANTS).map(|tenant| Arc::from(format!("tenant-{tenant}"))).collect(),
            bucket,
            watch: (control == Control::Static).then_some((Nanos::ZERO, 0)),
            sessions: BTreeMap::new(),
            done: Vec::with_capacity(plan.asks.len()),
        }
    }

    fn past(&self, ask: &Ask) -> Past {
        self.sessions.get(&(ask.session, ask.tenant)).copied().unwrap_or_default()
    }

    fn answered(&mut self, ask: &Ask, cached_tokens: u64) {
        let before = self.past(ask);
        let hit = before.known_tokens > 0 && is_hit_round(before.known_tokens, cached_tokens);
        let past = Past { hit_rounds: before.hit_rounds + u32::from(hit), known_tokens: ask.prompt_tokens };
        self.sessions.insert((ask.session, ask.tenant), past);
    }
}

impl Callers for Crowd<'_> {
    fn sends(&mut self, now: Nanos, asked: Asked, least_busy: &mut dyn FnMut() -> u64) -> Option<Terms> {
        let ask = &self.plan.asks[asked.session as usize];
        if let Some(bucket) = &mut self.bucket
            && !bucket.take(ask.cost_tokens(), now.as_secs_f64())
        {
            return None;
        }
        if let Some((at, seen)) = &mut self.watch {
            if now.since(*at) >= LOOK_EVERY {
                (*at, *seen) = (now, least_busy());
            }
            if *seen > BUSY_TOKENS {
                return None;
            }
        }
        Some(Terms {
            tenant: self.tenants[ask.tenant].clone(),
            first_token_by: Some(Nanos::from_secs_f64(ask.at + ask.promised_s)),
            gives_up_at: Some(Nanos::from_secs_f64(ask.at + PATIENCE_S)),
            past: Some(self.past(ask)),
        })
    }

    fn hears(&mut self, now: Nanos, asked: Asked, answer: Answer) -> Option<Nanos> {
        let ask = &self.plan.asks[asked.session as usize];
        if let Answer::Whole { cached_tokens, .. } = answer {
            self.answered(ask, cached_tokens);
        }
        let sent = asked.sending + 1;
        let since = |at: Nanos| at.as_secs_f64() - ask.at;
        let outcome = match answer {
            Answer::Whole { first_token, cached_tokens } => Outcome::Served {
                ttft_s: since(first_token),
                e2e_s: since(now),
                uncached_tokens: ask.prompt_tokens.saturating_sub(cached_tokens),
                output_tokens: ask.output_tokens,
            },
            Answer::Refused(_) if sent <= self.plan.repeats => return Some(Nanos::from_secs_f64(repeat_after_s(sent))),
            Answer::Refused(why) => Outcome::Refused { code: why.to_owned(), after_s: since(now) },
            Answer::GaveUp => Outcome::GaveUp,
            Answer::Failed => Outcome::Failed { code: "failed".to_owned() },
        };
        self.done.push(Done { ask: asked.session as usize, outcome, sent });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overload::{Figures, Scenario, Shape, capacity_tokens_per_s};
    use plimsoll_core::Class;

    const CONTROLS: [Control; 4] =
        [Control::None, Control::Uniform { tokens_per_s: 3_000.0 }, Control::Static, Control::Plimsoll];

    fn plan(scenario: Scenario, seconds: u64) -> Plan {
        Plan::new(scenario, &Shape::fitted(), 2, capacity_tokens_per_s(2).unwrap(), seconds, 1)
    }

    #[test]
    fn every_request_is_answered_once_and_two_runs_are_alike() {
        for scenario in [Scenario::B, Scenario::D] {
            let plan = plan(scenario, 24);
            for control in CONTROLS {
                let played = || simulate(&Simulation::new(&plan, 2, control)).unwrap();
                let done = played();
                assert!(done == played(), "{scenario:?} {control:?}: two runs differ");
                let mut asks: Vec<usize> = done.iter().map(|done| done.ask).collect();
                asks.sort_unstable();
                assert!(asks.into_iter().eq(0..plan.asks.len()), "{scenario:?} {control:?}");
                let refused = done.iter().filter(|done| matches!(done.outcome, Outcome::Refused { .. })).count();
                assert_eq!(refused > 0, control != Control::None, "{scenario:?} {control:?}: {refused}");
                let often = done.iter().map(|done| done.sent).max();
                assert_eq!(often, Some(if refused > 0 { plan.repeats + 1 } else { 1 }), "{scenario:?} {control:?}");
            }
        }
    }

    /// Hits are those of the plan: an engine's cache and the gateway's view see the same sessions.
    #[test]
    fn turns_of_a_session_are_cached() {
        // As many engines as hold all sessions.
        let plan = Plan::new(Scenario::B, &Shape::fitted(), 4, capacity_tokens_per_s(4).unwrap(), 120, 1);
        let done = simulate(&Simulation::new(&plan, 4, Control::Plimsoll)).unwrap();
        let (mut computed, mut least) = (0, 0);
        for done in done.iter().filter(|done| (20.0..30.0).contains(&plan.asks[done.ask].at)) {
            if let Outcome::Served { uncached_tokens, .. } = done.outcome {
                let ask = &plan.asks[done.ask];
                computed += uncached_tokens;
                least += ask.prompt_tokens - ask.hit_tokens;
            }
        }
        assert!(least > 0 && (least..3 * least).contains(&computed), "{computed} of at least {least}");
    }

    #[test]
    fn who_has_waited_long_enough_leaves_and_takes_his_work_with_him() {
        // Engines are 60 s behind by the middle of it.
        let plan = plan(Scenario::D, 300);
        let done = simulate(&Simulation::new(&plan, 2, Control::None)).unwrap();
        let figures = Figures::of(&plan, &done, |_| true);
        assert!(figures.gave_up > 100, "{figures:?}");
        let whole = Whole::of(&plan, 2, &done);
        assert!((0.5..1.01).contains(&whole.crowd_served_of_capacity), "{whole:?}");
        let latest = done.iter().filter_map(|done| match done.outcome {
            Outcome::Served { e2e_s, .. } => Some(e2e_s),
            _ => None,
        });
        assert!(latest.fold(0.0, f64::max) <= PATIENCE_S + 1e-6);
    }

    /// What the recorded runs of real processes showed (`docs/operating/overload.md`), with room for another shape and seed.
    #[test]
    fn control_makes_the_difference_that_real_processes_showed() {
        let plan = Plan::new(Scenario::A, &Shape::fitted(), 4, capacity_tokens_per_s(4).unwrap(), 120, 1);
        let high = |control| {
            let done = simulate(&Simulation::new(&plan, 4, control)).unwrap();
            Figures::of(&plan, &done, |ask| ask.class == Class::High).slo_attainment
        };
        let (none, ours) = (high(Control::None), high(Control::Plimsoll));
        assert!(none < 0.5 && ours > 0.98, "{none} {ours}");
    }

    /// Seen: turns computed again displaced others, which were computed again, for a minute after a crowd, while a sixth of what engines
    /// can do was asked for.
    #[test]
    fn when_a_crowd_has_gone_sessions_find_their_kv_again() {
        let plan = Plan::new(Scenario::B, &Shape::fitted(), 16, capacity_tokens_per_s(16).unwrap(), 240, 2);
        let after = |pressure_weight| {
            let mut simulation = Simulation::new(&plan, 16, Control::Plimsoll);
            simulation.scheduler.pressure_weight = pressure_weight;
            let done = simulate(&simulation).unwrap();
            let late = done.iter().filter(|done| plan.asks[done.ask].at > 205.0);
            let uncached = late.filter_map(|done| match done.outcome {
                Outcome::Served { uncached_tokens, .. } => Some(uncached_tokens),
                _ => None,
            });
            uncached.sum::<u64>() as f64 / (35.0 * plan.capacity_tokens_per_s)
        };
        let (selfish, ours) = (after(0.0), after(2.0));
        assert!(
            selfish > 0.5 && ours < 0.3,
            "computed, as a share of capacity: {selfish} without pressure, {ours} with"
        );
    }

    /// Wanted of the scenarios (`docs/operating/overload.md`): promises to the high class, and engines that are not kept from work for them.
    #[test]
    fn the_high_class_is_in_time_and_no_engine_wants_for_work() {
        for scenario in [Scenario::A, Scenario::B, Scenario::C, Scenario::D] {
            let plan = Plan::new(scenario, &Shape::fitted(), 4, capacity_tokens_per_s(4).unwrap(), 240, 2);
            let done = simulate(&Simulation::new(&plan, 4, Control::Plimsoll)).unwrap();
            let high = Figures::of(&plan, &done, |ask| ask.class == Class::High).slo_attainment;
            assert!(high >= 0.99, "{scenario:?}: {high}");
            let goodput = Whole::of(&plan, 4, &done).crowd_goodput_of_capacity;
            let most = saturation_of_capacity(&plan, 4).unwrap();
            assert!(goodput >= 0.95 * most, "{scenario:?}: {goodput} of {most}");
        }
    }
}
