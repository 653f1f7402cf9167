//! Answers as server-sent events, from one or several requests at once.

use super::State;
use super::errors::ApiError;
use crate::faults::Faults;
use crate::mailbox::{Ticket, Update};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;
use std::io;
use std::sync::Arc;

/// Turns the news of one request into the events of one API.
pub(crate) trait Framer: Send + 'static {
    /// Appends `data: ...` events. The ticket tells id, prompt length and age.
    fn frame(&mut self, ticket: &Ticket, update: &Update, out: &mut String);
}

pub(crate) fn push_event(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// An error event, for what goes wrong after the headers were sent.
pub(crate) fn push_error(out: &mut String, error: &ApiError) {
    push_event(out, &error.json());
}

/// Streams all requests, merged, then what `tail` adds, then `[DONE]`.
pub(crate) fn response(
    state: &Arc<State>,
    parts: Vec<(Ticket, Box<dyn Framer>)>,
    tail: impl FnOnce(&mut String) + Send + 'static,
) -> Response {
    let merged = stream::select_all(parts.into_iter().map(|(ticket, framer)| {
        Box::pin(stream::unfold(
            Some(Reader { state: Arc::clone(state), ticket, framer, tokens: 0, torn: false }),
            read,
        ))
    }));
    let body = with_tail(merged, Arc::clone(state), tail);
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], Body::from_stream(body))
        .into_response()
}

/// A fault cut the stream.
struct Torn;

struct Reader {
    state: Arc<State>,
    ticket: Ticket,
    framer: Box<dyn Framer>,
    tokens: usize,
    torn: bool,
}

async fn read(reader: Option<Reader>) -> Option<(Result<Bytes, Torn>, Option<Reader>)> {
    let mut reader = reader?;
    if reader.torn {
        return Some((Err(Torn), None));
    }
    let mut update = reader.ticket.next().await?;
    reader.state.faults.responsive().await;
    reader.tokens += update.ids.len();
    if let Faults { torn_stream_after_tokens: Some(limit), .. } = reader.state.faults.current()
        && reader.tokens >= limit
    {
        update.finish = None;
        reader.torn = true;
    }
    let mut out = String::new();
    reader.framer.frame(&reader.ticket, &update, &mut out);
    let done = update.finish.is_some();
    Some((Ok(Bytes::from(out)), (!done).then_some(reader)))
}

fn with_tail(
    merged: impl Stream<Item = Result<Bytes, Torn>> + Send + Unpin + 'static,
    state: Arc<State>,
    tail: impl FnOnce(&mut String) + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold((Some(tail), merged), move |(tail, mut merged)| {
        let state = Arc::clone(&state);
        async move {
            // Without a tail the last event was written.
            let tail = tail?;
            match merged.next().await {
                Some(Ok(bytes)) => Some((Ok(bytes), (Some(tail), merged))),
                Some(Err(Torn)) if state.faults.current().torn_stream_clean => None,
                Some(Err(Torn)) => Some((Err(io::Error::other("torn by a fault")), (None, merged))),
                None => {
                    let mut out = String::new();
                    tail(&mut out);
                    out.push_str("data: [DONE]\n\n");
                    Some((Ok(Bytes::from(out)), (None, merged)))
                }
            }
        }
    })
}

/// Everything a request produced, for answers without a stream.
pub(crate) async fn collect(state: &State, ticket: &mut Ticket) -> Update {
    let mut whole = Update::default();
    while let Some(update) = ticket.next().await {
        whole.absorb(update);
    }
    state.faults.responsive().await;
    whole
}
