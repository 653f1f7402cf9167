//! The client's side of a request: who, what, how large, and the answer's shape.

use crate::api_error::ApiError;
use crate::begin::{Begun, begin};
use crate::body::GatewayBody;
use crate::cache_plan::CachePlan;
use crate::flow::{Flow, Progress, Route};
use crate::headers::{self, CLASS, ENGINE, MODEL, REQUEST_ID, TRACEPARENT, WAIT_MS};
use crate::idempotency::{self, Claim, Guard};
use crate::kv_view::Basis;
use crate::listing;
use crate::metrics::{EngineOnlyWord, WhyLabel};
use crate::model_text::{Asked, Candidate, Prompted};
use crate::owned::Ownership;
use crate::read_body::read_body;
use crate::record::{DecisionRecord, TrafficRecord};
use crate::relay::{KEEP_ALIVE, Relay, pass};
use crate::state::{Shared, class_rules};
use crate::trace_context::TraceContext;
use bytes::Bytes;
use futures_core::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use plimsoll_core::{ErrorCode, InstanceId, Outcome, RequestId};
use plimsoll_load::{AttemptEnd, Charge};
use plimsoll_protocol::prompt::TextIds;
use plimsoll_protocol::request::{Api, MAX_MODEL_BYTES, PromptIds, PromptSize, RequestFacts, prompt_ids, scan};
use plimsoll_protocol::wishes::Wishes;
use plimsoll_traffic::class::basis::Basis as ClassBasis;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Answers one request on the clients' listener.
pub async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Response<GatewayBody> {
    let id = uuid::Uuid::now_v7();
    let (request_id, refused) = match headers::client_request_id(request.headers()) {
        Ok(Some(given)) => (given, None),
        Ok(None) => (own_id(&id), None),
        Err(error) => (own_id(&id), Some(error)),
    };
    let answered = match refused {
        Some(error) => Err(error),
        None => dispatch(&shared, request, RequestId(id.as_u128()), &request_id).await,
    };
    let mut response = answered.unwrap_or_else(|error| {
        shared.metrics.error(error.code);
        error.into_response()
    });
    response.headers_mut().insert(REQUEST_ID, request_id);
    response
}

