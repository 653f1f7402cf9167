//! A question as a person asks it: a trace, engines, a policy.
//!
//! One place turns names and numbers into a [`Config`], so that the command line, experiments and tests mean the same by them.

mod checks;
#[cfg(test)]
mod tests;

use crate::baselines::Policy;
use crate::collect::Slo;
use crate::engine::{ContextWait, EngineShape, Reserve};
use crate::gateway::GatewayConfig;
use crate::input::{Input, InputOptions, MOST_TRACES, Mix, Warp};
use crate::report::{Report, Setup};
use crate::tier::TierConfig;
use crate::world::{Change, Config, FleetConfig, KvBalance, Mover, RunError, Source, Watcher, in_words, run};
use plimsoll_core::Nanos;
use plimsoll_load::SchedulerConfig;
use plimsoll_timing::{Kernel, Profile};
use plimsoll_traffic::admission::Rules;
use plimsoll_workload::Session;
use plimsoll_workload::traces::TraceError;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The cache view numbers holders with 16 bits, two for each target.
const MOST_TARGETS: u64 = 1 << 15;

/// Said of such times.
pub const DOUBT: &str = "times that are taken for seconds look like milliseconds: whole numbers over more than a year, minutes from row to \
                     row, or beyond the year 5000; name the column `timestamp_ms` where they are";

/// What is asked. [`Question::new`] gives the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub trace: PathBuf,
    /// Further traces that are replayed at the same time, each so many times as fast as `input.rate` says.
    pub also: Vec<(PathBuf, f64)>,
    /// The whole of it faster and slower over time.
    pub warp: Option<Warp>,
    /// Regions that sessions come from, drawn for each.
    pub regions: Vec<String>,
    /// Name of a built-in profile, or a TOML file of the same form.
    pub profile: String,
    /// A profile in place of the one that is named.
    pub given: Option<Box<Profile>>,
    pub instances: u32,
    pub policy: Policy,
    pub seed: u64,
    pub input: InputOptions,
    /// Ranks of an instance that step together; the profile's where not given.
    pub ranks: Option<u16>,
    pub kv_tokens: Option<u64>,
    pub max_running: Option<u64>,
    pub token_budget: Option<u64>,
    /// Longest prompt plus output.
    pub context_tokens: Option<u64>,
    /// `K0`, `K1` or `K2` in place of the profile's kernel family.
    pub kernel: Option<KernelFamily>,
    /// For what pages are taken at admission.
    pub reserve: Reserve,
    /// Ranks that step together wait for each other with their prompts.
    pub context_wait: Option<ContextWait>,
    /// Placement knows what is cached where.
    pub cache_view: bool,
    pub longest_pause: Option<Nanos>,
    pub slo: Slo,
    pub poll: Nanos,
    pub event_lag: Nanos,
    pub assumed_output_tokens: u64,
    pub single_steps: bool,
    /// Every step of an engine is so many times as fast as the profile says.
    pub speedup: f64,
    /// Engines that take requests over after their prefill; the others then prefill only.
    pub decode_instances: u32,
    /// Bytes per second from one engine to another.
    pub network_bytes_per_s: Option<f64>,
    /// Memory of the host below each rank.
    pub host: Option<TierConfig>,
    /// A pool for the whole fleet.
    pub pool: Option<TierConfig>,
    /// Running requests move to even out KV.
    pub balance_kv: bool,
    pub changes: Vec<(Nanos, Change)>,
    /// Traffic scheduling with the gateway's defaults.
    pub admission: bool,
}

/// How a decode kernel cuts its work (`workloads.md` section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFamily {
    K0,
    K1,
    K2,
}

/// Sessions of one or more traces.
pub struct Sessions {
    pub source: Source<'static>,
    /// Of all prompts' blocks.
    pub block_tokens: u64,
    /// Rows passed over, by trace; grow while it is read.
    pub skipped: Vec<Rc<Cell<u64>>>,
    /// Whether times look like milliseconds and are taken for seconds, by trace; change while it is read.
    pub doubts: Vec<Rc<Cell<bool>>>,
    /// What should be known of them.
    pub notes: Vec<String>,
}

