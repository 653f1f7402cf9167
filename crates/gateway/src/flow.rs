//! A request on its way: what was read of it, what has been tried, and its one end.

use crate::api_error::ApiError;
use crate::body_budget::BodyHold;
use crate::cache_plan::CachePlan;
use crate::funnel::Told;
use crate::idempotency::Guard;
use crate::metrics::Ended;
use crate::owned::Ownership;
use crate::record::RecordCell;
use crate::spans::RequestSpan;
use crate::state::Shared;
use crate::trace_context::TraceContext;
use crate::traffic::permit::{Permit, taken};
use bytes::Bytes;
use http::HeaderMap;
use plimsoll_core::{Class, ErrorCode, InstanceId, Nanos, Outcome, RequestId};
use plimsoll_load::Charge;
use plimsoll_pools::chunk::Usage;
use plimsoll_protocol::request::{Api, RequestFacts};
use plimsoll_protocol::wishes::Wishes;
use plimsoll_settings::Settings;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Where requests go: one row per route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub path: &'static str,
    pub api: Api,
}

impl Route {
    /// The generation route of a path.
    #[must_use]
    pub fn find(path: &str) -> Option<Route> {
        const ROUTES: [Route; 4] = [
            Route { path: "/v1/chat/completions", api: Api::Chat },
            Route { path: "/v1/completions", api: Api::Completions },
            Route { path: "/v1/embeddings", api: Api::Embeddings },
            Route { path: "/generate", api: Api::Generate },
        ];
        ROUTES.into_iter().find(|route| route.path == path)
    }
}

/// One request between its acceptance and its end.
pub struct Flow {
    pub shared: Arc<Shared>,
    pub settings: Arc<Settings>,
    pub id: RequestId,
    pub route: Route,
    /// Path and query as sent.
    pub target: String,
    pub facts: RequestFacts,
    /// What the client asked of the service.
    pub wishes: Wishes,
    pub model: Option<String>,
    pub body: Bytes,
    pub hold: BodyHold,
    /// Headers for the engine.
    pub headers: HeaderMap,
    pub tenant: Arc<str>,
    pub class: Class,
    pub charge: Charge,
    /// The client wants to know its class and wait.
    pub explain: bool,
    /// It repeats one that failed, as its client says.
    pub repeats: bool,
    /// Its place in the books of traffic scheduling, once it was let go.
    pub(crate) permit: Option<Permit>,
    /// Who holds its prompt; `None` where that cannot be known.
    pub cache: Option<CachePlan>,
    /// Who makes its tokens.
    pub(crate) ownership: Ownership,
    pub started: Instant,
    pub started_wall: SystemTime,
    pub deadline: tokio::time::Instant,
    pub trace: TraceContext,
    pub record: RecordCell,
    pub progress: Progress,
    /// Others with its `Idempotency-Key` are kept off for as long as it streams.
    pub(crate) named: Option<Guard>,
}

/// Tokens of a stream whose mean time between tokens is taken for a step's.
const STEP_TOKENS: u64 = 8;

/// How far a request has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Engines that failed it.
    pub tried: Vec<InstanceId>,
    pub attempts: u8,
    pub output: Output,
    ended: bool,
}

/// What has been seen of a request's output.
#[derive(Clone, Debug, Default)]
pub struct Output {
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    pub pieces: u64,
    pub longest_gap: Duration,
    pub usage: Option<Usage>,
}

impl Output {
    /// One piece of output arrived.
    pub fn piece(&mut self, now: Instant) {
        self.pieces += 1;
        if let Some(last) = self.last {
            self.longest_gap = self.longest_gap.max(now.saturating_duration_since(last));
        } else {
            self.first = Some(now);
        }
        self.last = Some(now);
    }
}