fn own_id(id: &uuid::Uuid) -> HeaderValue {
    HeaderValue::from_str(&id.simple().to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

async fn dispatch(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    id: RequestId,
    request_id: &HeaderValue,
) -> Result<Response<GatewayBody>, ApiError> {
    let path = request.uri().path();
    if let Some(route) = Route::find(path) {
        if request.method() != Method::POST {
            return Err(method_not_allowed("POST"));
        }
        return generation(shared, request, route, id, request_id).await;
    }
    if !listing::is_path(path) {
        return Err(ApiError::new(ErrorCode::NotFound, "no such path; see the API reference for those that exist"));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(method_not_allowed("GET"));
    }
    listing::answer(shared, &request)
}

fn method_not_allowed(allow: &'static str) -> ApiError {
    ApiError { allow: Some(allow), ..ApiError::new(ErrorCode::MethodNotAllowed, format!("use {allow} on this path")) }
}

async fn generation(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    route: Route,
    id: RequestId,
    request_id: &HeaderValue,
) -> Result<Response<GatewayBody>, ApiError> {
    let (started, started_wall) = (Instant::now(), SystemTime::now());
    let settings = shared.settings.load_full();
    let (head, body) = request.into_parts();
    headers::check_size(&head.headers, &settings.limits)?;
    let keys = shared.keys.load_full();
    let tenant = keys.tenant(&head.headers)?;
    if shared.stopping() {
        return Err(ApiError::new(ErrorCode::ShuttingDown, "this gateway is stopping, use another one").retry_after(1));
    }
    let mut hold = shared.bodies.hold();
    let body = read_body(&settings.limits, &head.headers, body, &mut hold).await?;
    if settings.telemetry.log_prompts {
        tracing::debug!(request = %id, body = %String::from_utf8_lossy(&body), "request body (telemetry.log_prompts)");
    }
    let facts = scan(route.api, &body)?;
    let wishes = Wishes::read(&head.headers, facts.priority, facts.service_tier.as_deref())?;
    let longest = Duration::from_millis(settings.limits.request_timeout_ms);
    let time_left = wishes.remaining.map_or(longest, |left| longest.min(Duration::from_nanos(left.0)));
    let model = match (&facts.model, head.headers.get(&MODEL)) {
        (Some(model), _) => Some(model.clone()),
        (None, Some(named)) => {
            let named = named.to_str().ok().filter(|named| named.len() <= MAX_MODEL_BYTES).ok_or_else(|| {
                let message = format!("`x-plimsoll-model` must be printable ASCII of at most {MAX_MODEL_BYTES} bytes");
                ApiError::new(ErrorCode::InvalidHeader, message)
            })?;
            Some(named.to_owned())
        }
        (None, None) => None,
    };
    let mut guard =
        match named(shared, &head, model.as_deref(), &tenant, &body, facts.stream, started + time_left).await? {
            Named::Run(guard) => guard,
            Named::Answered(response) => return Ok(response),
        };
    let (ids, candidate) = prompt_ids_of(shared, route.api, model.as_deref(), &tenant, &facts, &body).await;
    let prompt_tokens = match &ids {
        Some(ids) => ids.ids.len() as u64,
        None => shared.token_estimate.tokens(&shared.model_label(model.as_deref()), facts.prompt),
    };
    let (cache, ids) = match ids {
        Some(ids) => cache_plan_of(shared, ids, model.as_deref(), &tenant).await,
        None => (CachePlan::from_text(shared, &facts, &body, prompt_tokens, model.as_deref(), &tenant), None),
    };
    let turn = cache.as_ref().map(|plan| *plan.turn());
    let best_tokens = cache.as_ref().map(|plan| plan.best_tokens(shared, &settings.policy));
    let past = cache.as_ref().map(CachePlan::past);
    let class_basis = ClassBasis {
        rules: match settings.classes.models.as_slice() {
            [] => class_rules(&settings.classes),
            _ => class_rules(&settings.classes.of(&shared.model_label(model.as_deref()))),
        },
        input_tokens: prompt_tokens,
        predicted_hit_tokens: best_tokens,
        past: past.unwrap_or_default(),
        asked: wishes.class,
        bounds: shared.traffic.bounds(&tenant),
    };
    let verdict = class_basis.decide();
    let output_tokens = facts.max_output_tokens.unwrap_or(settings.policy.assumed_output_tokens);
    let charge = Charge {
        uncached_prefill_tokens: prompt_tokens,
        reserved_kv_tokens: prompt_tokens.saturating_add(output_tokens.saturating_mul(facts.sequences)),
        sequences: facts.sequences,
    };
    let trace = trace_context(&head.headers, settings.telemetry.trace_fraction);
    let mut towards = headers::towards_engine(&head.headers, keys.required());
    towards.insert(REQUEST_ID, request_id.clone());
    shared.retry_budget.lock().on_request();
    let record = shared.decisions.open(DecisionRecord {
        id: id.to_string(),
        request_id: request_id.to_str().unwrap_or_default().to_owned(),
        arrival_unix_ms: started_wall
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)),
        tenant: tenant.clone(),
        route: route.path,
        model: model.clone(),
        stream: facts.stream,
        class: verdict.class,
        class_rule: verdict.rule,
        class_basis,
        prompt_tokens,
        prompt_tokens_exact: ids.is_some() || matches!(facts.prompt, PromptSize::Tokens(_)),
        compared_by: cache.as_ref().map(|plan| plan.basis().as_str()),
        turn: turn.map(|turn| turn.number),
        hit_rounds: turn.map(|turn| turn.hit_rounds),
        known_tokens: past.map(|past| past.known_tokens),
        reserved_kv_tokens: charge.reserved_kv_tokens,
        traffic: None,
        attempts: Vec::new(),
        outcome: None,
        error_code: None,
        status: None,
        reported_prompt_tokens: None,
        cached_tokens: None,
        output_tokens: None,
        ttft_ms: None,
        longest_gap_ms: None,
        total_ms: None,
        trace_id: format!("{:032x}", trace.trace_id),
    });
    let mut ownership = candidate.map(|candidate| candidate.ownership(ids.map(|ids| ids.ids))).unwrap_or_default();
    if let Ownership::Gateway(owned) = &ownership
        && !hold.grow(owned.bytes(), settings.limits.total_body_bytes)
    {
        ownership = Ownership::Engine("memory");
    }
    let stream = facts.stream;
    let keep_alive = Duration::from_millis(settings.streams.keep_alive_ms);
    let flow = Box::new(Flow {
        shared: shared.clone(),
        deadline: tokio::time::Instant::from_std(started) + time_left,
        target: head.uri.path_and_query().map_or(route.path, |t| t.as_str()).to_owned(),
        settings,
        id,
        route,
        facts,
        wishes,
        model,
        body,
        hold,
        headers: towards,
        tenant,
        class: verdict.class,
        charge,
        explain: headers::explain(&head.headers),
        repeats: headers::repeats(&head.headers),
        permit: None,
        cache,
        ownership,
        started,
        started_wall,
        trace,
        record,
        progress: Progress::default(),
        named: guard.take_if(|_| stream),
    });
    let response = answer(flow, stream, keep_alive).await;
    if let Some(guard) = guard {
        guard.answered(&response);
    }
    Ok(response)
}

