//! `plimsoll sim`: what would another fleet or another policy do with this traffic?

mod compare;
mod experiment;
mod fidelity;
mod import;
mod profiles;
mod progress;
mod replay_decisions;
mod run;

use crate::Failure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, Subcommand};
use plimsoll_engine::model::ModelConfig;
use plimsoll_sim::baselines::Policy;
use plimsoll_sim::experiment::EXPERIMENTS;
use std::ffi::OsStr;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: SimCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum SimCommand {
    /// Replay a trace through the gateway's policies before simulated engines
    Run(Box<RunArgs>),
    /// Ask several questions of one trace and print the answers side by side
    Experiment(Box<ExperimentArgs>),
    /// Print reports side by side
    Compare(CompareArgs),
    /// List the engine profiles and the placement policies
    Profiles,
    /// Hold the simulator against real processes: the same trace through a gateway and built-in engines, and simulated
    Fidelity(Box<FidelityArgs>),
    /// Make the choices of a gateway's decision log again, and say which come out otherwise
    ReplayDecisions(ReplayArgs),
    /// Turn an access log into a trace
    Import(ImportArgs),
}

#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Trace: Mooncake JSONL, compact agentic JSONL, or a log of lengths as CSV or JSONL; plain, .zst or .gz. Repeat to replay
    /// several at once, `FILE*X` X times as fast as the others
    #[arg(long, value_name = "FILE[*X]", required = true)]
    pub trace: Vec<String>,
    /// Engine profile, or a TOML file of the same form; `plimsoll sim profiles` lists those built in
    #[arg(long, value_name = "NAME", default_value = "h100-llama3-70b-tp8")]
    pub profile: String,
    /// Engines
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub instances: u32,
    /// How an engine is chosen
    #[arg(long, value_name = "NAME", default_value = "least_delay", value_parser = Policy::ALL.map(Policy::as_str))]
    pub policy: String,
    /// Seed of every draw; the same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Only the first N rows or sessions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Replay X times as fast as recorded
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub rate: f64,
    /// Rows or sessions that begin per second where the trace does not say when
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub starts_per_s: f64,
    /// Faster and slower over time: from each SECOND of the simulation on X times as fast; `SECOND:again` at the end begins anew
    #[arg(long, value_name = "SECOND:X,...")]
    pub warp: Option<String>,
    /// Regions that sessions come from, drawn for each session: a label in the report
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub regions: Vec<String>,
    /// Longest pause between two calls of a session, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = not_negative)]
    pub longest_pause_s: Option<f64>,
    /// Pass over rows that cannot be used, and count them
    #[arg(long)]
    pub skip_bad: bool,
    /// Write the report here; `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with curves here
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write one JSON object a line for every answered request here
    #[arg(long, value_name = "FILE")]
    pub requests: Option<PathBuf>,
    /// Place by load alone: nothing is known of caches
    #[arg(long)]
    pub no_cache_view: bool,
    /// Ranks of an instance that step together [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub ranks: Option<u16>,
    /// Ranks that step together wait so many steps for each other with their prompts, and further ones for more prompts to gather
    #[arg(long, value_name = "STEPS[+STEPS]")]
    pub context_wait: Option<String>,
    /// KV tokens that fit on a rank [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_024..))]
    pub kv_tokens: Option<u64>,
    /// Requests in one step of a rank [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub max_running: Option<u64>,
    /// Tokens computed in one step of a rank [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub token_budget: Option<u64>,
    /// How the decode kernel cuts its work: K0 conserves work, K1 one piece a sequence, K2 pads [default: the profile's]
    #[arg(long, value_name = "FAMILY", value_parser = ["K0", "K1", "K2"])]
    pub kernel: Option<String>,
    /// Engines that take requests over after their prefill; `--instances` then prefill only
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub decode_instances: u32,
    /// From one engine to another, GB/s [default: 50]
    #[arg(long, value_name = "GB/S", value_parser = super::demo::above_zero)]
    pub network_gb_s: Option<f64>,
    /// Tokens of KV that the memory of each rank's host keeps
    #[arg(long, value_name = "N")]
    pub host_tokens: Option<u64>,
    /// From it, GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 20.0, value_parser = super::demo::above_zero)]
    pub host_gb_s: f64,
    /// Tokens of KV that a pool for all engines keeps
    #[arg(long, value_name = "N")]
    pub pool_tokens: Option<u64>,
    /// From it, GB/s for each engine
    #[arg(long, value_name = "GB/S", default_value_t = 40.0, value_parser = super::demo::above_zero)]
    pub pool_gb_s: f64,
    /// Traffic scheduling before the engines, with the gateway's defaults: a request goes, waits or is refused
    #[arg(long)]
    pub admission: bool,
    /// Running requests move from the fullest engine to the emptiest
    #[arg(long)]
    pub balance_kv: bool,
    /// An engine, counted from 0, dies and may come back: `ENGINE@SECOND` or `ENGINE@SECOND+SECONDS`; repeat for more
    #[arg(long, value_name = "E@S[+S]")]
    pub kill: Vec<String>,
    /// An engine's steps take so many times as long from then on, a whole number: `ENGINE@SECOND*TIMES`; repeat for more
    #[arg(long, value_name = "E@S*X")]
    pub slow: Vec<String>,
    /// Another engine is started and serves after its start-up: `SECOND+SECONDS`; repeat for more
    #[arg(long, value_name = "S+S")]
    pub join: Vec<String>,
    /// Time to first token that a good answer has at most, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub slo_ttft_ms: u64,
    /// Mean gap between its tokens at most, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub slo_tpot_ms: u64,
}

