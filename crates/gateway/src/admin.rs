//! The operators' listener. Everything under `/admin` and `/debug` needs the bearer token; without a configured token
//! it is open on loopback only.

use crate::api_error::ApiError;
use crate::auth::bearer_is;
use crate::body::GatewayBody;
use crate::fleet::{EngineHandle, Origin};
use crate::kv_view::Basis;
use crate::listing::{json_response, readiness};
use crate::membership;
use crate::state::Shared;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, StatusCode};
use plimsoll_cache::view::PublisherView;
use plimsoll_core::{ErrorCode, InstanceId, Target};
use plimsoll_settings::{Engine, Settings};
use serde_json::{Value, json};
use std::sync::Arc;

type Answer = Result<Response, AdminError>;

/// Largest admin request body in bytes.
const BODY_BYTES: usize = 1 << 20;

/// An [`ApiError`] as axum answers it.
struct AdminError(ApiError);

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        self.0.into_response().map(axum::body::Body::new)
    }
}

fn refuse(code: ErrorCode, message: impl Into<String>) -> AdminError {
    AdminError(ApiError::new(code, message))
}

#[derive(Clone)]
struct Context {
    shared: Arc<Shared>,
    loopback: bool,
}

/// The routes. `loopback`: the listener's address is one.
pub fn router(shared: Arc<Shared>, loopback: bool) -> Router {
    let context = Context { shared, loopback };
    let guarded = Router::new()
        .route("/admin/engines", get(list).post(add))
        .route("/admin/engines/{id}", delete(remove).get(show))
        .route("/admin/engines/{id}/drain", post(drain).delete(undrain))
        .route("/admin/ledger", get(ledger))
        .route("/admin/cache", get(cache))
        .route("/admin/funnel", get(funnel))
        .route("/admin/traffic", get(traffic).put(set_traffic))
        .route("/admin/log", put(set_log))
        .route("/debug/requests/{id}", get(request))
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES))
        .route_layer(from_fn_with_state(context.clone(), authorise));
    Router::new()
        .route("/livez", get(|| async { plain(json_response(StatusCode::OK, &json!({ "status": "alive" }))) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .fallback(|| async { refuse(ErrorCode::NotFound, "no such path on the admin listener") })
        .with_state(context)
}

fn plain(response: http::Response<GatewayBody>) -> Response {
    response.map(axum::body::Body::new)
}

async fn authorise(State(context): State<Context>, request: Request, next: Next) -> Response {
    let settings = context.shared.settings.load();
    let allowed = match &settings.admin.token {
        Some(token) => bearer_is(request.headers(), &token.0),
        None => context.loopback,
    };
    let configured = settings.admin.token.is_some();
    drop(settings);
    if !configured && allowed && from_a_browser(request.headers()) {
        return refuse(
            ErrorCode::Unauthorized,
            "without `admin.token` this is for local programs, not for web pages: set one",
        )
        .into_response();
    }
    if allowed {
        return next.run(request).await;
    }
    let message = if configured {
        "send the admin token: `Authorization: Bearer TOKEN`"
    } else {
        "set `admin.token`: without one this is open on loopback only"
    };
    refuse(ErrorCode::Unauthorized, message).into_response()
}

/// A page that the operator visits could post here, or reach it by a name of its own (DNS rebinding). Programs send no
/// `origin` and name the address.
fn from_a_browser(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let local = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    headers.contains_key(ORIGIN) || !local
}

async fn ready(State(context): State<Context>, request: Request) -> Response {
    plain(readiness(&context.shared, request.uri().query()))
}

async fn metrics(State(context): State<Context>) -> Response {
    let text = context.shared.render_metrics();
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

fn describe(engine: &EngineHandle, views: &[plimsoll_load::InstanceView]) -> Value {
    let view = views.iter().find(|view| view.id == engine.id);
    json!({
        "id": engine.id.0,
        "url": engine.endpoint().url(),
        "origin": match engine.origin { Origin::Config => "config", Origin::Admin => "admin" },
        "state": view,
        "capability": engine.capability.load().as_deref(),
        "last_error": engine.last_error.load().as_deref(),
        "idle_connections": engine.endpoint().idle_connections(),
    })
}

async fn list(State(context): State<Context>) -> Response {
    let shared = &context.shared;
    let views = shared.with_scheduler(|s| s.instances(shared.now()));
    let engines: Vec<Value> = shared.fleet.all().values().map(|e| describe(e, &views)).collect();
    plain(json_response(StatusCode::OK, &json!({ "engines": engines })))
}

fn known(context: &Context, id: &str) -> Result<Arc<EngineHandle>, AdminError> {
    let id: u32 = id.parse().map_err(|_| refuse(ErrorCode::InvalidRequest, "engine ids are whole numbers"))?;
    context.shared.fleet.get(InstanceId(id)).ok_or_else(|| refuse(ErrorCode::NotFound, format!("no engine {id}")))
}

async fn show(State(context): State<Context>, Path(id): Path<String>) -> Answer {
    let engine = known(&context, &id)?;
    let views = context.shared.with_scheduler(|s| s.instances(context.shared.now()));
    Ok(plain(json_response(StatusCode::OK, &describe(&engine, &views))))
}

async fn add(State(context): State<Context>, body: Bytes) -> Answer {
    let settings: Engine = serde_json::from_slice(&body)
        .map_err(|e| refuse(ErrorCode::InvalidRequest, format!("expected {{\"url\": \"http://HOST:PORT\"}}: {e}")))?;
    let mut checked = Settings { engines: vec![settings.clone()], ..Settings::default() };
    checked.admin.token = None;
    if let Some(problem) = checked.validate().into_iter().find(|p| p.path.starts_with("engines")) {
        return Err(refuse(ErrorCode::InvalidRequest, problem.message.replace("engines[0].", "")));
    }
    let spelling = |url: &str| url.trim_end_matches('/').to_ascii_lowercase();
    let same = |url: &str| spelling(url) == spelling(&settings.url);
    if context.shared.fleet.all().values().any(|e| same(e.endpoint().url())) {
        return Err(refuse(ErrorCode::InvalidRequest, "an engine with this url is there already"));
    }
    let id = membership::add(&context.shared, settings, Origin::Admin)
        .map_err(|e| refuse(ErrorCode::InvalidRequest, e.to_string()))?;
    Ok(plain(json_response(StatusCode::CREATED, &json!({ "id": id.0 }))))
}

async fn remove(State(context): State<Context>, Path(id): Path<String>) -> Answer {
    let engine = known(&context, &id)?;
    membership::remove(&context.shared, engine.id);
    Ok(plain(json_response(StatusCode::OK, &json!({ "removed": engine.id.0 }))))
}

async fn drain(State(context): State<Context>, Path(id): Path<String>) -> Answer {
    set_draining(&context, &id, true)
}

async fn undrain(State(context): State<Context>, Path(id): Path<String>) -> Answer {
    set_draining(&context, &id, false)
}

fn set_draining(context: &Context, id: &str, draining: bool) -> Answer {
    let engine = known(context, id)?;
    context.shared.with_scheduler(|s| s.set_draining(engine.id, draining));
    tracing::info!(engine = %engine.id, draining, "drain set");
    Ok(plain(json_response(StatusCode::OK, &json!({ "id": engine.id.0, "draining": draining }))))
}

async fn ledger(State(context): State<Context>) -> Response {
    let shared = &context.shared;
    let (totals, sound) = shared.with_scheduler(|s| (s.totals(shared.now()), s.check_invariants()));
    let report = json!({
        "totals": totals,
        "invariants": match sound { Ok(()) => json!("hold"), Err(why) => json!({ "broken": why }) },
        "request_body_bytes": shared.bodies.held_bytes(),
        "retry_budget": shared.retry_budget.lock().available(),
    });
    plain(json_response(StatusCode::OK, &report))
}

async fn cache(State(context): State<Context>) -> Response {
    let shared = &context.shared;
    let (blocks, bytes) = shared.kv_views.size();
    let (by_ids, by_text): (Vec<_>, Vec<_>) =
        shared.kv_views.publishers(shared.now()).into_iter().partition(|(basis, ..)| *basis == Basis::Ids);
    let all = |views: Vec<(Basis, String, Target, PublisherView)>| -> Vec<Value> {
        views.into_iter().map(|(_, model, target, state)| publisher(&model, target, &state)).collect()
    };
    let (publishers, texts) = (all(by_ids), all(by_text));
    let report = json!({ "distinct_blocks": blocks, "index_bytes": bytes, "publishers": publishers, "texts": texts });
    plain(json_response(StatusCode::OK, &report))
}

/// What is believed of one rank. Among `texts` a token is a gram: four bytes.
fn publisher(model: &str, target: Target, state: &PublisherView) -> Value {
    json!({
        "model": model,
        "engine": target.instance.0,
        "dp_rank": target.rank.0,
        "trust": if state.approximate { "approximate" } else { state.trust.as_str() },
        "credited": state.credited,
        "names": state.family.map(|family| family.format.as_str()),
        "block_tokens": state.family.map(|family| family.block_tokens),
        "device_blocks": state.device_blocks,
        "host_blocks": state.host_blocks,
        "believed_tokens": state.belief.believed_tokens,
        "reported_tokens": state.belief.reported_tokens,
        "reports": state.belief.reports,
        "belief_error": state.belief.error,
        "belief_deviation": state.belief.deviation,
        "gaps": state.gaps,
        "duplicates": state.duplicates,
        "skipped_events": state.skipped,
        "unplaced_blocks": state.unplaced,
        "unknown_removals": state.unknown_removals,
        "misnamed_events": state.misnamed,
    })
}

async fn funnel(State(context): State<Context>) -> Response {
    let shared = &context.shared;
    plain(json_response(StatusCode::OK, &crate::funnel::json(&shared.funnel, shared.now())))
}

async fn set_log(State(context): State<Context>, body: Bytes) -> Answer {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        filter: String,
    }
    let wanted: Wanted = serde_json::from_slice(&body)
        .map_err(|e| refuse(ErrorCode::InvalidRequest, format!("expected {{\"filter\": \"info\"}}: {e}")))?;
    let Some(set) = &context.shared.log_filter else {
        return Err(refuse(ErrorCode::NotFound, "the log filter cannot be changed in this process"));
    };
    set(&wanted.filter).map_err(|e| refuse(ErrorCode::InvalidRequest, e))?;
    tracing::info!(filter = wanted.filter, "log filter changed");
    Ok(plain(json_response(StatusCode::OK, &json!({ "filter": wanted.filter }))))
}

async fn request(State(context): State<Context>, Path(id): Path<String>) -> Answer {
    let Some(record) = context.shared.decisions.find(&id) else {
        return Err(refuse(ErrorCode::NotFound, "no record of this request: it was never here or has left the ring"));
    };
    let value = serde_json::to_value(record).unwrap_or(Value::Null);
    Ok(plain(json_response(StatusCode::OK, &value)))
}

async fn traffic(State(context): State<Context>) -> Response {
    plain(json_response(StatusCode::OK, &crate::traffic::show::report(&context.shared)))
}

/// Changes a part of the `traffic` settings until the next reload or restart.
async fn set_traffic(State(context): State<Context>, body: Bytes) -> Answer {
    let shared = &context.shared;
    let changes: Value = serde_json::from_slice(&body)
        .map_err(|e| refuse(ErrorCode::InvalidRequest, format!("expected keys of `traffic` as a JSON object: {e}")))?;
    if !changes.is_object() {
        return Err(refuse(ErrorCode::InvalidRequest, "expected keys of `traffic` as a JSON object"));
    }
    let mut settings = Settings::clone(&shared.settings.load());
    let mut wanted = serde_json::to_value(&settings.traffic).unwrap_or(Value::Null);
    merge(&mut wanted, changes);
    settings.traffic = serde_json::from_value(wanted)
        .map_err(|e| refuse(ErrorCode::InvalidRequest, format!("these are no settings of `traffic`: {e}")))?;
    // Files named elsewhere in the settings may have gone meanwhile; that is not asked here.
    if let Some(problem) = settings.validate().into_iter().find(|p| p.path.starts_with("traffic")) {
        return Err(refuse(ErrorCode::InvalidRequest, problem.message.replace("engines[0].", "")));
    }
    shared.apply(settings);
    tracing::info!("traffic settings changed through the admin api");
    Ok(plain(json_response(StatusCode::OK, &crate::traffic::show::report(shared))))
}

/// Tables are merged, everything else is replaced.
fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(into.entry(key).or_insert(Value::Null), change);
            }
        }
        (into, changes) => *into = changes,
    }
}
