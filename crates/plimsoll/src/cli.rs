//! The command line: declarations only. `docs/reference/cli.md` is generated from them.

use crate::commands::bench::BenchArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::funnel::FunnelArgs;
use crate::commands::sim::SimArgs;
use crate::commands::top::TopArgs;
use clap::{Args, Parser, Subcommand};
use disagg::DisaggArgs;
use kv_events::KvEventsArgs;
use offload::OffloadArgs;
use plimsoll_engine::EngineConfig;
use plimsoll_engine::model::ModelConfig;
use plimsoll_settings::{LogFormat, PolicyName};
use schedule::ScheduleArgs;
use std::net::SocketAddr;
use std::path::PathBuf;

pub mod disagg;
pub mod kv_events;
pub mod offload;
pub mod schedule;

/// Keeps LLM inference stable under load, in front of SGLang and vLLM engines.
#[derive(Clone, Debug, Parser)]
#[command(name = "plimsoll", version, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = "Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed while running, \
                        2 wrong command line or config, 130 interrupted.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start a gateway and engines, drive them with a workload, show what happens
    Demo(DemoArgs),
    /// Run the gateway
    Serve(ServeArgs),
    /// Run one built-in engine
    Engine(Box<EngineArgs>),
    /// Where a running gateway loses cache hits; with `--trace`, what caches of every size would give
    Funnel(FunnelArgs),
    /// Simulate a fleet: traces through the gateway's policies on a virtual clock
    Sim(SimArgs),
    /// Watch a running gateway: engines, classes, levels, queues, hit rates, refusals
    Top(TopArgs),
    /// Measure this build against simpler ways, with real processes
    Bench(BenchArgs),
    /// Check a config and say what would happen
    Check(CheckArgs),
    /// Print the version and what was built in
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

