//! Everything that can be set on the engine, with its defaults.

use crate::disagg::{DisaggConfig, Role};
use crate::kv_events::KvEventsConfig;
use crate::migration::MigrationConfig;
use crate::model::folder::Folder;
use crate::model::kv::TILE;
use crate::model::{Model, ModelConfig};
use crate::offload::OffloadConfig;
use crate::scheduler::policy::Order;
use crate::team::Team;
use crate::text::Text;
use crate::timing::Timing;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longer than this nobody waits for what can be computed.
const MAX_OFFLOAD_DEADLINE: Duration = Duration::from_secs(600);

/// Ranks of one process.
pub const MAX_RANKS: usize = 64;

/// Settings of one engine process.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What `/v1/models` serves and what a request's `model` must say.
    pub model_name: String,
    pub model: ModelConfig,
    /// Where the model was read from; `None`: it is made from `model.seed`. See [`Self::use_folder`].
    pub folder: Option<Folder>,
    /// Threads that share the arithmetic of a step. `None`: all cores for a large model, one for a tiny one.
    pub threads: Option<usize>,
    /// Tokenizer and chat template of that model. See [`Self::use_text`].
    pub text: Text,
    /// Bearer token for every route but health and metrics. `None`: open.
    pub api_key: Option<String>,
    /// Tokens per KV page, a multiple of 16.
    pub page_tokens: usize,
    /// KV tokens that fit in memory (512 bytes each with the default model), rounded down to whole pages.
    pub kv_tokens: usize,
    /// Data-parallel ranks in this process, each with its own KV, queue and batch, stepping together. What follows is
    /// per rank, and so is `kv_tokens`.
    pub dp_size: usize,
    /// Sequences in one step.
    pub max_running: usize,
    /// Requests that may wait; beyond it a request is refused with 503.
    pub max_waiting: usize,
    /// In what order requests are served.
    pub order: Order,
    /// Tokens computed in one step, prefill chunks and decode together. At least `max_running`.
    pub token_budget: usize,
    /// Prompt plus output of one request; never more than fits into the KV cache.
    pub context_tokens: usize,
    /// Output length of chat and `/generate` requests that name none.
    pub default_max_tokens: usize,
    /// `/generate` streams deltas instead of everything so far (SGLang's `--incremental-streaming-output`).
    pub incremental_streaming: bool,
    /// Every step takes at least this long, so that a demo has visible timings.
    pub step_delay: Duration,
    /// Every step takes what a GPU would take. `None`: what it takes.
    pub timing: Option<Timing>,
    /// Write what each step computed and how long it took to this file. `None`: nobody asks.
    pub step_log: Option<PathBuf>,
    /// Publish what enters and leaves the KV cache. `None`: nobody listens.
    pub kv_events: Option<KvEventsConfig>,
    /// Prefill or decode only, with another engine for the rest.
    pub disagg: DisaggConfig,
    /// Where evicted KV pages go.
    pub offload: OffloadConfig,
    /// Give running requests to other engines, and take theirs.
    pub migration: MigrationConfig,
    /// Serve `/admin/faults`.
    pub faults: bool,
    /// A client that takes no byte for this long is cut off and its request cancelled.
    pub stalled_reader: Duration,
    /// Largest request body.
    pub body_bytes: usize,
    /// Bodies that are being read or not yet understood, together; beyond it a body is refused with 503.
    pub bodies_bytes: usize,
    /// A body that takes longer to arrive is refused with 408.
    pub body_deadline: Duration,
    /// Connections served at once. A few more may ask for health and metrics and are refused everything else; the rest
    /// wait in the listener's backlog.
    pub max_connections: usize,
    /// After the shutdown signal, how long running requests may take to finish.
    pub drain: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            model_name: "plimsoll-tiny".to_owned(),
            model: ModelConfig::default(),
            folder: None,
            threads: None,
            text: Text::default(),
            api_key: None,
            page_tokens: 16,
            kv_tokens: 65_536,
            dp_size: 1,
            max_running: 32,
            max_waiting: 256,
            order: Order::default(),
            token_budget: 512,
            context_tokens: 32_768,
            default_max_tokens: 128,
            incremental_streaming: false,
            step_delay: Duration::ZERO,
            timing: None,
            step_log: None,
            kv_events: None,
            disagg: DisaggConfig::default(),
            offload: OffloadConfig::default(),
            migration: MigrationConfig::default(),
            faults: false,
            stalled_reader: Duration::from_secs(60),
            body_bytes: 64 << 20,
            bodies_bytes: 512 << 20,
            body_deadline: Duration::from_secs(30),
            max_connections: 4096,
            drain: Duration::from_secs(10),
        }
    }
}

/// Why an engine does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{name} is {value}: {rule}")]
    Setting { name: &'static str, value: usize, rule: &'static str },
    #[error("the timing speed-up is {0}: use 0.01 to 1000")]
    Speedup(f64),
    #[error("cannot start a thread of the engine: {0}")]
    Thread(std::io::Error),
    #[error("{}: the step log cannot be written: {error}", path.display())]
    StepLog { path: PathBuf, error: std::io::Error },
    #[error("cannot publish KV events: {0}")]
    KvEvents(String),
    #[error("cannot accept connections: {0}")]
    Accept(std::io::Error),
    #[error("cannot listen on bootstrap port {port}: {error}")]
    Bootstrap { port: u16, error: std::io::Error },
    #[error("cannot listen for migrations on {address}: {error}")]
    Migration { address: std::net::SocketAddr, error: std::io::Error },
}

