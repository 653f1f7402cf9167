//! Start, reload, stop.

use crate::fleet::Origin;
use crate::leases::Running;
use crate::metrics::EngineOnlyWord;
use crate::model_text::ModelTexts;
use crate::record::{Decisions, open_log};
use crate::spans::SpanSink;
use crate::state::{LogFilter, Shared};
use crate::{admin, funnel, membership, server, stream_slots, tls, traffic};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use plimsoll_settings::Settings;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Longest wait at the end for aborts on their way to engines.
const ABORTS_AT_END: Duration = Duration::from_secs(2);

/// Reads the settings again, as the command line, environment and file say now.
pub type Reload = Box<dyn Fn() -> Result<Settings, String> + Send + Sync>;

/// What a gateway is started with.
pub struct Start {
    pub settings: Settings,
    pub reload: Option<Reload>,
    pub log_filter: Option<LogFilter>,
    pub spans: Option<SpanSink>,
    /// Called once when both listeners accept, with their real addresses (clients', operators').
    pub ready: Option<Box<dyn FnOnce(SocketAddr, SocketAddr) + Send>>,
}

/// Why a gateway did not start.
#[derive(Debug, Error)]
pub enum GatewayError {
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("cannot write the decision log `{0}`: {1}")]
    DecisionLog(PathBuf, std::io::Error),
    #[error("engine `{0}`: {1}")]
    Engine(String, plimsoll_pools::http::EndpointError),
    #[error("{0}")]
    Tokenizer(String),
    #[error("tls: {0}")]
    Tls(String),
    #[error("cannot watch signals: {0}")]
    Signals(std::io::Error),
}

/// Runs a gateway until SIGTERM or SIGINT. SIGHUP reloads.
///
/// # Errors
/// See [`GatewayError`]; all of them at start, before the first request.
pub async fn run(start: Start) -> Result<(), GatewayError> {
    let Start { settings, reload, log_filter, spans, ready } = start;
    let mut log = None;
    let sender = match &settings.decisions.log_file {
        None => None,
        Some(path) => {
            let (sender, writer) = open_log(path).map_err(|e| GatewayError::DecisionLog(path.clone(), e))?;
            log = Some(writer);
            Some(sender)
        }
    };
    let (acceptor, tls) = watch::channel(load_tls(&settings).map_err(GatewayError::Tls)?);
    let texts = load_texts(&settings).await.map_err(GatewayError::Tokenizer)?;
    let clients = listen(settings.gateway.listen).await?;
    let operators = listen(settings.admin.listen).await?;
    let addresses = (local(&clients, settings.gateway.listen), local(&operators, settings.admin.listen));
    let engines = settings.engines.clone();
    let decisions = Decisions::new(settings.decisions.ring_records, sender);
    let shared = Arc::new(Shared::new(settings, decisions, log_filter, spans));
    shared.texts.store(Arc::new(texts));
    for engine in engines {
        let url = engine.url.clone();
        membership::add(&shared, engine, Origin::Config).map_err(|e| GatewayError::Engine(url, e))?;
    }
    let sweeper = tokio::spawn(stream_slots::sweep_forever(shared.clone()));
    let funnel = tokio::spawn(funnel::run(shared.clone()));
    let turns = tokio::spawn(traffic::driver::run(shared.clone()));
    let status = tokio::spawn(traffic::show::log_forever(shared.clone()));
    let leases = Running::start(&shared);
    warn_of_open_doors(&shared.settings.load(), addresses.0);
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(server::run(shared.clone(), clients, tls, stopped));
    let admin = admin::router(shared.clone(), addresses.1.ip().is_loopback());
    let admin_done = tokio::spawn(serve_admin(operators, admin));
    let (mut term, mut int, mut hup) = (
        signal(SignalKind::terminate()).map_err(GatewayError::Signals)?,
        signal(SignalKind::interrupt()).map_err(GatewayError::Signals)?,
        signal(SignalKind::hangup()).map_err(GatewayError::Signals)?,
    );
    if let Some(ready) = ready {
        ready(addresses.0, addresses.1);
    }
    let reload = reload.map(Arc::new);
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = int.recv() => break,
            _ = hup.recv() => reload_now(&shared, reload.clone(), &acceptor).await,
        }
    }
    tracing::info!("stopping: no new connections, running requests may finish");
    shared.begin_stopping();
    stop.send_replace(true);
    leases.leave(&shared).await;
    // A second signal ends the patience.
    let hurry = tokio::select! {
        _ = serving => false,
        _ = term.recv() => true,
        _ = int.recv() => true,
    };
    if hurry {
        let streams = shared.streams.shut_down();
        tracing::warn!(streams, "second signal: running requests are cut");
        tokio::time::sleep(server::LAST_WORDS).await;
    }
    // Requests that were cut have told their engines to stop: let that arrive.
    shared.pending_aborts.done(ABORTS_AT_END).await;
    sweeper.abort();
    funnel.abort();
    turns.abort();
    status.abort();
    admin_done.abort();
    for engine in shared.fleet.all().values() {
        engine.stop();
    }
    drop(shared);
    if let Some(writer) = log {
        // Requests that were cut may still hold a sender for a moment; their records are written within the bound.
        let joined = tokio::task::spawn_blocking(move || writer.join());
        let _ = tokio::time::timeout(Duration::from_secs(2), joined).await;
    }
    Ok(())
}