/// What an `Idempotency-Key` makes of a request.
enum Named {
    Run(Option<Guard>),
    Answered(Response<GatewayBody>),
}

/// Attaches the request to one of the same name that runs, or gives it the name. Without one it simply runs.
async fn named(
    shared: &Shared,
    head: &Parts,
    model: Option<&str>,
    tenant: &Arc<str>,
    body: &Bytes,
    stream: bool,
    until: Instant,
) -> Result<Named, ApiError> {
    let Some(key) = idempotency::key(&head.headers)? else { return Ok(Named::Run(None)) };
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let digest = idempotency::digest(target, model, body);
    let count = |result| shared.metrics.idempotent.get_or_create(&EngineOnlyWord { result }).inc();
    loop {
        let waiting = match shared.idempotency.claim(tenant, key, digest, stream) {
            Ok(Claim::Run(guard)) => {
                count("run");
                return Ok(Named::Run(guard));
            }
            Ok(Claim::Attach(waiting)) => waiting,
            Err(error) => {
                count("refused");
                return Err(error);
            }
        };
        match tokio::time::timeout_at(until.into(), waiting.answer()).await {
            Ok(Some(answer)) => {
                count("attached");
                return answer.map(Named::Answered);
            }
            // The first one left without an answer.
            Ok(None) => {}
            Err(_) => {
                count("refused");
                let message = "the request's deadline passed while another one of its `Idempotency-Key` was running";
                return Err(ApiError::new(ErrorCode::DeadlineExceeded, message));
            }
        }
    }
}

/// The token ids of a request with one prompt: as sent, or made here where the model has a tokenizer. `None` where nobody wants to
/// know them, or they cannot be known. With them, whether the gateway may own them.
async fn prompt_ids_of(
    shared: &Shared,
    api: Api,
    model: Option<&str>,
    tenant: &Arc<str>,
    facts: &RequestFacts,
    body: &Bytes,
) -> (Option<PromptIds>, Option<Candidate>) {
    if facts.batch {
        return (None, None);
    }
    match facts.prompt {
        PromptSize::Tokens(_) if shared.kv_views.is_empty(Basis::Ids) => (None, None),
        PromptSize::Tokens(_) => (prompt_ids(api, body), None),
        PromptSize::TextBytes(_) => {
            let texts = shared.texts.load_full();
            if texts.is_empty() {
                return (None, None);
            }
            let kind = shared.fleet.kind_of_all();
            let asked = Asked { api, model, kind, tenant, cache: &shared.segments };
            let Prompted { ids, candidate } = texts.ids(asked, facts, body).await;
            if let Some(made) = &ids {
                count(shared, made);
            }
            (ids.map(|made| made.prompt), candidate)
        }
    }
}

