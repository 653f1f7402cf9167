//! Where finished requests become trace spans. The exporter is behind this seam so that the request path only ever
//! hands over one small struct.

use crate::trace_context::TraceContext;
use plimsoll_core::Outcome;
use std::sync::Arc;
use std::time::SystemTime;

/// One request as a span.
#[derive(Clone, Debug)]
pub struct RequestSpan {
    pub context: TraceContext,
    pub route: &'static str,
    pub start: SystemTime,
    pub end: SystemTime,
    pub outcome: Outcome,
    /// Attribute names follow OpenTelemetry's semantic conventions for generative AI where one exists.
    pub attributes: Vec<(&'static str, String)>,
    /// Moments inside the request: name and time.
    pub events: Vec<(&'static str, SystemTime)>,
}

/// Takes spans; must not block.
pub type SpanSink = Arc<dyn Fn(RequestSpan) + Send + Sync>;
