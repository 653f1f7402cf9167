//! One connection: requests one after the other until somebody closes.

use crate::ask::Route;
use crate::generate::{self, After};
use crate::http1::{Head, Inbound};
use crate::outbound::{Outbound, Reply};
use crate::state::State;
use crate::{control, info};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves a connection to its end.
pub(crate) async fn serve<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    state: Arc<State>,
    reader: R,
    writer: W,
) -> io::Result<()> {
    let mut inbound = Inbound::new(reader);
    let mut outbound = Outbound::new(writer, state.clone());
    let mut close_idle = state.close_idle.subscribe();
    let mut carried = 0_u64;
    loop {
        close_idle.mark_unchanged();
        let idle = Duration::from_millis(state.behaviour().idle_close_ms);
        let head = tokio::select! {
            head = inbound.head() => match head {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return outbound.reply(&Reply::text(400, "text/plain", error.to_string())).await;
                }
                Err(error) => return Err(error),
            },
            () = tokio::time::sleep(idle) => return Ok(()),
            _ = close_idle.changed() => return Ok(()),
        };
        let controls = head.path == control::PATH;
        if carried > 0 && !controls {
            state.count(|counters| counters.reused += 1);
            if state.behaviour().close_on_reuse {
                state.count(|counters| counters.closed_on_reuse += 1);
                return Ok(());
            }
        }
        carried += 1;
        if head.expects_continue() {
            outbound.raw(b"HTTP/1.1 100 Continue\r\n\r\n");
            outbound.flush().await?;
        }
        let body = inbound.body(&head).await?;
        if controls {
            outbound.reply(&control::reply(&state, &head, &body)).await?;
            continue;
        }
        let after = answer(&state, &mut inbound, &mut outbound, &head, body).await?;
        if after == After::Close || head.wants_close() {
            return Ok(());
        }
    }
}

async fn answer<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    state: &Arc<State>,
    inbound: &mut Inbound<R>,
    outbound: &mut Outbound<W>,
    head: &Head,
    body: bytes::Bytes,
) -> io::Result<After> {
    let behaviour = state.behaviour();
    let known = info::knows(state.options.dialect, &head.path) && !behaviour.missing_paths.contains(&head.path);
    let counted = if known { head.path.as_str() } else { "other" };
    state.count(|counters| *counters.requests.entry(counted.to_owned()).or_default() += 1);
    if !known {
        outbound.reply(&Reply::json(404, &serde_json::json!({"detail": "Not Found"}))).await?;
        return Ok(After::Keep);
    }
    if behaviour.hang_paths.contains(&head.path) {
        inbound.gone().await;
        return Ok(After::Close);
    }
    match Route::of(&head.path) {
        Some(route) if head.method == "POST" => generate::run(state, inbound, outbound, head, body, route).await,
        _ => {
            let reply = tokio::select! {
                reply = info::reply(state, head, &body) => reply,
                () = inbound.gone() => return Ok(After::Close),
            };
            outbound.reply(&reply).await?;
            Ok(After::Keep)
        }
    }
}
