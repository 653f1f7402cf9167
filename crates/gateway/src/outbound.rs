//! The request as an engine gets it: the client's bytes and headers, plus the few things that are ours.

use crate::attempt::Attempt;
use crate::flow::Flow;
use crate::headers::TRACEPARENT;
use http::{Method, Request};
use plimsoll_core::EngineKind;
use plimsoll_pools::http::{Key, OutBody};
use plimsoll_protocol::request::{Api, Splice};

/// Builds it for one attempt. Copies no byte of the body.
pub(crate) fn outbound(flow: &Flow, attempt: &Attempt) -> Request<OutBody> {
    let kind = attempt.engine.kind();
    // SGLang knows a request by `rid`, on its own route and on OpenAI's alike; embeddings are not worth aborting.
    let body = if kind == EngineKind::Sglang && flow.route.api != Api::Embeddings {
        let splice = Splice::with_rid(&flow.body, &flow.facts, &attempt.rid);
        OutBody::spliced(splice.before, splice.inserted, splice.after)
    } else {
        OutBody::whole(flow.body.clone())
    };
    let mut headers = flow.headers.clone();
    headers.insert(TRACEPARENT, flow.trace.header());
    attempt.engine.endpoint.request(Method::POST, &flow.target, headers, Key::Inference, body)
}