/// Flags that become settings, shared by `serve` and `check`.
#[derive(Clone, Debug, Default, Args)]
pub struct SettingsArgs {
    /// Config file (TOML)
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Engine to route to, such as http://127.0.0.1:30000; repeat for more. Replaces the config's list
    #[arg(long, value_name = "URL")]
    pub engine: Vec<String>,
    /// Bearer key for the engines of `--engine`; the environment keeps it out of the process list
    #[arg(long, value_name = "KEY", env = "PLIMSOLL_ENGINE_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Address for clients [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address for operators [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Bearer token of the admin API; PLIMSOLL_ADMIN__TOKEN keeps it out of the process list
    #[arg(long, value_name = "TOKEN")]
    pub admin_token: Option<String>,
    /// NATS server where gateways before the same engines share quotas, such as nats://127.0.0.1:4222; repeat for more
    #[arg(long, value_name = "URL")]
    pub nats: Vec<String>,
    /// How an engine is chosen [default: least_delay]
    #[arg(long, value_name = "NAME", value_parser = PolicyName::ALL.map(PolicyName::as_str))]
    pub policy: Option<String>,
    /// Write every decision record to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub decision_log: Option<PathBuf>,
    /// Log filter, such as `debug` or `plimsoll_gateway=debug` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of log lines [default: text]
    #[arg(long, value_name = "FORM", value_parser = LogFormat::ALL.map(LogFormat::as_str))]
    pub log_format: Option<String>,
    /// Any setting by its key, such as `limits.body_bytes=1000000`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// End when stdin closes, so that nothing outlives the process that started this one
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

#[derive(Clone, Debug, Args)]
pub struct EngineArgs {
    /// Address for requests; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:30000")]
    pub listen: SocketAddr,
    /// Hugging Face folder of a Llama, Qwen2 or Qwen3 model (config.json, safetensors); the built-in tiny model without
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Layers and width, such as 6x512, of a model of random weights in place of the tiny one: its steps take as long as they would with real ones
    #[arg(long, value_name = "LAYERSxWIDTH", conflicts_with = "model", value_parser = random_model)]
    pub random_model: Option<ModelConfig>,
    /// Name under which the model is served [default: plimsoll-tiny, or the folder's name]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Write the model as a Hugging Face folder and exit
    #[arg(long, value_name = "DIR")]
    pub export_model: Option<PathBuf>,
    /// Threads that share the arithmetic [default: all cores, or one for a tiny model]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Bearer key that requests need; without one the engine is open
    #[arg(long, value_name = "KEY", env = "PLIMSOLL_ENGINE_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Tokens in one KV page, a multiple of 16 [default: 16, or the timing profile's]
    #[arg(long, value_name = "N")]
    pub page_tokens: Option<usize>,
    /// KV tokens that fit in memory [default: 65536, or the timing profile's]
    #[arg(long, value_name = "N")]
    pub kv_tokens: Option<usize>,
    /// Data-parallel ranks that step together, each with KV, queue and batch of its own; limits are per rank [default: 1,
    /// or the timing profile's]
    #[arg(long, value_name = "N")]
    pub dp_size: Option<usize>,
    /// Sequences in one step [default: 32, or the timing profile's]
    #[arg(long, value_name = "N")]
    pub max_running: Option<usize>,
    /// Requests that may wait before further ones get 503
    #[arg(long, value_name = "N", default_value_t = EngineConfig::default().max_waiting)]
    pub max_waiting: usize,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Tokens computed in one step, prefill and decode together [default: 512, or the timing profile's]
    #[arg(long, value_name = "N")]
    pub token_budget: Option<usize>,
    /// Longest prompt plus output of one request, in tokens [default: 32768, or the timing profile's]
    #[arg(long, value_name = "N")]
    pub context_tokens: Option<usize>,
    /// Output tokens of a request that names no maximum
    #[arg(long, value_name = "N", default_value_t = EngineConfig::default().default_max_tokens)]
    pub default_max_tokens: usize,
    /// `/generate` streams only what is new instead of everything so far
    #[arg(long)]
    pub incremental_streaming: bool,
    /// Make every step take what it takes on a GPU: a profile's name, or a TOML file of the same form; `help` lists them
    #[arg(long, value_name = "PROFILE")]
    pub timing: Option<String>,
    /// Divide the times of the timing profile by this
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "timing")]
    pub timing_speedup: f64,
    /// Make every step take at least this long, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub step_delay_ms: u64,
    /// Write one JSON object a line for every step to this file: what it computed and how long it took
    #[arg(long, value_name = "FILE")]
    pub step_log: Option<PathBuf>,
    #[command(flatten)]
    pub disagg: DisaggArgs,
    #[command(flatten)]
    pub kv_events: KvEventsArgs,
    #[command(flatten)]
    pub offload: OffloadArgs,
    /// Give running requests to other engines and take theirs: where those connect; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub migration_listen: Option<SocketAddr>,
    /// Serve `/admin/faults`, which makes the engine misbehave on purpose
    #[arg(long)]
    pub faults: bool,
    /// After SIGTERM, how long running requests may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = EngineConfig::default().drain.as_millis() as u64)]
    pub drain_ms: u64,
    /// Log filter, such as `info` or `plimsoll_engine=debug`
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub log: String,
    /// End when stdin closes, so that nothing outlives the process that started this one
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

pub(crate) fn random_model(text: &str) -> Result<ModelConfig, String> {
    let (layers, width) = text.split_once('x').ok_or("expected LAYERSxWIDTH, such as 6x512")?;
    match (layers.parse(), width.parse()) {
        (Ok(layers), Ok(width)) => ModelConfig::random(layers, width).map_err(str::to_owned),
        _ => Err("expected two numbers, such as 6x512".to_owned()),
    }
}

#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// Ask every engine what it is; exit code 1 when one does not answer
    #[arg(long)]
    pub probe: bool,
    /// Print the settings that result, as TOML with secrets masked
    #[arg(long, group = "print")]
    pub print_config: bool,
    /// Print the JSON schema of the config file
    #[arg(long, group = "print")]
    pub print_schema: bool,
    /// Read an API key from stdin and print its hash for `auth.keys`
    #[arg(long, group = "print", conflicts_with = "probe")]
    pub hash_key: bool,
}

#[derive(Clone, Debug, Args)]
pub struct VersionArgs {
    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to print for
    pub shell: clap_complete::Shell,
}
