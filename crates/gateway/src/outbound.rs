//! The request as an engine gets it: the client's bytes and headers, plus the few things that are ours.

use crate::attempt::Attempt;
use crate::engine_priority;
use crate::flow::Flow;
use crate::headers::{DEADLINE_MS, REQUEST_ID, TRACEPARENT, TTFT_MS};
use crate::owned::Ownership;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use plimsoll_core::{EngineKind, Nanos};
use plimsoll_pools::adapter::{Adapter, adapter};
use plimsoll_pools::http::{Key, OutBody};
use plimsoll_protocol::request::{Api, Set, splice};
use plimsoll_protocol::wishes::{SPELLINGS, Wish};

/// Builds it for one attempt. Copies no byte of the body.
pub(crate) fn outbound(flow: &Flow, attempt: &Attempt) -> Request<OutBody> {
    let adapter = adapter(attempt.engine.kind());
    let mut headers = flow.headers.clone();
    headers.insert(TRACEPARENT, flow.trace.header());
    time_left(flow, &mut headers);
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
        let priority = engine_priority::of(flow, &attempt.engine).or(flow.wishes.priority.map(i64::from));
        let body = owned.body(&attempt.engine, route, flow.model.as_deref(), &attempt.rid, rank, priority);
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
    // Embeddings are neither worth aborting nor waited for in a queue of priorities.
    if flow.route.api == Api::Embeddings {
        return OutBody::whole(flow.body.clone());
    }
    let set = Set {
        // SGLang knows a request by `rid`, on its own route and on OpenAI's alike.
        rid: adapter.id_key.map(|_| attempt.rid.as_str()),
        rank: rank.filter(|_| flow.route.api == Api::Generate).map(|rank| (adapter.rank_keys, rank)),
        priority: engine_priority::of(flow, &attempt.engine),
    };
    OutBody::spliced(splice(&flow.body, &flow.facts, &set))
}

/// What is left of the client's time as of now: the engine counts from when it sees the request, and what was waited here
/// is gone. A wish that can no longer be met is not passed on: the engine would refuse what may still be of use.
fn time_left(flow: &Flow, headers: &mut HeaderMap) {
    let waited = Nanos(u64::try_from(flow.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let whole_ms = |left: Nanos| HeaderValue::from(left.0.div_ceil(1_000_000).max(1));
    if let Some(remaining) = flow.wishes.remaining {
        headers.insert(DEADLINE_MS, whole_ms(remaining - waited));
    }
    if let Some(ttft) = flow.wishes.ttft {
        for spelling in SPELLINGS.iter().filter(|s| s.wish == Wish::Ttft) {
            headers.remove(spelling.name);
        }
        if ttft > waited {
            headers.insert(TTFT_MS, whole_ms(ttft - waited));
        }
    }
}
