//! The one settings tree. Every default of the program stands here and nowhere else; the schema and
//! `docs/reference/settings.md` are generated from these types and their doc comments.
//!
//! Units are in the names. A field that may be left out and then means "off" or "find out" is an `Option`.

use plimsoll_core::EngineKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

mod classes;
mod cluster;
mod traffic;
pub use classes::*;
pub use cluster::*;
pub use traffic::*;

/// Settings of `plimsoll serve`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub gateway: Gateway,
    pub admin: Admin,
    /// Engines to route to. More can be added at run time through the admin API.
    pub engines: Vec<Engine>,
    /// What the gateway should know of models. One that is not listed works too, with estimated prompt lengths.
    pub models: Vec<Model>,
    pub tokens: Tokens,
    pub policy: Policy,
    pub classes: Classes,
    pub traffic: Traffic,
    pub cluster: Cluster,
    pub limits: Limits,
    pub streams: Streams,
    pub upstream: Upstream,
    pub health: Health,
    pub retry: Retry,
    pub auth: Auth,
    pub decisions: Decisions,
    pub funnel: Funnel,
    pub telemetry: Telemetry,
}

/// The listener for clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gateway {
    /// Address for clients (HTTP/1.1 and h2c, or TLS where `tls` is set).
    pub listen: SocketAddr,
    /// Serve TLS to clients.
    pub tls: Option<ServerTls>,
    /// How long running requests may take to finish after SIGTERM before they are cut, in milliseconds.
    pub shutdown_grace_ms: u64,
    /// Most client connections held at once; further ones wait in the kernel's queue.
    pub max_connections: usize,
}

impl Default for Gateway {
    fn default() -> Self {
        Gateway { listen: ([127, 0, 0, 1], 8080).into(), tls: None, shutdown_grace_ms: 30_000, max_connections: 8_192 }
    }
}

/// Certificate and key of a TLS listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// PEM file with the certificate chain.
    pub cert_file: PathBuf,
    /// PEM file with the private key.
    pub key_file: PathBuf,
}

/// The listener for operators: `/admin/*`, `/debug/*`, `/metrics`, `/livez`, `/readyz`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address of the admin listener. Keep it off public networks.
    pub listen: SocketAddr,
    /// Bearer token for `/admin/*` and `/debug/*`. Without one those paths answer 401 unless the listener is on
    /// loopback. `/livez`, `/readyz` and `/metrics` never ask for it.
    pub token: Option<Secret>,
}

impl Default for Admin {
    fn default() -> Self {
        Admin { listen: ([127, 0, 0, 1], 9090).into(), token: None }
    }
}

/// One engine instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Base URL, `http://host:port` or `https://host:port`.
    pub url: String,
    /// Adapter family; probed when left out.
    #[serde(default)]
    pub kind: Option<EngineKind>,
    /// Model names it serves; asked from the engine when left out.
    #[serde(default)]
    pub models: Vec<String>,
    /// Bearer key for its inference endpoints.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// Bearer key for its control endpoints (SGLang `--admin-api-key`); `api_key` when left out.
    #[serde(default)]
    pub admin_api_key: Option<Secret>,
    /// PEM file of the authority that signed its certificate; the web's public ones when left out.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// KV tokens it can hold, where it does not report that itself.
    #[serde(default)]
    pub capacity_kv_tokens: Option<u64>,
    /// Which end of the body's `priority` its own scheduler serves first, where it does not report that itself: `lower_first` for vLLM
    /// started with `--scheduling-policy priority`. Requests then carry their class as `priority`; with `none` they never do.
    #[serde(default)]
    pub priority_order: Option<PriorityOrder>,
}

/// Sense of an engine's `priority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriorityOrder {
    /// SGLang's.
    HigherFirst,
    /// vLLM's, and SGLang's with `--schedule-low-priority-values-first`.
    LowerFirst,
    /// It takes none.
    None,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The name that requests use.
    pub name: String,
    /// Folder with `tokenizer.json` and, for chats, the chat template, as on Hugging Face. Text prompts are then counted exactly and
    /// go where their KV lies, as far as engines tell of it or say what they can hold.
    pub tokenizer: PathBuf,
    /// Who makes the tokens of its requests.
    #[serde(default)]
    pub token_mode: TokenMode,
    /// Takes what the model thinks out of its answers where the gateway makes their text, into `reasoning_content`. One of the parsers of
    /// the crate `reasoning-parser`, such as `deepseek_r1`, `qwen3` or `glm45`; give the engine's own parser of the same name.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
}

/// Who makes tokens of text and text of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenMode {
    /// The engine: requests go there as they came.
    #[default]
    Passthrough,
    /// The gateway, where the engine is known to take and return token ids and the client will see the same text; else the engine.
    Auto,
    /// As `auto`, and the gateway also decides what cannot be seen from outside: engines that have not been probed are taken for what
    /// `engines[].kind` says, and what the folder's `generation_config.json` recommends is sent along.
    Owned,
}