impl EngineConfig {
    /// The defaults of an engine in timing mode: its profile's sizes.
    #[must_use]
    pub fn timed(timing: Timing) -> EngineConfig {
        let serving = &timing.profile.serving;
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        EngineConfig {
            page_tokens: size(serving.page_tokens),
            kv_tokens: size(serving.kv_tokens),
            dp_size: timing.profile.machine.data_parallel as usize,
            max_running: size(serving.max_running),
            token_budget: size(serving.token_budget),
            context_tokens: size(serving.context_tokens),
            timing: Some(timing),
            ..EngineConfig::default()
        }
    }

    /// # Errors
    /// Names the first setting that cannot work.
    pub fn validate(&self) -> Result<(), EngineError> {
        let rules = [
            (
                "page_tokens",
                self.page_tokens,
                self.page_tokens > 0 && self.page_tokens.is_multiple_of(TILE),
                "use a multiple of 16",
            ),
            ("kv_tokens", self.kv_tokens, self.kv_tokens >= self.page_tokens.max(1), "make room for at least one page"),
            ("kv_tokens", self.kv_tokens, self.kv_tokens <= 1 << 26, "use at most 67108864"),
            ("threads", self.threads.unwrap_or(1), (1..=1024).contains(&self.threads.unwrap_or(1)), "use 1 to 1024"),
            ("dp_size", self.dp_size, (1..=MAX_RANKS).contains(&self.dp_size), "use 1 to 64"),
            ("max_running", self.max_running, (1..=4096).contains(&self.max_running), "use 1 to 4096"),
            ("max_waiting", self.max_waiting, self.max_waiting > 0, "use at least 1"),
            ("token_budget", self.token_budget, self.token_budget >= self.max_running, "use at least max_running"),
            ("token_budget", self.token_budget, self.token_budget <= 65_536, "use at most 65536"),
            ("context_tokens", self.context_tokens, (2..=1 << 20).contains(&self.context_tokens), "use 2 to 1048576"),
            ("default_max_tokens", self.default_max_tokens, self.default_max_tokens > 0, "use at least 1"),
            ("transfer_buffers", self.disagg.buffers, (2..=4096).contains(&self.disagg.buffers), "use 2 to 4096"),
            (
                "migration_buffers",
                self.migration.buffers,
                (2..=4096).contains(&self.migration.buffers),
                "use 2 to 4096",
            ),
            (
                "kv_offload_bytes",
                self.offload.bytes,
                !self.offload.is_too_small(self.page_bytes()),
                "make room for at least one page, or use 0",
            ),
            (
                "kv_offload_deadline_ms",
                usize::try_from(self.offload.deadline.as_millis()).unwrap_or(usize::MAX),
                self.offload.deadline <= MAX_OFFLOAD_DEADLINE,
                "use at most 600000",
            ),
            ("max_connections", self.max_connections, self.max_connections > 0, "use at least 1"),
        ];
        if let Some((name, value, _, rule)) = rules.into_iter().find(|(_, _, holds, _)| !holds) {
            return Err(EngineError::Setting { name, value, rule });
        }
        match &self.timing {
            Some(timing) if !(0.01..=1000.0).contains(&timing.speedup) => Err(EngineError::Speedup(timing.speedup)),
            _ => Ok(()),
        }
    }

    /// Memory of the KV cache of all ranks once it is full.
    #[must_use]
    pub fn kv_bytes(&self) -> usize {
        self.dp_size * self.pages() * self.page_bytes()
    }

    /// Memory of one KV page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_tokens * self.model.layers * 2 * self.model.kv_width() * size_of::<f32>()
    }

    /// Other engines may ask what KV this one computes.
    #[must_use]
    pub fn moves_kv(&self) -> bool {
        self.disagg.role != Role::Unified || self.migration.listen.is_some()
    }

    /// Serves this model, under the folder's name.
    pub fn use_folder(&mut self, folder: Folder) {
        self.model_name = folder.name();
        self.model = folder.config.clone();
        self.folder = Some(folder);
    }

    /// The model with its weights and threads, as the steps of all ranks share it.
    pub(crate) fn build_model(&self) -> Result<Model, EngineError> {
        let mut shape = self.model.clone();
        shape.context_tokens = self.usable_context();
        let mut model = match &self.folder {
            Some(folder) => Model::with_weights(shape, Arc::clone(&folder.weights)),
            None => Model::new(shape),
        };
        let threads = self.threads.unwrap_or_else(|| Team::default_threads(model.weight_bytes()));
        model.set_team(Arc::new(Team::new(threads).map_err(EngineError::Thread)?));
        Ok(model)
    }

    /// Speaks with this tokenizer, whose own end token ends answers too.
    pub fn use_text(&mut self, text: Text) {
        let known = |id: &u32| self.model.eos_tokens.contains(id);
        if let Some(id) = text.end_token().filter(|id| !known(id)) {
            self.model.eos_tokens.push(id);
        }
        self.text = text;
    }

    /// Whole KV pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.kv_tokens / self.page_tokens
    }

    /// The context that one request can really use.
    #[must_use]
    pub fn usable_context(&self) -> usize {
        self.context_tokens.min(self.model.context_tokens).min(self.pages() * self.page_tokens)
    }
}
