//! The request as an engine gets it: the client's bytes and headers, plus the few things that are ours.

use crate::attempt::Attempt;
use crate::flow::Flow;
use crate::headers::{REQUEST_ID, TRACEPARENT};
use crate::owned::Ownership;
use http::{HeaderName, HeaderValue, Method, Request};
use plimsoll_core::EngineKind;
use plimsoll_pools::adapter::{Adapter, adapter};
use plimsoll_pools::http::{Key, OutBody};
use plimsoll_protocol::request::{Api, Splice};

/// Builds it for one attempt. Copies no byte of the body.
pub(crate) fn outbound(flow: &Flow, attempt: &Attempt) -> Request<OutBody> {
    let adapter = adapter(attempt.engine.kind());
    let mut headers = flow.headers.clone();
    headers.insert(TRACEPARENT, flow.trace.header());
    // The ledger has charged a rank: the engine is told which, and never by the client.
    let rank = attempt.pinned_rank();
    if let Some(name) = adapter.rank_header {
        headers.remove(name);
        if let Some(rank) = rank {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(rank));
        }
    }
    if adapter.kind == EngineKind::Vllm
        && let Ok(id) = HeaderValue::from_str(&attempt.vllm_id())
    {
        headers.insert(REQUEST_ID, id);
    }
    if let (Ownership::Gateway(owned), Some(route)) = (&flow.ownership, attempt.token_route) {
        let body = owned.body(&attempt.engine, route, flow.model.as_deref(), &attempt.rid, rank);
        return attempt.engine.endpoint().request(
            Method::POST,
            route.path(),
            headers,
            Key::Inference,
            OutBody::whole(body),
        );
    }
    let body = body(flow, attempt, adapter, rank);
    attempt.engine.endpoint().request(Method::POST, &flow.target, headers, Key::Inference, body)
}

fn body(flow: &Flow, attempt: &Attempt, adapter: &Adapter, rank: Option<u16>) -> OutBody {
    // SGLang knows a request by `rid`, on its own route and on OpenAI's alike; embeddings are not worth aborting.
    if adapter.id_key.is_none() || flow.route.api == Api::Embeddings {
        return OutBody::whole(flow.body.clone());
    }
    let rank_keys = if flow.route.api == Api::Generate && rank.is_some() { adapter.rank_keys } else { &[] };
    let splice = Splice::with_rid_and_rank(&flow.body, &flow.facts, &attempt.rid, rank_keys, rank.unwrap_or_default());
    OutBody::spliced([splice.before, splice.inserted, splice.after, splice.rank, splice.end])
}