/// Prompts of more tokens are named beside the event loop: on an engine with pages of one token every token is a digest.
const LONG_TOKENS: usize = 32 << 10;

/// Who holds these ids, and the ids again.
async fn cache_plan_of(
    shared: &Arc<Shared>,
    ids: PromptIds,
    model: Option<&str>,
    tenant: &Arc<str>,
) -> (Option<CachePlan>, Option<PromptIds>) {
    if ids.ids.len() < LONG_TOKENS {
        return (CachePlan::from_ids(shared, &ids, model, tenant), Some(ids));
    }
    let (shared, model, tenant) = (shared.clone(), model.map(str::to_owned), tenant.clone());
    let named =
        tokio::task::spawn_blocking(move || (CachePlan::from_ids(&shared, &ids, model.as_deref(), &tenant), Some(ids)));
    named.await.unwrap_or_default()
}

fn count(shared: &Shared, made: &TextIds) {
    let metrics = &shared.metrics;
    for (result, bytes) in [("known", made.known_bytes), ("new", made.text_bytes - made.known_bytes)] {
        metrics.tokenized_bytes.get_or_create(&EngineOnlyWord { result }).inc_by(bytes as u64);
    }
    if let Some(whole) = made.whole {
        metrics.tokenize_whole.get_or_create(&WhyLabel { why: whole.as_str() }).inc();
    }
}

type Beginning = Pin<Box<dyn Future<Output = (Box<Flow>, Result<Begun, ApiError>)> + Send>>;

/// Waits for something to send. A stream whose engine stays silent past the keep-alive interval is begun without it:
/// from then on comments keep the connection, and an error becomes an event. Other engines can still be tried, since
/// a comment is no answer.
async fn answer(flow: Box<Flow>, stream: bool, keep_alive: Duration) -> Response<GatewayBody> {
    if !stream {
        let (flow, begun) = begin(flow).await;
        return respond(flow, begun);
    }
    let class = flow.explain.then_some(flow.class);
    let mut beginning: Beginning = Box::pin(begin(flow));
    match tokio::time::timeout(keep_alive, &mut beginning).await {
        Ok((flow, begun)) => respond(flow, begun),
        Err(_) => {
            let mut response = Response::new(GatewayBody::stream(patient(beginning, keep_alive)));
            stream_headers(response.headers_mut());
            if let Some(class) = class {
                response.headers_mut().insert(CLASS, HeaderValue::from_static(class.as_str()));
            }
            response
        }
    }
}

fn respond(flow: Box<Flow>, begun: Result<Begun, ApiError>) -> Response<GatewayBody> {
    let by_itself = (flow.class, 0.0);
    let told = |traffic: &TrafficRecord| (traffic.class, traffic.queue_wait_ms);
    let explained = flow.explain.then(|| flow.record.lock().traffic.as_ref().map_or(by_itself, told));
    let mut response = answer_of(flow, begun);
    if let Some((class, waited_ms)) = explained {
        response.headers_mut().insert(CLASS, HeaderValue::from_static(class.as_str()));
        response.headers_mut().insert(WAIT_MS, HeaderValue::from(waited_ms.ceil() as u64));
    }
    response
}