/// What an operator would rather hear now than later.
fn warn_of_open_doors(settings: &Settings, clients: SocketAddr) {
    if settings.engines.is_empty() {
        tracing::warn!("no engine is configured: name one with --engine, in the config, or by POST /admin/engines");
    }
    if settings.auth.keys.is_empty() && !clients.ip().is_loopback() {
        tracing::warn!(%clients, "everybody who reaches this address may use the engines: set `auth.keys`");
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, GatewayError> {
    TcpListener::bind(address).await.map_err(|e| GatewayError::Listen(address, e))
}

fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

/// Large tokenizers take seconds to read.
async fn load_texts(settings: &Settings) -> Result<ModelTexts, String> {
    let settings = settings.clone();
    let loaded = tokio::task::spawn_blocking(move || ModelTexts::load(&settings)).await;
    let texts = loaded.unwrap_or_else(|error| Err(error.to_string()))?;
    for (model, ..) in texts.described().filter(|(_, has_template, _)| !has_template) {
        tracing::warn!(model, "its folder has no chat template: chats are not tokenised, and compared by their text");
    }
    Ok(texts)
}

fn load_tls(settings: &Settings) -> Result<Option<TlsAcceptor>, String> {
    settings.gateway.tls.as_ref().map(tls::acceptor).transpose()
}

/// Operators' connections at once, and the longest wait for a head: a listener for a few programs and people.
const ADMIN_CONNECTIONS: usize = 256;
const ADMIN_HEAD: Duration = Duration::from_secs(30);

/// Runs until its task is ended: metrics and readiness stay up while requests drain.
async fn serve_admin(listener: TcpListener, router: axum::Router) {
    let places = Arc::new(Semaphore::new(ADMIN_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(ADMIN_HEAD)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "an admin connection ended badly");
            }
            drop(place);
        });
    }
}

/// Takes new settings or keeps the old ones and says why.
async fn reload_now(shared: &Arc<Shared>, reload: Option<Arc<Reload>>, acceptor: &watch::Sender<Option<TlsAcceptor>>) {
    let count = |result| shared.metrics.reloads.get_or_create(&EngineOnlyWord { result }).inc();
    let Some(reload) = reload else {
        tracing::warn!("reload asked for, but there is nothing to read settings from");
        return;
    };
    let read = tokio::task::spawn_blocking(move || {
        let settings = reload()?;
        let texts = ModelTexts::load(&settings)?;
        Ok::<_, String>((settings, texts))
    });
    let read = read.await.unwrap_or_else(|e| Err(e.to_string()));
    // Everything that can fail comes first: a reload is taken whole or not at all.
    let checked = read.and_then(|(settings, texts)| {
        let tls = load_tls(&settings)?;
        let plan = membership::plan(shared, &settings).map_err(|(url, e)| format!("engine `{url}`: {e}"))?;
        let filter = &settings.telemetry.log;
        if shared.settings.load().telemetry.log != *filter
            && let Some(set) = &shared.log_filter
        {
            set(filter).map_err(|why| format!("`telemetry.log`: {why}"))?;
        }
        Ok((settings, texts, tls, plan))
    });
    let (settings, texts, tls, plan) = match checked {
        Ok(good) => good,
        Err(why) => {
            count("refused");
            tracing::error!(why, "reload refused, the old settings stay");
            return;
        }
    };
    for key in needs_restart(&shared.settings.load(), &settings) {
        tracing::warn!(key, "this setting needs a restart; the old value stays in use");
    }
    acceptor.send_replace(tls);
    shared.texts.store(Arc::new(texts));
    shared.apply(settings);
    membership::carry_out(shared, plan);
    count("applied");
    tracing::info!("settings reloaded");
}

/// What differs between the two and is only read at start.
fn needs_restart(before: &Settings, after: &Settings) -> Vec<&'static str> {
    let (decisions, telemetry) = ((&before.decisions, &after.decisions), (&before.telemetry, &after.telemetry));
    let all = [
        ("gateway.listen", before.gateway.listen != after.gateway.listen),
        ("gateway.max_connections", before.gateway.max_connections != after.gateway.max_connections),
        ("admin.listen", before.admin.listen != after.admin.listen),
        (
            "policy.assumed_bytes_per_token",
            before.policy.assumed_bytes_per_token.to_bits() != after.policy.assumed_bytes_per_token.to_bits(),
        ),
        ("cluster", before.cluster != after.cluster),
        ("decisions.ring_records", decisions.0.ring_records != decisions.1.ring_records),
        ("decisions.log_file", decisions.0.log_file != decisions.1.log_file),
        ("funnel", before.funnel != after.funnel),
        ("telemetry.log_format", telemetry.0.log_format != telemetry.1.log_format),
        ("telemetry.otlp_endpoint", telemetry.0.otlp_endpoint != telemetry.1.otlp_endpoint),
    ];
    all.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
}
