//! The engine's HTTP faces: SGLang's and OpenAI's, on one port.

use crate::config::{EngineConfig, EngineError};
use crate::disagg::{Role, Service};
use crate::driver::Engine;
use crate::faults::FaultSwitch;
use crate::kv_events::publish::Streams;
use crate::migration::carrier::Carrier;
use crate::text::Text;
use crate::transfer::{Pool, Terms};
use axum::Router;
use axum::extract::{Path, Query, Request as HttpRequest, State as Extract};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use body::{Bodies, Body, RankHeader};
use errors::ApiError;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use urgency::SloHeaders;

mod admin;
mod body;
mod bootstrap;
mod chat_completions;
mod completion;
mod completions;
mod embeddings;
mod errors;
mod faults;
mod fields;
mod generate;
mod info;
mod leftovers;
mod listener;
mod logprobs;
mod metrics;
mod migrations;
mod params;
mod prompts;
mod sse;
mod tokenize;
mod urgency;

/// What every handler sees.
pub(crate) struct State {
    pub(crate) config: EngineConfig,
    pub(crate) engine: Engine,
    /// On a prefill or decode engine.
    pub(crate) disagg: Option<Service>,
    /// Where migrations are on.
    pub(crate) carrier: Option<Carrier>,
    pub(crate) faults: FaultSwitch,
    pub(crate) bodies: Bodies,
    /// `None`: none are published.
    pub(crate) kv_events: Option<Arc<Streams>>,
    /// Token ids are below this.
    pub(crate) vocab_tokens: usize,
    pub(crate) context_tokens: usize,
    pub(crate) started_s: u64,
    draining: AtomicBool,
}

impl State {
    pub(crate) fn is_serving(&self) -> bool {
        self.engine.is_alive() && !self.draining.load(Ordering::Relaxed)
    }