fn answer_of(flow: Box<Flow>, begun: Result<Begun, ApiError>) -> Response<GatewayBody> {
    match begun {
        // The error has been counted when the flow was ended by it.
        Err(error) => error.into_response(),
        Ok(Begun::Whole { status, headers, body }) => {
            let engine = flow.record.lock().attempts.last().map(|a| a.engine);
            let mut response = Response::new(GatewayBody::full(body));
            copy_head(&mut response, status, &headers, engine);
            response
        }
        Ok(Begun::Unchecked(answer)) => {
            let (attempt, exchange) = *answer;
            let (status, headers, engine) = (exchange.status, exchange.headers.clone(), attempt.engine.id);
            let mut response = Response::new(GatewayBody::full(Bytes::new()));
            copy_head(&mut response, status, &headers, Some(engine));
            *response.body_mut() = GatewayBody::fallible(pass(flow, attempt, exchange));
            response
        }
        Ok(Begun::Stream(start)) => {
            let (headers, engine) = (start.exchange.headers.clone(), start.attempt.engine.id);
            let mut response = Response::new(GatewayBody::stream(Relay::new(flow, *start).into_stream()));
            copy_head(&mut response, StatusCode::OK, &headers, Some(engine));
            stream_headers(response.headers_mut());
            response
        }
    }
}

fn copy_head(
    response: &mut Response<GatewayBody>,
    status: StatusCode,
    headers: &HeaderMap,
    engine: Option<InstanceId>,
) {
    *response.status_mut() = status;
    *response.headers_mut() = headers::towards_client(headers);
    if let Some(engine) = engine {
        response.headers_mut().insert(ENGINE, HeaderValue::from(engine.0));
    }
}

fn stream_headers(headers: &mut HeaderMap) {
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("text/event-stream"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    // nginx in front of this would otherwise collect the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Comments until there is something, then that.
fn patient(beginning: Beginning, keep_alive: Duration) -> impl Stream<Item = Bytes> + Send {
    async_stream::stream! {
        let mut beginning = beginning;
        yield KEEP_ALIVE;
        let (mut flow, begun) = loop {
            match tokio::time::timeout(keep_alive, &mut beginning).await {
                Ok(done) => break done,
                Err(_) => yield KEEP_ALIVE,
            }
        };
        match begun {
            Err(error) => yield error.into_event(),
            Ok(Begun::Stream(start)) => {
                let mut relay = std::pin::pin!(Relay::new(flow, *start).into_stream());
                while let Some(bytes) = std::future::poll_fn(|cx| Stream::poll_next(relay.as_mut(), cx)).await {
                    yield bytes;
                }
            }
            // The engine answered a streaming request with something else: its words, as an event.
            Ok(Begun::Whole { status, body, .. }) if !status.is_success() => {
                let said = plimsoll_pools::chunk::inspect_error_body(&body);
                yield ApiError::new(ErrorCode::InvalidRequest, crate::begin::bounded(&said.message)).into_event();
            }
            Ok(Begun::Whole { body, .. }) => {
                // One event; each of its lines is a data line.
                for line in body.split(|b| *b == b'\n') {
                    yield Bytes::from_static(b"data: ");
                    yield Bytes::copy_from_slice(line);
                    yield Bytes::from_static(b"\n");
                }
                yield Bytes::from_static(b"\ndata: [DONE]\n\n");
            }
            Ok(Begun::Unchecked(answer)) => {
                let (attempt, _) = *answer;
                let message = "the engine answered a streaming request with one large body";
                let error = ApiError::new(ErrorCode::EngineBadResponse, message);
                attempt.end_and_abort(AttemptEnd::Cancelled, Some(message.to_owned()));
                flow.end(Outcome::EngineFailed, 200, Some(error.code));
                yield error.into_event();
            }
        }
    }
}

fn trace_context(headers: &HeaderMap, fraction: f64) -> TraceContext {
    let random = uuid::Uuid::new_v4().as_u128();
    let span = uuid::Uuid::new_v4().as_u64_pair().1;
    // The low bits of a random id decide; no second draw is needed.
    let sample = (random as u32 as f64) < fraction * f64::from(u32::MAX);
    TraceContext::continue_or_start(headers.get(&TRACEPARENT), (random, span), sample)
}
