//! One generation: taking it up, writing its answer (or a fault's), and what a lost client or an abort does to it.

use crate::Dialect;
use crate::answer::{Answer, Stop};
use crate::ask::{Ask, Route};
use crate::fault::Fault;
use crate::frames::{Finish, Frames, error_body};
use crate::http1::{Head, Inbound};
use crate::outbound::{Outbound, Reply};
use crate::slot::{Aborted, Refused, Slot};
use crate::state::State;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Close,
}

/// Takes up a generation request and sees it to its end.
pub(crate) async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    state: &Arc<State>,
    inbound: &mut Inbound<R>,
    outbound: &mut Outbound<W>,
    request: &Head,
    body: Bytes,
    route: Route,
) -> io::Result<After> {
    let dialect = state.options.dialect;
    let ask = Ask::parse(route, request, &body);
    state.count(|counters| {
        counters.last_path.clone_from(&request.path);
        counters.last_headers.clone_from(&request.headers);
        counters.last_body = body;
    });
    let ask = match ask {
        Ok(ask) => ask,
        Err(message) => return refuse(outbound, dialect, 400, &message).await,
    };
    if let Some(model) = &ask.model
        && dialect != Dialect::Sglang
        && *model != state.options.model
    {
        return refuse(outbound, dialect, 404, &format!("The model `{model}` does not exist.")).await;
    }
    let fault = state.next_fault();
    if let Fault::Status { status, retry_after_s } = fault {
        let mut reply = Reply::json(status, &error_body(dialect, status, "asked to fail", false));
        if let Some(seconds) = retry_after_s {
            reply = reply.with("retry-after", seconds.to_string());
        }
        outbound.reply(&reply).await?;
        return Ok(After::Keep);
    }
    let (rid, id) = ids(dialect, &ask);
    let mut slot = match Slot::take(state, &rid) {
        Ok(slot) => slot,
        Err(Refused::Duplicate) => {
            return refuse(outbound, dialect, 400, &format!("Duplicate request ID detected: {rid}")).await;
        }
        Err(Refused::QueueFull) => {
            state.count(|counters| counters.queue_full += 1);
            return queue_full(state, outbound, &ask, id).await;
        }
    };
    let behaviour = state.behaviour();
    let frames = Frames::new(dialect, &ask, id, &state.options.model, behaviour.event_bytes);
    let mut answer = Answer { ask: &ask, frames: &frames, behaviour: &behaviour, fault: &fault };
    let ended = tokio::select! {
        biased;
        ended = answer.write(outbound, &mut slot) => Some(ended),
        () = inbound.gone() => None,
    };
    match ended {
        Some(Ok(after)) => {
            state.count(|counters| counters.finished += 1);
            Ok(after)
        }
        Some(Err(Stop::Aborted)) => {
            state.count(|counters| counters.aborted_by_rid += 1);
            answer.write_abort(outbound).await
        }
        Some(Err(Stop::Lost)) | None => {
            state.count(|counters| counters.clients_lost += 1);
            let notice = if ask.stream { behaviour.notice_stream_ms } else { behaviour.notice_whole_ms };
            match slot.sleep(Duration::from_millis(notice)).await {
                Ok(()) => state.count(|counters| counters.aborted_by_disconnect += 1),
                Err(Aborted) => state.count(|counters| counters.aborted_by_rid += 1),
            }
            Ok(After::Close)
        }
    }
}

/// (id under which it can be aborted, id in the answer)
fn ids(dialect: Dialect, ask: &Ask) -> (String, String) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let fresh = || format!("{:032x}", NEXT.fetch_add(1, Ordering::Relaxed));
    let prefix = if ask.route == Route::Chat { "chatcmpl" } else { "cmpl" };
    match dialect {
        Dialect::Sglang => {
            let rid = ask.body_id.clone().unwrap_or_else(fresh);
            (rid.clone(), rid)
        }
        Dialect::Vllm => {
            let rid = ask.header_id.clone().or_else(|| ask.body_id.clone()).unwrap_or_else(fresh);
            let id = format!("{prefix}-{rid}");
            (rid, id)
        }
        Dialect::Openai => {
            let rid = fresh();
            let id = format!("{prefix}-{rid}");
            (rid, id)
        }
    }
}

async fn refuse<W: AsyncWrite + Unpin>(
    outbound: &mut Outbound<W>,
    dialect: Dialect,
    status: u16,
    message: &str,
) -> io::Result<After> {
    outbound.reply(&Reply::json(status, &error_body(dialect, status, message, false))).await?;
    Ok(After::Keep)
}

/// SGLang has sent its 200 by the time that it finds the queue full; vLLM answers 503 without `Retry-After`.
async fn queue_full<W: AsyncWrite + Unpin>(
    state: &Arc<State>,
    outbound: &mut Outbound<W>,
    ask: &Ask,
    id: String,
) -> io::Result<After> {
    let dialect = state.options.dialect;
    if dialect != Dialect::Sglang || !ask.stream {
        return refuse(outbound, dialect, 503, "The request queue is full.").await;
    }
    let frames = Frames::new(dialect, ask, id, &state.options.model, 0);
    outbound.stream_head(&[], None).await?;
    let finish = Finish::Abort { status: Some(503), message: "The request queue is full." };
    let event = if ask.route == Route::Generate {
        frames.abort_frame(0, &finish)
    } else {
        frames.error_frame(503, "The request queue is full.")
    };
    outbound.piece(event.as_bytes(), true).await?;
    outbound.piece(b"data: [DONE]\n\n", true).await?;
    outbound.stream_end().await?;
    Ok(After::Keep)
}