#[derive(Clone, Debug, Args)]
pub struct ExperimentArgs {
    /// What to vary
    #[arg(value_name = "NAME", value_parser = ExperimentName)]
    pub name: String,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// Reports of `plimsoll sim run --json`, and documents of `plimsoll sim experiment --json`; the others are said in terms of the first
    #[arg(required = true, num_args = 1.., value_name = "FILE")]
    pub reports: Vec<PathBuf>,
    /// Write a page with the curves of all of them here
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct FidelityArgs {
    /// Trace, as `plimsoll sim run` reads it
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Engine profile, or a TOML file of the same form
    #[arg(long, value_name = "NAME", default_value = "h100-llama3-8b")]
    pub profile: String,
    /// Engines, one process each
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub instances: u32,
    /// How an engine is chosen
    #[arg(long, value_name = "NAME", default_value = "least_delay", value_parser = ["least_delay", "least_wait", "round_robin", "power_of_two"])]
    pub policy: String,
    /// Seed of every draw, in the gateway and in the simulator
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Rows or sessions
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub limit: u64,
    /// Replay X times as fast as recorded
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = super::demo::above_zero)]
    pub rate: f64,
    /// Rows or sessions that begin per second where the trace does not say when
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = super::demo::above_zero)]
    pub starts_per_s: f64,
    /// Longest pause between two calls of a session, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = not_negative)]
    pub longest_pause_s: Option<f64>,
    /// Divide the trace's lengths and the engines' sizes by this; blocks stay whole pages of 16 tokens
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=32))]
    pub scale: u64,
    /// Make the engines so many times slower than their profile, here and in the simulator, so that this machine keeps up
    #[arg(long, value_name = "X", default_value_t = 16.0, value_parser = super::demo::above_zero)]
    pub slow: f64,
    /// Engines without timing mode, on one thread each: what their steps take is measured first and told to the simulator
    #[arg(long, conflicts_with_all = ["profile", "slow", "rate"])]
    pub real_time: bool,
    /// Layers and width of their model, whose weights are random: a step should take much longer than the HTTP of its requests
    #[arg(long, value_name = "LAYERSxWIDTH", default_value = "8x768", requires = "real_time", value_parser = crate::cli::random_model)]
    pub model: ModelConfig,
    /// Share of the time in which the engines shall compute; the trace is replayed at the rate that gives it
    #[arg(long, value_name = "SHARE", default_value_t = 0.65, requires = "real_time", value_parser = share)]
    pub load: f64,
    /// Seconds for which their steps are measured, or as long as a few of each kind take
    #[arg(long, value_name = "SECONDS", default_value_t = 40.0, requires = "real_time", value_parser = not_negative)]
    pub calibrate_s: f64,
    /// Write the profile that was measured here, as `plimsoll sim run --profile FILE` reads it
    #[arg(long, value_name = "FILE", requires = "real_time")]
    pub profile_out: Option<PathBuf>,
    /// Write the figures here, as JSON; `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// Log of `plimsoll serve --decision-log`; plain, .zst or .gz
    #[arg(long, value_name = "FILE")]
    pub log: PathBuf,
    /// Write the counts and the first differences here, as JSON; `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// Log to read: CSV with a line of names, or one JSON object a line; plain, .zst or .gz
    #[arg(long, value_name = "FILE", required_unless_present = "columns")]
    pub from: Option<PathBuf>,
    /// Trace to write (Mooncake JSONL); `-` for stdout
    #[arg(long, value_name = "FILE", required_unless_present = "columns")]
    pub to: Option<PathBuf>,
    /// Pass over rows that cannot be used, and count them
    #[arg(long)]
    pub skip_bad: bool,
    /// Print the names of columns that are understood, and end
    #[arg(long)]
    pub columns: bool,
}

/// Experiments that are asked for and need what is not there: a policy to vary.
const WITHOUT_POLICY: [(&str, &str); 3] = [
    ("buckets", "a policy that gives lengths to engines by buckets"),
    ("regions", "a policy that minds regions"),
    ("scaling", "a policy that starts and stops engines"),
];

/// One of [`EXPERIMENTS`]; of those that are not there yet, why.
#[derive(Clone, Debug)]
struct ExperimentName;

impl ExperimentName {
    fn known() -> PossibleValuesParser {
        PossibleValuesParser::new(EXPERIMENTS.iter().map(|(name, _)| *name))
    }
}

impl TypedValueParser for ExperimentName {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        let missing = WITHOUT_POLICY.iter().find(|(name, _)| value == OsStr::new(name));
        let Some((name, what)) = missing else { return Self::known().parse_ref(command, arg, value) };
        let there = EXPERIMENTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let message = format!("the experiment '{name}' needs {what}, and there is none yet; there are {there}");
        Err(command.clone().error(ErrorKind::InvalidValue, message))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(EXPERIMENTS.iter().map(|(name, _)| PossibleValue::new(*name))))
    }
}

/// # Errors
/// A wrong question, a broken trace, a file that cannot be written.
pub fn run(args: SimArgs) -> Result<(), Failure> {
    match args.command {
        SimCommand::Run(args) => run::run(&args),
        SimCommand::Experiment(args) => experiment::run(&args),
        SimCommand::Compare(args) => compare::run(&args),
        SimCommand::Profiles => profiles::run(),
        SimCommand::Fidelity(args) => fidelity::run(&args),
        SimCommand::ReplayDecisions(args) => replay_decisions::run(&args),
        SimCommand::Import(args) => import::run(&args),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// Neither idle nor full.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.01..=0.99).contains(&value) => Ok(value),
        _ => Err("expected a share from 0.01 to 0.99".to_owned()),
    }
}