/// Why it cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// The question is wrong.
    #[error("{0}")]
    Asked(String),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Question {
    #[must_use]
    pub fn new(trace: &Path, profile: &str, instances: u32, policy: Policy) -> Self {
        let gateway = GatewayConfig::default();
        Question {
            trace: trace.to_owned(),
            also: Vec::new(),
            warp: None,
            regions: Vec::new(),
            profile: profile.to_owned(),
            given: None,
            instances,
            policy,
            seed: 0,
            input: InputOptions::default(),
            ranks: None,
            kv_tokens: None,
            max_running: None,
            token_budget: None,
            context_tokens: None,
            kernel: None,
            reserve: Reserve::Prompt,
            context_wait: None,
            cache_view: true,
            longest_pause: None,
            slo: Slo::default(),
            poll: Nanos::from_millis(500),
            event_lag: gateway.event_lag,
            assumed_output_tokens: gateway.assumed_output_tokens,
            single_steps: false,
            speedup: 1.0,
            decode_instances: 0,
            network_bytes_per_s: None,
            host: None,
            pool: None,
            balance_kv: false,
            changes: Vec::new(),
            admission: false,
        }
    }

    /// The profile with what is asked for in place of its own.
    ///
    /// # Errors
    /// When there is no such profile, or it is broken.
    pub fn profile(&self) -> Result<Profile, QuestionError> {
        let mut profile = match &self.given {
            Some(given) => Profile::clone(given),
            None => load_profile(&self.profile)?,
        };
        let serving = &mut profile.serving;
        serving.kv_tokens = self.kv_tokens.unwrap_or(serving.kv_tokens);
        serving.context_tokens = self.context_tokens.unwrap_or(serving.context_tokens);
        serving.max_running = self.max_running.unwrap_or(serving.max_running);
        serving.token_budget = self.token_budget.unwrap_or(serving.token_budget).max(serving.max_running);
        profile.kernel = match (self.kernel, profile.kernel) {
            (None, kernel) | (Some(KernelFamily::K0), kernel @ Kernel::K0 { .. }) => kernel,
            (Some(KernelFamily::K0), _) => Kernel::K0 { skew: 0.04 },
            (Some(KernelFamily::K1), _) => Kernel::K1,
            (Some(KernelFamily::K2), _) => Kernel::K2,
        };
        Ok(profile)
    }

    /// Runs it.
    ///
    /// # Errors
    /// When the question is wrong, the trace is broken, or nothing can move any more.
    pub fn answer(&self, watcher: &mut dyn Watcher) -> Result<Report, QuestionError> {
        let profile = self.checked()?;
        let Sessions { source, block_tokens, skipped, doubts, notes } = self.sessions()?;
        let config = self.config(profile, block_tokens);
        let mut report = run(config, source, watcher)?;
        report.setup.skipped_rows = skipped.iter().map(|count| count.get()).sum();
        if report.requests.arrived == 0 {
            let skipped = report.setup.skipped_rows;
            let what = format!("{}: nothing is left to replay; {skipped} rows were passed over", report.setup.trace);
            return Err(RunError::Input(what).into());
        }
        report.notes.extend(notes);
        if doubts.iter().any(|doubt| doubt.get()) {
            report.notes.push(DOUBT.to_owned());
        }
        report.notes.extend(self.raised_budget()?);
        Ok(report)
    }

    /// What the traces ask, in order of time.
    ///
    /// # Errors
    /// When one cannot be read, or is of no known form.
    pub fn sessions(&self) -> Result<Sessions, QuestionError> {
        if self.also.len() >= MOST_TRACES {
            return Err(QuestionError::Asked(format!("{} traces; at most {MOST_TRACES}", self.also.len() + 1)));
        }
        let open = |(nth, (path, times)): (usize, (&PathBuf, f64))| {
            if !(times > 0.0 && times.is_finite()) {
                return Err(QuestionError::Asked(format!("{}: the rate must be above 0", path.display())));
            }
            let options = InputOptions {
                seed: self.seed.wrapping_add(nth as u64),
                rate: self.input.rate * times,
                starts_per_s: self.input.starts_per_s * times,
                ..self.input
            };
            Input::open(path, options).map_err(|error| match error {
                TraceError::Open { .. } => QuestionError::Asked(error.to_string()),
                _ => RunError::Input(error.to_string()).into(),
            })
        };
        let first = open((0, (&self.trace, 1.0)))?;
        let mut sessions = if self.also.is_empty() {
            let (block_tokens, skipped, doubts) = (first.block_tokens(), vec![first.skipped()], vec![first.doubt()]);
            let notes = first.drawn().into_iter().collect();
            Sessions { source: Box::new(first), block_tokens, skipped, doubts, notes }
        } else {
            let also = self.also.iter().enumerate().map(|(nth, (path, times))| open((nth + 1, (path, *times))));
            let inputs = std::iter::once(Ok(first)).chain(also).collect::<Result<Vec<_>, _>>()?;
            let doubts = inputs.iter().map(Input::doubt).collect();
            let notes = inputs.iter().filter_map(Input::drawn).collect();
            let mix = Mix::new(inputs, self.input.limit);
            let (block_tokens, skipped) = (mix.block_tokens(), mix.skipped());
            Sessions { source: Box::new(mix), block_tokens, skipped, doubts, notes }
        };
        if let Some(warp) = self.warp.clone() {
            let warped = sessions.source.map(move |session| {
                session.map(|mut session| {
                    session.start = warp.at(session.start);
                    session
                })
            });
            sessions.source = Box::new(warped);
        }
        Ok(sessions)
    }

    /// Runs it on these sessions, in order of their start, in place of those of the trace; `block_tokens` are those of their prompts.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn answer_sessions(
        &self,
        sessions: Vec<Session>,
        block_tokens: u64,
        watcher: &mut dyn Watcher,
    ) -> Result<Report, QuestionError> {
        let profile = self.checked()?;
        let config = self.config(profile, block_tokens);
        Ok(run(config, Box::new(sessions.into_iter().map(Ok)), watcher)?)
    }

    /// The profile, where the question is none that must be refused.
    fn checked(&self) -> Result<Profile, QuestionError> {
        let profile = self.profile()?;
        let asked = |what: &str| Err(QuestionError::Asked(what.to_owned()));
        if self.instances == 0 {
            return asked("a fleet needs at least one instance");
        }
        let ranks = u64::from(self.ranks(&profile));
        let joins = self.changes.iter().filter(|(_, change)| matches!(change, Change::Join { .. })).count() as u64;
        let targets = (u64::from(self.instances) + u64::from(self.decode_instances) + joins).saturating_mul(ranks);
        if targets > MOST_TARGETS {
            return Err(QuestionError::Asked(format!(
                "{targets} ranks in all; at most {MOST_TARGETS} can be told apart, so ask for fewer instances or ranks"
            )));
        }
        if !(self.input.rate > 0.0 && self.input.rate.is_finite()) {
            return asked("the rate must be above 0; 2 is twice as fast as recorded");
        }
        if !(self.input.starts_per_s > 0.0 && self.input.starts_per_s.is_finite()) {
            return asked("starts per second must be above 0");
        }
        if !(self.speedup > 0.0 && self.speedup.is_finite()) {
            return asked("the speed-up must be above 0");
        }
        self.check_changes()?;
        self.check_speeds(&profile)?;
        Ok(profile)
    }

    fn ranks(&self, profile: &Profile) -> u16 {
        self.ranks.unwrap_or(profile.machine.data_parallel.min(u32::from(u16::MAX)) as u16).max(1)
    }

    fn config(&self, profile: Profile, block_tokens: u64) -> Config {
        let ranks = self.ranks(&profile);
        let shape = EngineShape {
            reserve: self.reserve,
            context_wait: self.context_wait,
            ..EngineShape::of(&profile.serving, block_tokens)
        };
        let setup = Setup {
            trace: self.names_of_traces(),
            profile: profile.name.clone(),
            founded: profile.founded.to_string(),
            policy: self.policy.as_str().to_owned(),
            seed: self.seed,
            rate: self.input.rate,
            limit: self.input.limit,
            slo_ttft_ms: self.slo.ttft.as_millis_f64(),
            slo_tpot_ms: self.slo.tpot.as_millis_f64(),
            settings: self.settings(&profile, ranks),
            ..Setup::default()
        };
        let scheduler = SchedulerConfig {
            policy: self.policy.kind(),
            seed: self.seed,
            record_candidates: 0,
            ..SchedulerConfig::default()
        };
        let mut fleet = FleetConfig::of(profile, self.instances, shape);
        fleet.gpus_per_instance = fleet.gpus_per_instance / u32::from(fleet.ranks) * u32::from(ranks);
        fleet.ranks = ranks;
        if self.speedup != 1.0 {
            fleet.speed_up(self.speedup);
        }
        (fleet.host, fleet.pool, fleet.decode_instances) = (self.host, self.pool, self.decode_instances);
        fleet.network.bytes_per_s = self.network_bytes_per_s.unwrap_or(fleet.network.bytes_per_s);
        Config {
            fleet,
            gateway: GatewayConfig {
                scheduler,
                placement: self.policy.placement(self.seed, block_tokens),
                cache_view: self.cache_view,
                event_lag: self.event_lag,
                assumed_output_tokens: self.assumed_output_tokens,
                ..GatewayConfig::default()
            },
            poll: self.poll,
            longest_pause: self.longest_pause,
            slo: self.slo,
            single_steps: self.single_steps,
            changes: self.changes.clone(),
            regions: self.regions.clone(),
            admission: self.admission.then(|| Rules { seed: self.seed, ..Rules::default() }),
            mover: self.balance_kv.then(|| Box::new(KvBalance::default()) as Box<dyn Mover>),
            setup,
        }
    }

    fn names_of_traces(&self) -> String {
        let name = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let also = self.also.iter().map(|(path, times)| match *times {
            1.0 => format!(" + {}", name(path)),
            times => format!(" + {} x {times}", name(path)),
        });
        std::iter::once(name(&self.trace)).chain(also).collect()
    }

    /// What differs from the defaults, for the report.
    fn settings(&self, profile: &Profile, ranks: u16) -> BTreeMap<String, String> {
        let usual = Question::new(&self.trace, &self.profile, self.instances, self.policy);
        let mut settings = BTreeMap::new();
        let mut put = |differs: bool, name: &str, value: String| {
            if differs {
                settings.insert(name.to_owned(), value);
            }
        };
        put(self.warp.is_some(), "warp", self.warp.as_ref().map_or_else(String::new, ToString::to_string));
        put(!self.regions.is_empty(), "regions", self.regions.join(" "));
        put(self.speedup != usual.speedup, "speedup", self.speedup.to_string());
        put(self.ranks.is_some(), "ranks", ranks.to_string());
        put(self.kv_tokens.is_some(), "kv_tokens", profile.serving.kv_tokens.to_string());
        put(self.max_running.is_some(), "max_running", profile.serving.max_running.to_string());
        put(self.token_budget.is_some(), "token_budget", profile.serving.token_budget.to_string());
        put(self.context_tokens.is_some(), "context_tokens", profile.serving.context_tokens.to_string());
        put(self.kernel.is_some(), "kernel", format!("{:?}", profile.kernel));
        put(self.reserve != usual.reserve, "reserve", format!("{:?}", self.reserve));
        let wait = self.context_wait.map(|wait| format!("{}+{}", wait.timeout_steps, wait.batching_steps));
        put(wait.is_some(), "context_wait", wait.unwrap_or_default());
        put(!self.cache_view, "cache_view", "off".to_owned());
        let pause = self.longest_pause.map_or_else(String::new, |pause| format!("{}", pause.as_secs_f64()));
        put(self.longest_pause.is_some(), "longest_pause_s", pause);
        put(self.poll != usual.poll, "poll_ms", format!("{}", self.poll.as_millis_f64()));
        put(self.event_lag != usual.event_lag, "event_lag_ms", format!("{}", self.event_lag.as_millis_f64()));
        let assumed = self.assumed_output_tokens;
        put(assumed != usual.assumed_output_tokens, "assumed_output_tokens", assumed.to_string());
        let starts = self.input.starts_per_s;
        put(starts != usual.input.starts_per_s, "starts_per_s", starts.to_string());
        put(self.decode_instances > 0, "decode_instances", self.decode_instances.to_string());
        let network = self.network_bytes_per_s.map_or_else(String::new, |bytes| (bytes / 1e9).to_string());
        put(self.network_bytes_per_s.is_some(), "network_gb_s", network);
        for (name, tier) in [("host", self.host), ("pool", self.pool)] {
            let text = tier.map(|tier| format!("{} tokens at {} GB/s", tier.capacity_tokens, tier.bytes_per_s / 1e9));
            put(tier.is_some(), name, text.unwrap_or_default());
        }
        put(self.admission, "admission", "on".to_owned());
        put(self.balance_kv, "balance_kv", "on".to_owned());
        put(!self.changes.is_empty(), "changes", in_words(&self.changes));
        settings
    }
}

fn load_profile(name: &str) -> Result<Profile, QuestionError> {
    let asked = |error: &dyn std::fmt::Display| QuestionError::Asked(error.to_string());
    if !(name.ends_with(".toml") || name.contains('/')) {
        return plimsoll_timing::find(name).map_err(|error| asked(&error));
    }
    let text = std::fs::read_to_string(name)
        .map_err(|error| QuestionError::Asked(format!("{name}: cannot be read: {error}; check the path")))?;
    Profile::parse(name, &text).map_err(|error| asked(&error))
}
