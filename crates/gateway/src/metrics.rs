//! What Prometheus sees. Names start with `plimsoll_`, units are in them, and every label's values are bounded: models
//! are those that are served (else `other`), tenants come from the config, codes and outcomes from fixed lists.

use crate::funnel::labels::{Cell, CellCause, CellLayer, ModelTier, ModelTimes, ModelWhy};
use plimsoll_core::{Class, ErrorCode, Outcome};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Model label of names that no engine serves.
pub const OTHER_MODEL: &str = "other";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RequestLabels {
    pub route: &'static str,
    pub model: String,
    pub tenant: String,
    pub class: &'static str,
    pub outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelClass {
    pub model: String,
    pub class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelClassWhy {
    pub model: String,
    pub class: &'static str,
    pub why: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelStage {
    pub model: String,
    pub stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelLabel {
    pub model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CodeLabel {
    pub code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EngineLabel {
    pub engine: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EngineWord {
    pub engine: u32,
    pub result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EngineStage {
    pub engine: u32,
    pub stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EngineCoefficient {
    pub engine: u32,
    pub coefficient: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WhyLabel {
    pub why: &'static str,
}

type F64Gauge = Gauge<f64, AtomicU64>;

/// All families. Cheap to use from any thread.
pub struct Metrics {
    registry: Registry,
    pub requests: Family<RequestLabels, Counter>,
    pub errors: Family<CodeLabel, Counter>,
    pub request_seconds: Family<ModelClass, Histogram, fn() -> Histogram>,
    pub ttft_seconds: Family<ModelClass, Histogram, fn() -> Histogram>,
    pub tpot_seconds: Family<ModelClass, Histogram, fn() -> Histogram>,
    pub longest_gap_seconds: Family<ModelClass, Histogram, fn() -> Histogram>,
    pub prompt_tokens: Family<ModelLabel, Counter>,
    pub cached_prompt_tokens: Family<ModelLabel, Counter>,
    pub output_tokens: Family<ModelLabel, Counter>,
    pub attempts: Family<EngineWord, Counter>,
    pub retries: Family<WhyLabel, Counter>,
    pub retries_denied: Family<WhyLabel, Counter>,
    pub health_changes: Family<EngineWord, Counter>,
    pub aborts: Family<EngineWord, Counter>,
    pub placement_seconds: Histogram,
    pub engine_info: Family<EngineInfo, Gauge>,
    pub engine_health: Family<EngineWord, Gauge>,
    pub engine_requests: Family<EngineLabel, Gauge>,
    pub engine_prefill_tokens: Family<EngineLabel, Gauge>,
    pub engine_kv_tokens: Family<EngineLabel, Gauge>,
    pub engine_prefill_rate: Family<EngineLabel, F64Gauge>,
    pub engine_level: Family<EngineStage, F64Gauge>,
    pub client_connections: Gauge,
    pub body_bytes: Gauge,
    pub bytes_per_token: Family<ModelLabel, F64Gauge>,
    pub cache_belief_error: Family<CacheLabel, F64Gauge>,
    pub cache_belief_deviation: Family<CacheLabel, F64Gauge>,
    pub cache_approximate: Family<CacheLabel, Gauge>,
    pub cache_credited: Family<CacheLabel, Gauge>,
    pub cache_view_blocks: Family<CacheLabel, Gauge>,
    pub cache_index_bytes: Gauge,
    pub cache_predicted_tokens: Family<ModelLabel, Counter>,
    pub kv_events_undecodable: Counter,
    pub tokenized_bytes: Family<EngineOnlyWord, Counter>,
    pub token_mode: Family<WhyLabel, Counter>,
    pub tokenize_whole: Family<WhyLabel, Counter>,
    pub segment_cache_bytes: Gauge,
    pub segment_cache_entries: Gauge,
    pub funnel_requests: Family<Cell, Counter>,
    pub funnel_tokens: Family<CellLayer, Counter>,
    pub funnel_lost: Family<CellCause, Counter>,
    pub funnel_gained: Family<CellCause, Counter>,
    pub funnel_above_model: Family<ModelLabel, Counter>,
    pub funnel_tiers: Family<ModelTier, Counter>,
    pub funnel_curve: Family<ModelTimes, Counter>,
    pub funnel_not_measured: Family<ModelWhy, Counter>,
    pub funnel_queue_lost: Counter,
    pub funnel_capacity: Family<ModelLabel, Gauge>,
    pub funnel_reach: Family<ModelLabel, F64Gauge>,
    pub funnel_memory: Family<ModelLabel, Gauge>,
    pub funnel_bounded: Family<ModelLabel, Gauge>,
    pub idempotent: Family<EngineOnlyWord, Counter>,
    pub latency_error: Family<EngineStage, F64Gauge>,
    pub latency_samples: Family<EngineStage, Gauge>,
    pub latency_coefficient: Family<EngineCoefficient, F64Gauge>,
    pub traffic_level: Family<ModelStage, F64Gauge>,
    pub traffic_share: Family<ModelClass, F64Gauge>,
    pub traffic_capacity: Family<ModelLabel, F64Gauge>,
    pub traffic_queue_requests: Family<ModelClass, Gauge>,
    pub traffic_queue_tokens: Family<ModelClass, Gauge>,
    pub traffic_oldest_wait: Family<ModelClass, F64Gauge>,
    pub traffic_wait_seconds: Family<ModelClass, Histogram, fn() -> Histogram>,
    pub traffic_refused: Family<ModelClassWhy, Counter>,
    pub traffic_admitted_tokens: Family<ModelClass, Counter>,
    pub traffic_in_flight_tokens: Family<ModelLabel, Gauge>,
    pub traffic_lease: Family<ModelClass, F64Gauge>,
    pub cluster_contact: Family<FleetLabel, Gauge>,
    pub cluster_gateways: Family<FleetLabel, Gauge>,
    pub cluster_reports: Family<EngineOnlyWord, Counter>,
    pub decisions_dropped: Gauge,
    pub reloads: Family<EngineOnlyWord, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct FleetLabel {
    pub fleet: String,
}

/// One DP rank of an engine.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EngineInfo {
    pub engine: u32,
    pub url: String,
    /// `sglang`, `vllm` or `openai`; `unknown` until it has answered.
    pub kind: String,
    pub version: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CacheLabel {
    pub engine: u32,
    pub dp_rank: u16,
    /// What prompts are compared by: `token_ids` or `text`.
    pub basis: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EngineOnlyWord {
    pub result: &'static str,
}

fn seconds_histogram() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1200.0,
    ])
}

fn gap_histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0])
}

macro_rules! families {
    ($(($field:ident, $name:literal, $help:literal, $make:expr)),+ $(,)?) => {
        /// Name and help of every metric, for the reference page. Counters are exposed with `_total`.
        pub const REFERENCE: &[(&str, &str)] = &[$((concat!("plimsoll_", $name), $help)),+];

        impl Default for Metrics {
            fn default() -> Self {
                let mut registry = Registry::with_prefix("plimsoll");
                $(let $field = $make; registry.register($name, $help, $field.clone());)+
                Metrics { registry, $($field),+ }
            }
        }
    };
}

families! {
    (requests, "requests", "Requests ended, by route, model, tenant, class and outcome", Family::default()),
    (errors, "errors", "Error objects sent to clients, by code", Family::default()),
    (request_seconds, "request_duration_seconds", "Arrival to end of a request", Family::new_with_constructor(seconds_histogram as fn() -> Histogram)),
    (ttft_seconds, "time_to_first_token_seconds", "Arrival to the first output of a streaming request", Family::new_with_constructor(seconds_histogram as fn() -> Histogram)),
    (tpot_seconds, "time_per_output_token_seconds", "Mean time between output tokens of a streaming request", Family::new_with_constructor(gap_histogram as fn() -> Histogram)),
    (longest_gap_seconds, "longest_output_gap_seconds", "Longest silence between two outputs of a streaming request", Family::new_with_constructor(gap_histogram as fn() -> Histogram)),
    (prompt_tokens, "prompt_tokens", "Prompt tokens as reported by engines", Family::default()),
    (cached_prompt_tokens, "cached_prompt_tokens", "Prompt tokens that engines served from their KV cache", Family::default()),
    (output_tokens, "output_tokens", "Output tokens as reported by engines", Family::default()),
    (attempts, "attempts", "Attempts on engines by how they ended", Family::default()),
    (retries, "retries", "Second attempts made, by cause", Family::default()),
    (retries_denied, "retries_denied", "Second attempts not made, by what forbade them", Family::default()),
    (health_changes, "engine_health_changes", "Health transitions of an engine, by the state entered", Family::default()),
    (aborts, "engine_aborts", "Abort calls to engines by result", Family::default()),
    (placement_seconds, "placement_seconds", "Time one choice of an engine took", Histogram::new([1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3])),
    (engine_info, "engine_info", "1 for every engine: its number in the other metrics, its address, and what it is", Family::default()),
    (engine_health, "engine_health", "1 for the state an engine is in", Family::default()),
    (engine_requests, "engine_requests", "Requests in flight on an engine, from the ledger", Family::default()),
    (engine_prefill_tokens, "engine_uncached_prefill_tokens", "Uncached prompt tokens waiting on an engine, from the ledger", Family::default()),
    (engine_kv_tokens, "engine_reserved_kv_tokens", "KV tokens reserved on an engine, from the ledger", Family::default()),
    (engine_prefill_rate, "engine_prefill_tokens_per_second", "Prefill rate of an engine as observed", Family::default()),
    (engine_level, "engine_water_level", "Water level of an engine, 0 to 1, by stage: prefill (what waits there against its rate and the wait wanted at most) and decode (KV tokens in use); the fullest of its ranks", Family::default()),
    (client_connections, "client_connections", "Client connections open", Gauge::default()),
    (body_bytes, "request_body_bytes", "Request bodies held in memory", Gauge::default()),
    (bytes_per_token, "prompt_bytes_per_token", "Learned bytes of prompt text per token", Family::default()),
    (cache_belief_error, "cache_belief_error", "Mean of (tokens believed cached - tokens reported cached) / prompt tokens of a rank; above 0.2 it loses its credit", Family::default()),
    (cache_belief_deviation, "cache_belief_deviation", "Mean of |tokens believed cached - tokens reported cached| / prompt tokens of a rank", Family::default()),
    (cache_approximate, "cache_approximate", "1 where a rank tells nothing of its cache, and what it holds is taken from what was sent there", Family::default()),
    (cache_credited, "cache_credited", "1 where what a rank is believed to hold counts in choices", Family::default()),
    (cache_view_blocks, "cache_view_blocks", "KV blocks that a rank is believed to hold, device and host", Family::default()),
    (cache_index_bytes, "cache_index_bytes", "Memory of the prefix indexes, in bytes", Gauge::default()),
    (cache_predicted_tokens, "cache_predicted_tokens", "Prompt tokens that the chosen rank was believed to hold", Family::default()),
    (kv_events_undecodable, "kv_events_undecodable", "Messages on KV event sockets that are no batch of events", Counter::default()),
    (tokenized_bytes, "tokenized_prompt_bytes", "Bytes of prompt text made into token ids here, by result: known (seen before) or new", Family::default()),
    (token_mode, "token_mode_attempts", "Attempts of models whose token_mode is auto or owned: owned, or why the engine had to make the tokens", Family::default()),
    (tokenize_whole, "tokenize_whole", "Prompts tokenised as a whole because they cannot be cut for certain, by cause", Family::default()),
    (segment_cache_bytes, "segment_cache_bytes", "Memory of the token ids of texts seen before", Gauge::default()),
    (segment_cache_entries, "segment_cache_entries", "Texts whose token ids are kept", Gauge::default()),
    (funnel_requests, "funnel_requests", "Requests in the hit-rate funnel: token ids known, cached tokens reported", Family::default()),
    (funnel_tokens, "funnel_tokens", "Tokens of those requests by layer: prompt (all of them), ceiling (seen in the window), entrance (one LRU pool of the fleet's size), placed (LRU of the chosen rank), actual (reported)", Family::default()),
    (funnel_lost, "funnel_lost_tokens", "Tokens that a layer has less than the one above it, by cause", Family::default()),
    (funnel_gained, "funnel_gained_tokens", "Tokens that a layer has more than the one above it, by cause", Family::default()),
    (funnel_above_model, "funnel_above_model_requests", "Requests of which the engine had a block or more beyond the model of its cache: a capacity is wrong", Family::default()),
    (funnel_tiers, "funnel_tier_tokens", "Reported cached tokens by tier, where engines say it", Family::default()),
    (funnel_curve, "funnel_curve_tokens", "Tokens that one LRU pool of so many times the fleet's size would have had", Family::default()),
    (funnel_not_measured, "funnel_not_measured", "Requests that are not in the funnel, by why", Family::default()),
    (funnel_queue_lost, "funnel_queue_lost", "Placements and ends that the funnel could not take in time", Counter::default()),
    (funnel_capacity, "funnel_capacity_tokens", "KV tokens that the ranks of a model can hold together, as far as they say", Family::default()),
    (funnel_reach, "funnel_reach_seconds", "Age of the oldest block that counts as seen; at most funnel.window_s", Family::default()),
    (funnel_memory, "funnel_memory_bytes", "Memory of the funnel", Family::default()),
    (funnel_bounded, "funnel_bounded", "1 where the funnel's own bounds make its caches smaller than those there are", Family::default()),
    (idempotent, "idempotent_requests", "Requests with an Idempotency-Key, by result: run, attached to one that ran, refused", Family::default()),
    (latency_error, "latency_model_error_ratio", "Recent mean of |predicted - observed| / observed of the latency model of an engine, by stage: prefill or decode; predictions are those made before the sample was learnt", Family::default()),
    (latency_samples, "latency_model_samples", "Samples the latency model of an engine has learnt from, by stage", Family::default()),
    (latency_coefficient, "latency_model_coefficient", "Coefficients in seconds: p0, p1, p2 of prefill = p0 + p1*u + p2*u*(h + u/2) (u uncached, h cached tokens), a, b, c of step = a + b*batch + c*kv_tokens", Family::default()),
    (traffic_level, "traffic_level", "Water level of a model's engines and queue, by stage: prefill and decode smoothed, and quota, the one that quotas go by", Family::default()),
    (traffic_share, "traffic_share", "Part of the capacity that a class may have now; 1 is no limit", Family::default()),
    (traffic_capacity, "traffic_capacity_tokens_per_second", "What a model's engines serve, measured under load or from their prefill rates", Family::default()),
    (traffic_queue_requests, "traffic_queue_requests", "Requests that wait for an engine", Family::default()),
    (traffic_queue_tokens, "traffic_queue_tokens", "Tokens of the requests that wait for an engine", Family::default()),
    (traffic_oldest_wait, "traffic_oldest_wait_seconds", "How long the oldest of those that wait has waited", Family::default()),
    (traffic_wait_seconds, "traffic_wait_seconds", "Wait of a request for an engine, until it was let go or refused", Family::new_with_constructor(seconds_histogram as fn() -> Histogram)),
    (traffic_refused, "traffic_refused", "Requests that traffic scheduling refused, by rule", Family::default()),
    (traffic_admitted_tokens, "traffic_admitted_tokens", "Tokens let go to engines, as they are charged: uncached prefill and expected output", Family::default()),
    (traffic_in_flight_tokens, "traffic_in_flight_tokens", "Tokens admitted and not yet settled, those that wait among them", Family::default()),
    (traffic_lease, "traffic_lease_share", "Part of a class's quota that is this gateway's, where several gateways share them", Family::default()),
    (cluster_contact, "cluster_contact", "1 while reports of this gateway come back through NATS; 0: its part of the quotas stays as it was", Family::default()),
    (cluster_gateways, "cluster_gateways", "Gateways that share the quotas, this one among them, as far as it hears", Family::default()),
    (cluster_reports, "cluster_reports", "Messages heard on the fleet's subject, by result: own, peer, late, too_many gateways, not_mine (under the name of this one, by somebody else), or why it is no report", Family::default()),
    (decisions_dropped, "decision_log_dropped_records", "Decision records that are not in the log file: it could not take them in time, or not at all", Gauge::default()),
    (reloads, "reloads", "Settings reloads by result", Family::default()),
}

impl Metrics {
    /// The text exposition.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(16 << 10);
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// The engine is gone for good: ids are never given again, so its series would stay for ever. `attempts`' words are
    /// those of [`crate::attempt`].
    pub fn forget_engine(&self, engine: u32) {
        let attempts = ["ok", "client_fault", "cancelled", "refused", "connect_failed", "failed", "stalled"];
        let health = ["unproven", "healthy", "ejected", "half_open"];
        let aborts = ["failed", "called", "disconnected"];
        let families: [(_, &[&'static str]); 3] =
            [(&self.attempts, &attempts), (&self.health_changes, &health), (&self.aborts, &aborts)];
        for (family, words) in families {
            for result in words {
                family.remove(&EngineWord { engine, result });
            }
        }
    }

    pub fn error(&self, code: ErrorCode) {
        self.errors.get_or_create(&CodeLabel { code: code.as_str() }).inc();
    }

    /// One request ended.
    pub fn request_ended(&self, ended: &Ended<'_>) {
        let class = ended.class.as_str();
        self.requests
            .get_or_create(&RequestLabels {
                route: ended.route,
                model: ended.model.to_owned(),
                tenant: ended.tenant.to_string(),
                class,
                outcome: ended.outcome.as_str(),
            })
            .inc();
        let labels = ModelClass { model: ended.model.to_owned(), class };
        self.request_seconds.get_or_create(&labels).observe(ended.total_s);
        if let Some(ttft_s) = ended.ttft_s {
            self.ttft_seconds.get_or_create(&labels).observe(ttft_s);
        }
        if let Some(tpot_s) = ended.tpot_s {
            self.tpot_seconds.get_or_create(&labels).observe(tpot_s);
        }
        if let Some(gap_s) = ended.longest_gap_s {
            self.longest_gap_seconds.get_or_create(&labels).observe(gap_s);
        }
        let model = ModelLabel { model: labels.model };
        for (family, tokens) in [
            (&self.prompt_tokens, ended.prompt_tokens),
            (&self.cached_prompt_tokens, ended.cached_tokens),
            (&self.output_tokens, ended.output_tokens),
        ] {
            if let Some(tokens) = tokens {
                family.get_or_create(&model).inc_by(tokens);
            }
        }
    }
}

/// What [`Metrics::request_ended`] needs.
pub struct Ended<'a> {
    pub route: &'static str,
    pub model: &'a str,
    pub tenant: &'a Arc<str>,
    pub class: Class,
    pub outcome: Outcome,
    pub total_s: f64,
    pub ttft_s: Option<f64>,
    pub tpot_s: Option<f64>,
    pub longest_gap_s: Option<f64>,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
}