    /// Tokenizer and chat template.
    pub(crate) fn text(&self) -> &Text {
        &self.config.text
    }

    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

/// Runs an engine on a listener until `shutdown` completes and running requests are done or `drain` is over.
///
/// # Errors
/// When a setting cannot work, another port is taken, the step thread cannot start, or the listener breaks.
pub async fn serve(
    config: EngineConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    serve_and_tell(config, listener, || {}, shutdown).await
}

/// As [`serve`]. Calls `ready` when the model is there and every port is open, before the first request is taken; whatever
/// cannot work has failed by then.
///
/// # Errors
/// As [`serve`].
pub async fn serve_and_tell(
    config: EngineConfig,
    listener: TcpListener,
    ready: impl FnOnce(),
    shutdown: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    let faults = FaultSwitch::default();
    let ranks = config.dp_size as u16;
    let opened = config.kv_events.as_ref().map(|events| Streams::open(events, ranks, &faults)).transpose()?;
    let (kv_events, sinks) = opened.unzip();
    let mut engine = Engine::start_with(&config, faults.clone(), sinks.unwrap_or_default())?;
    engine.serve_readers_here();
    let http_port = listener.local_addr().map_err(EngineError::Accept)?.port();
    let disagg = match engine.identity() {
        Some(identity) if config.disagg.role != Role::Unified => Some(Service::start(
            config.disagg.clone(),
            identity,
            engine.handle(),
            faults.clone(),
            config.dp_size,
            http_port,
        )?),
        _ => None,
    };
    let carrier = carrier(&config, &engine, &faults).await?;
    let started_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let state = Arc::new(State {
        vocab_tokens: config.model.vocab_tokens,
        context_tokens: config.usable_context(),
        bodies: Bodies::new(config.bodies_bytes),
        config,
        engine,
        disagg,
        carrier,
        faults,
        kv_events: kv_events.map(Arc::new),
        started_s,
        draining: AtomicBool::new(false),
    });
    ready();
    listener::run(listener, [router(&state), router_when_full(&state)], &state, shutdown).await?;
    // Joining the step thread takes up to one step: not on the runtime's threads.
    let kv_events = state.kv_events.clone();
    let _ = tokio::task::spawn_blocking(move || drop(state)).await;
    if let Some(streams) = kv_events.and_then(Arc::into_inner) {
        streams.close().await;
    }
    Ok(())
}

/// Opens the migration port, where there is one.
async fn carrier(config: &EngineConfig, engine: &Engine, faults: &FaultSwitch) -> Result<Option<Carrier>, EngineError> {
    let migration = &config.migration;
    let (Some(address), Some(identity), Some(posts)) = (migration.listen, engine.identity(), engine.take_posts())
    else {
        return Ok(None);
    };
    let terms = Terms {
        identity,
        secret: migration.secret.clone(),
        deadline: migration.deadline,
        pool: Pool::new(identity.page_bytes as usize, migration.buffers),
    };
    let started = Carrier::start(address, terms, engine.handle(), faults.clone(), posts).await;
    started.map(Some).map_err(|error| EngineError::Migration { address, error })
}

type Shared = Extract<Arc<State>>;

fn router(state: &Arc<State>) -> Router {
    let generation = Router::new()
        .route(
            "/generate",
            post(|Extract(state): Shared, slo: SloHeaders, Body(body): Body| generate::handle(state, slo, body)),
        )
        .route(
            "/v1/completions",
            post(|Extract(state): Shared, rank: RankHeader, slo: SloHeaders, Body(body): Body| {
                completions::handle(state, (rank, slo), body)
            }),
        )
        .route(
            "/v1/chat/completions",
            post(|Extract(state): Shared, rank: RankHeader, slo: SloHeaders, headers: HeaderMap, Body(body): Body| {
                chat_completions::handle(state, (rank, slo), headers, body)
            }),
        )
        .route(
            "/v1/embeddings",
            post(|Extract(state): Shared, rank: RankHeader, slo: SloHeaders, Body(body): Body| {
                embeddings::handle(state, (rank, slo), body)
            }),
        )
        .route_layer(from_fn_with_state(Arc::clone(state), refuse_when_faulty));
    let control = Router::new()
        .route("/openapi.json", get(async |Extract(state): Shared| info::openapi(&state)))
        .route("/v1/models", get(async |Extract(state): Shared| info::models(&state)))
        .route("/v1/loads", get(loads))
        .route("/server_info", get(async |Extract(state): Shared| info::server_info(&state)))
        .route("/get_server_info", get(async |Extract(state): Shared| info::server_info(&state)))
        .route("/model_info", get(async |Extract(state): Shared| info::model_info(&state)))
        .route("/get_model_info", get(async |Extract(state): Shared| info::model_info(&state)))
        .route("/tokenize", post(|Extract(state): Shared, Body(body): Body| tokenize::tokenize(state, body)))
        .route("/detokenize", post(|Extract(state): Shared, Body(body): Body| tokenize::detokenize(state, body)))
        .route("/v1/tokenize", post(|Extract(state): Shared, Body(body): Body| tokenize::tokenize(state, body)))
        .route("/v1/detokenize", post(|Extract(state): Shared, Body(body): Body| tokenize::detokenize(state, body)))
        .route("/plimsoll/v1/migrations", get(|Extract(state): Shared| migrations::list(state)))
        .route(
            "/plimsoll/v1/migrations/{id}",
            get(|Extract(state): Shared, Path(id): Path<String>| migrations::look(state, id)),
        )
        .route(
            "/plimsoll/v1/migrations/{id}/{verb}",
            post(
                |Extract(state): Shared,
                 Path((id, verb)): Path<(String, String)>,
                 headers: HeaderMap,
                 Body(body): Body| {
                    async move { migrations::verb(state, id, verb, headers, &body).await }
                },
            ),
        )
        .route("/abort_request", post(async |Extract(state): Shared, Body(body): Body| admin::abort(&state, &body)))
        .route(
            "/flush_cache",
            get(|Extract(state): Shared| admin::flush(state)).post(|Extract(state): Shared| admin::flush(state)),
        );
    let with_key = generation.merge(control).route_layer(from_fn_with_state(Arc::clone(state), check_key));
    let fault_switch = Router::new()
        .route(
            "/admin/faults",
            get(async |Extract(state): Shared| faults::show(&state))
                .post(async |Extract(state): Shared, Body(body): Body| faults::change(&state, &body)),
        )
        .route_layer(from_fn_with_state(Arc::clone(state), check_key));
    with_key
        .merge(open())
        .fallback(async || ApiError::new(404, "not_found", "no such path"))
        .method_not_allowed_fallback(async || {
            ApiError::new(405, "method_not_allowed", "the path does not take this method")
        })
        .layer(from_fn_with_state(Arc::clone(state), freeze_when_faulty))
        .merge(fault_switch)
        .layer(from_fn(echo_request_id))
        .layer(from_fn(leftovers::read_to_the_end))
        .with_state(Arc::clone(state))
}

/// What nobody needs a key for.
fn open() -> Router<Arc<State>> {
    Router::new()
        .route("/health", get(async |Extract(state): Shared| info::health(&state)))
        .route("/ready", get(async |Extract(state): Shared| info::health(&state)))
        .route("/ping", get(async |Extract(state): Shared| info::health(&state)))
        .route("/health_generate", get(|Extract(state): Shared| info::health_generate(state)))
        .route("/metrics", get(async |Extract(state): Shared| metrics::handle(&state)))
}

/// For connections beyond those that are served: that there are too many is no illness.
fn router_when_full(state: &Arc<State>) -> Router {
    open()
        .fallback(async || {
            let error =
                ApiError::new(503, "too_many_connections", "this engine serves no more connections: repeat later");
            ([(header::RETRY_AFTER, "1")], error)
        })
        .layer(from_fn_with_state(Arc::clone(state), freeze_when_faulty))
        .with_state(Arc::clone(state))
}

async fn loads(Extract(state): Shared, query: Query<HashMap<String, String>>) -> Result<Response, ApiError> {
    info::loads(&state, &query)
}

async fn echo_request_id(request: HttpRequest, next: Next) -> Response {
    const ID: HeaderName = HeaderName::from_static("x-request-id");
    let id = request.headers().get(&ID).cloned();
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(ID, id);
    }
    response
}

async fn check_key(Extract(state): Shared, request: HttpRequest, next: Next) -> Response {
    let Some(key) = &state.config.api_key else { return next.run(request).await };
    let given =
        request.headers().get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if given.is_some_and(|given| same_bytes(given, key.as_bytes())) {
        return next.run(request).await;
    }
    ApiError::new(401, "unauthorized", "send authorization: Bearer KEY").into_response()
}

/// Compares in a time that does not depend on where the first difference is.
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

async fn freeze_when_faulty(Extract(state): Shared, request: HttpRequest, next: Next) -> Response {
    state.faults.responsive().await;
    next.run(request).await
}

async fn refuse_when_faulty(Extract(state): Shared, request: HttpRequest, next: Next) -> Response {
    if let Some(status) = state.faults.current().http_status {
        return ApiError::new(status, "fault", "this answer is a fault that was switched on").into_response();
    }
    if state.draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::CONNECTION, "close")]).into_response();
    }
    next.run(request).await
}