impl Flow {
    /// Longest silence of an engine inside this request's stream.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        let per_class = self.settings.streams.idle_timeout_ms;
        Duration::from_millis(match self.class {
            Class::High => per_class.high,
            Class::Medium => per_class.medium,
            Class::Low => per_class.low,
        })
    }

    /// Frees the client's bytes.
    pub fn forget_body(&mut self) {
        self.body = Bytes::new();
        self.ownership = Ownership::Off;
        self.hold = self.shared.bodies.hold();
        self.headers = HeaderMap::new();
    }

    /// The request's end, for record, metrics and trace. Only the first call counts.
    pub fn end(&mut self, outcome: Outcome, status: u16, error: Option<ErrorCode>) {
        if std::mem::replace(&mut self.progress.ended, true) {
            return;
        }
        self.named = None;
        let now = Instant::now();
        let total = now.saturating_duration_since(self.started);
        let ttft =
            self.progress.output.first.filter(|_| self.facts.stream).map(|f| f.saturating_duration_since(self.started));
        let gap = (self.progress.output.pieces > 1).then_some(self.progress.output.longest_gap);
        let usage = self.progress.output.usage;
        let output_tokens = usage.map(|u| u.completion_tokens);
        if let Some(permit) = self.permit.take() {
            self.give_up(permit, outcome, usage);
        }
        let model = self.shared.model_label(self.model.as_deref());
        if let Some(usage) = usage {
            self.shared.token_estimate.learn(&model, self.facts.prompt, usage.prompt_tokens);
        }
        match &self.cache {
            Some(plan) => plan.ended(&self.shared, self.id, outcome, self.progress.output.pieces > 0, usage),
            None => self.shared.funnel.tell(|| Told::Unnamed { model: model.clone() }),
        }
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        {
            let mut record = self.record.lock();
            record.outcome = Some(outcome);
            record.status = Some(status);
            record.error_code = error;
            record.reported_prompt_tokens = usage.map(|u| u.prompt_tokens);
            record.cached_tokens = usage.and_then(|u| u.cached_tokens);
            record.output_tokens = output_tokens;
            record.ttft_ms = ttft.map(ms);
            record.longest_gap_ms = gap.map(ms);
            record.total_ms = Some(ms(total));
        }
        self.shared.decisions.close(&self.record);
        if let Some(code) = error {
            self.shared.metrics.error(code);
        }
        self.shared.metrics.request_ended(&Ended {
            route: self.route.path,
            model: &model,
            tenant: &self.tenant,
            class: self.class,
            outcome,
            total_s: total.as_secs_f64(),
            ttft_s: ttft.map(|d| d.as_secs_f64()),
            tpot_s: self.tpot_s(output_tokens),
            longest_gap_s: gap.map(|d| d.as_secs_f64()),
            prompt_tokens: usage.map(|u| u.prompt_tokens),
            cached_tokens: usage.and_then(|u| u.cached_tokens),
            output_tokens,
        });
        self.export_span(outcome, &model, ttft);
    }

    /// Settles its place in the books of traffic scheduling with what it took.
    fn give_up(&self, permit: Permit, outcome: Outcome, usage: Option<Usage>) {
        if let Some(usage) = usage {
            permit.lane().learn_output(usage.completion_tokens, self.facts.sequences);
        }
        permit.end(taken(outcome, usage, self.facts.stream, self.progress.output.pieces));
        self.shared.traffic.nudge();
    }

    /// Mean time per output token after the first; counted in tokens where the engine reports them, else in pieces.
    fn tpot_s(&self, output_tokens: Option<u64>) -> Option<f64> {
        let (first, last) = (self.progress.output.first?, self.progress.output.last?);
        let tokens = output_tokens.unwrap_or(self.progress.output.pieces);
        (self.facts.stream && tokens > 1)
            .then(|| last.saturating_duration_since(first).as_secs_f64() / (tokens - 1) as f64)
    }

    /// The same as one step of the engine; `None` where several sequences share a stream, or too few tokens came to say.
    pub(crate) fn step(&self) -> Option<Nanos> {
        let tokens = self.progress.output.usage.map_or(self.progress.output.pieces, |usage| usage.completion_tokens);
        let seconds = self.tpot_s(self.progress.output.usage.map(|usage| usage.completion_tokens))?;
        (self.facts.sequences == 1 && tokens >= STEP_TOKENS).then(|| Nanos::from_secs_f64(seconds))
    }

    fn export_span(&self, outcome: Outcome, model: &str, ttft: Option<Duration>) {
        let Some(sink) = self.shared.spans.as_ref().filter(|_| self.trace.sampled) else { return };
        let mut attributes = vec![
            ("gen_ai.request.model", model.to_owned()),
            ("plimsoll.request.id", self.id.to_string()),
            ("plimsoll.class", self.class.to_string()),
            ("plimsoll.tenant", self.tenant.to_string()),
            ("plimsoll.attempts", self.progress.attempts.to_string()),
            ("plimsoll.outcome", outcome.to_string()),
        ];
        if let Some(usage) = self.progress.output.usage {
            attributes.push(("gen_ai.usage.input_tokens", usage.prompt_tokens.to_string()));
            attributes.push(("gen_ai.usage.output_tokens", usage.completion_tokens.to_string()));
        }
        let events = ttft.map(|ttft| ("gen_ai.first_token", self.started_wall + ttft)).into_iter().collect();
        sink(RequestSpan {
            context: self.trace,
            route: self.route.path,
            start: self.started_wall,
            end: self.started_wall + self.started.elapsed(),
            outcome,
            attributes,
            events,
        });
    }

    /// Ends the request with an error of ours and hands the error back.
    pub fn fail(&mut self, failure: Failure) -> ApiError {
        let status = failure.error.code.status();
        self.end(failure.outcome, status, Some(failure.error.code));
        failure.error
    }
}

impl Drop for Flow {
    /// A flow that nobody ended was dropped by its connection: the client has gone.
    fn drop(&mut self) {
        // 499 is nginx's word for it; nobody receives it.
        self.end(Outcome::Cancelled, 499, None);
    }
}

/// How a request failed for good.
#[derive(Debug)]
pub struct Failure {
    pub outcome: Outcome,
    pub error: ApiError,
}