impl TokenMode {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            TokenMode::Passthrough => "passthrough",
            TokenMode::Auto => "auto",
            TokenMode::Owned => "owned",
        }
    }
}

/// How prompts are tokenised here, for the models that name a tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tokens {
    /// Memory for the token ids of messages seen before, in bytes, over all models and tenants; 0 keeps none. A token takes four; a
    /// session's turn then costs a hash of its bytes and the tokens of what is new. Tenants share no entries.
    pub segment_cache_bytes: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Tokens { segment_cache_bytes: 256 << 20 }
    }
}

/// How an engine is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Choice rule.
    pub name: PolicyName,
    /// Seed of the tie-breaking generator; a run with the same seed and the same requests makes the same choices.
    pub seed: u64,
    /// Candidates whose score lies within this fraction of the best count as tied and are drawn from.
    pub tie_fraction: f64,
    /// What a second of delay that a request puts on others in flight counts against one of its own. 0 is selfish, as
    /// `least_wait` always is.
    pub others_weight: f64,
    /// How much more a prefill counts for each prompt of its size that is in front of it, where as much is in front of the engines in the mean; at
    /// most 2 times more. So sessions stay with their KV while work waits everywhere. 0 is selfish, as `least_wait` always is.
    pub pressure_weight: f64,
    /// Prefill rate assumed for an engine that has not been observed, in tokens per second.
    pub assumed_prefill_tokens_per_s: f64,
    /// Rate assumed at which an engine loads cached KV from host memory, in tokens per second.
    pub assumed_kv_load_tokens_per_s: f64,
    /// Bytes of prompt text per token assumed until responses have taught the real ratio.
    pub assumed_bytes_per_token: f64,
    /// Output tokens reserved for a request that names no maximum.
    pub assumed_output_tokens: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            name: PolicyName::LeastDelay,
            seed: 0,
            tie_fraction: 0.05,
            others_weight: 0.05,
            pressure_weight: 2.0,
            assumed_prefill_tokens_per_s: 8_000.0,
            assumed_kv_load_tokens_per_s: 100_000.0,
            assumed_bytes_per_token: 4.0,
            assumed_output_tokens: 512,
        }
    }
}

/// Names accepted by `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Least delay to all: the request's own expected wait (queue, loading of cached KV, prefill of what is not cached) and
    /// what it adds to the others in flight there.
    LeastDelay,
    /// Least expected wait of the request itself.
    LeastWait,
    /// One after the other.
    RoundRobin,
    /// The better of two drawn at random.
    PowerOfTwo,
}

/// What a client may send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body in bytes; larger ones get 413.
    pub body_bytes: usize,
    /// Request bodies held in memory at once over all requests, in bytes; past it new ones get 503.
    pub total_body_bytes: usize,
    /// Largest request head (request line and headers) in bytes.
    pub header_bytes: usize,
    /// Most headers in a request. Above 100 each request costs an allocation more.
    pub header_count: usize,
    /// A connection must bring a complete request head within this many milliseconds, counted from its start or from the
    /// end of the request before. It bounds slow heads and idle keep-alive alike.
    pub header_timeout_ms: u64,
    /// A request body must be complete after this many milliseconds.
    pub body_timeout_ms: u64,
    /// Longest time a request may take in all, in milliseconds; a client's own shorter deadline wins.
    pub request_timeout_ms: u64,
    /// Largest non-streaming answer held for checking before it is sent on, in bytes. A larger one is passed on unchecked if
    /// its length is announced, and refused if it is not.
    pub answer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 64 << 20,
            total_body_bytes: 2 << 30,
            header_bytes: 64 << 10,
            header_count: 96,
            header_timeout_ms: 60_000,
            body_timeout_ms: 60_000,
            request_timeout_ms: 3_600_000,
            answer_bytes: 32 << 20,
        }
    }
}

/// Streaming answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Streams {
    /// An SSE comment is sent after this much silence, in milliseconds, so that proxies keep the connection.
    pub keep_alive_ms: u64,
    /// Longest wait for a stream's first output, in milliseconds. Queues and long prefills are silent; a frozen engine is
    /// found by its probes long before.
    pub first_token_timeout_ms: u64,
    /// Longest silence of an engine inside a stream that has begun, per class, in milliseconds.
    pub idle_timeout_ms: PerClassMs,
    /// A client that takes no byte for this long, in milliseconds, is cut and its request aborted.
    pub client_stall_timeout_ms: u64,
    /// Largest single SSE event in bytes; a longer one ends the stream with an error.
    pub event_bytes: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            keep_alive_ms: 15_000,
            first_token_timeout_ms: 1_200_000,
            idle_timeout_ms: PerClassMs { high: 60_000, medium: 120_000, low: 300_000 },
            client_stall_timeout_ms: 120_000,
            event_bytes: 4 << 20,
        }
    }
}

