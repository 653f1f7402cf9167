//! The prefill engine's port: decode engines call it for their rooms, and routers ask it over HTTP, as they ask SGLang's,
//! whether the engine is ready and fits.

use super::rooms::{Caller, opened};
use super::service::Context;
use crate::transfer::{Incoming, Link, TransferError};
use axum::Router;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Calls at once, from when they are accepted until they are in their room.
const MAX_CALLS: usize = 1024;
/// Pause after a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers calls until it is aborted.
pub(crate) async fn accept(listener: TcpListener, context: Arc<Context>) {
    let places = Arc::new(Semaphore::new(MAX_CALLS));
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let context = Arc::clone(&context);
                tokio::spawn(async move {
                    answer(stream, &context).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a call at the bootstrap port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, context: &Arc<Context>) {
    context.faults.responsive().await;
    let mut first = [0];
    let deadline = context.terms.deadline;
    let is_http = match timeout(deadline, stream.peek(&mut first)).await {
        // HTTP methods begin with a letter; a greeting with the low byte of its length.
        Ok(Ok(1)) => first[0].is_ascii_uppercase() && first[0] != GREETING,
        _ => return,
    };
    if is_http {
        http(stream, context).await;
    } else if let Err(error) = seat(stream, context).await {
        tracing::debug!(%error, "a call at the bootstrap port came to nothing");
    }
}

/// Low byte of the length of a greeting: kind, 64 bytes, checksum.
const GREETING: u8 = 69;

async fn http(stream: TcpStream, context: &Arc<Context>) {
    let route = route(context);
    let router = Router::new()
        .route("/health", get(async || "OK"))
        .route("/route", get(async move || axum::Json(route)))
        .fallback(async || axum::http::StatusCode::NOT_FOUND);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(context.terms.deadline).keep_alive(false);
    // One answer a connection.
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = timeout(2 * context.terms.deadline, serving).await;
}

/// SGLang's topology, for what applies here.
fn route(context: &Context) -> Value {
    json!({
        "attn_tp_size": 1,
        "attn_cp_size": 1,
        "dp_size": context.ranks,
        "pp_size": 1,
        "page_size": context.terms.identity.page_tokens,
        "kv_cache_dtype": "float32",
        "kv_layout": "plimsoll",
        "follow_bootstrap_room": true,
        "prefill_http_port": context.http_port,
        "decode_allocation_policy": "early",
    })
}

/// Brings a decode engine into its room.
async fn seat(stream: TcpStream, context: &Context) -> Result<(), TransferError> {
    let mut link = Link::accept_any(stream, &context.terms).await?;
    let Incoming::Note(note) = link.receiver.next().await? else {
        return Err(TransferError::Unexpected("frame before the room was named"));
    };
    let (room, prompt_tokens, prompt) = opened(&note)?;
    let Some(mut knock) = context.rooms.knock(room) else {
        return link.sender.abort(&format!("bootstrap_room {room} already has its decode leg")).await;
    };
    let late = tokio::time::sleep(context.config.handshake);
    tokio::pin!(late);
    let mut beat = context.beat();
    // One that does not fit has hung up already; it keeps its place so that the prefill leg learns why.
    let fits = context.terms.identity.check(&link.peer).is_ok();
    let seat = loop {
        tokio::select! {
            // A leg that is there learns of the caller's end by the link.
            biased;
            seat = knock.seat() => break seat?,
            () = &mut late => {
                return link.sender.abort(&format!("no prefill leg came to bootstrap_room {room}")).await;
            }
            // Anything but a sign of life is its end.
            incoming = link.receiver.next(), if fits => match incoming? {
                Incoming::Beat => {}
                _ => return Err(TransferError::Unexpected("frame before the prefill leg was there")),
            },
            _ = beat.tick(), if fits => link.sender.beat().await?,
        }
    };
    if let Err(mut caller) = seat.send(Caller { link, prompt_tokens, prompt }) {
        return caller.link.sender.abort("the prefill leg has gone").await;
    }
    Ok(())
}