/// One value per class, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerClassMs {
    /// For class high.
    pub high: u64,
    /// For class medium.
    pub medium: u64,
    /// For class low.
    pub low: u64,
}

/// Connections to engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// Connect (and TLS handshake) limit in milliseconds.
    pub connect_timeout_ms: u64,
    /// An idle pooled connection is dropped after this long, in milliseconds. Keep it under the engines' keep-alive
    /// (uvicorn: 5 s), so that a request never meets a closing connection.
    pub idle_timeout_ms: u64,
    /// Most idle connections kept per engine.
    pub max_idle_per_engine: usize,
    /// Largest response head in bytes.
    pub header_bytes: usize,
}

impl Default for Upstream {
    fn default() -> Self {
        Upstream { connect_timeout_ms: 1_000, idle_timeout_ms: 3_000, max_idle_per_engine: 256, header_bytes: 64 << 10 }
    }
}

/// When an engine is taken out and let back in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Time between probes of one engine in milliseconds. Probes also bring its load report.
    pub probe_interval_ms: u64,
    /// A probe must be answered within this many milliseconds.
    pub probe_timeout_ms: u64,
    /// Failed probes in a row, with no stream moving meanwhile, that take an engine out.
    pub probe_failures: u32,
    /// Failed requests in a row that take an engine out (4xx, 429 and 503 never count).
    pub request_failures: u32,
    /// Failed connects in a row, with no sign of life between, that take an engine out.
    pub connect_failures: u32,
    /// Trial requests let through at once while an engine is half open, or while it is out and all others are too.
    pub half_open_requests: u32,
    /// A load report older than this, in milliseconds, is not believed at all; trust falls linearly until then.
    pub report_stale_ms: u64,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            probe_interval_ms: 500,
            probe_timeout_ms: 800,
            probe_failures: 2,
            request_failures: 5,
            connect_failures: 2,
            half_open_requests: 1,
            report_stale_ms: 3_000,
        }
    }
}

/// Second attempts on another engine, only while the client has been sent nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Retries allowed as a fraction of requests.
    pub budget_fraction: f64,
    /// Retries allowed at once after a quiet time.
    pub budget_burst: u32,
    /// Most attempts of one request, the first included.
    pub max_attempts: u32,
    /// `Retry-After` in seconds where the engines name none.
    pub retry_after_s: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { budget_fraction: 0.1, budget_burst: 16, max_attempts: 3, retry_after_s: 1 }
    }
}

/// Who may use the gateway. With no keys everybody may, as tenant `default`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// The keys that are accepted.
    pub keys: Vec<ApiKey>,
}

/// One API key, stored as its hash. `plimsoll check --hash-key` prints one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// SHA-256 of the key in 64 hex digits.
    pub sha256: String,
    /// Tenant that requests with this key belong to.
    pub tenant: String,
}

/// The hit-rate funnel: what the caches could have had, and where it was lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Funnel {
    /// Compute it. Off, nothing of it is kept.
    pub enabled: bool,
    /// How long a block counts as seen before, in seconds.
    pub window_s: u64,
    /// Most KV blocks remembered per model, once for the pool and once for all ranks together; 8 to 16 bytes each.
    pub max_blocks: u64,
}

impl Default for Funnel {
    fn default() -> Self {
        Funnel { enabled: true, window_s: 86_400, max_blocks: 4 << 20 }
    }
}

/// The decision record of every request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Decisions {
    /// Records kept for `/debug/requests/{id}`.
    pub ring_records: usize,
    /// Candidates with scores kept per record, best first.
    pub candidates: usize,
    /// Write every record to this file, one JSON object a line.
    pub log_file: Option<PathBuf>,
}

impl Default for Decisions {
    fn default() -> Self {
        Decisions { ring_records: 4_096, candidates: 8, log_file: None }
    }
}

/// Logs, metrics and traces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// Log filter, e.g. `info` or `plimsoll_gateway=debug`. Can be changed at run time through the admin API.
    pub log: String,
    /// Log form.
    pub log_format: LogFormat,
    /// OTLP/HTTP endpoint for traces, e.g. `http://127.0.0.1:4318`; off when left out.
    pub otlp_endpoint: Option<String>,
    /// Fraction of requests traced when the client's own context does not decide it.
    pub trace_fraction: f64,
    /// Write prompt text into debug logs. Off unless asked.
    pub log_prompts: bool,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry {
            log: "info".into(),
            log_format: LogFormat::Text,
            otlp_endpoint: None,
            trace_fraction: 0.01,
            log_prompts: false,
        }
    }
}

/// Form of log lines on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One line of text per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// A string that never shows in logs, `Debug` or a printed config.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}
