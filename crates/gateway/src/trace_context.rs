//! W3C trace context (<https://www.w3.org/TR/trace-context/>): the client's trace goes on through the engine.

use http::HeaderValue;

/// Trace and span of one request at this hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: u128,
    /// Span of the caller; `None` where the trace starts here.
    pub parent_span_id: Option<u64>,
    /// This hop's span.
    pub span_id: u64,
    pub sampled: bool,
}

impl TraceContext {
    /// Continues the client's context, or begins one. `random` supplies the ids, `sample` decides for a new trace.
    #[must_use]
    pub fn continue_or_start(incoming: Option<&HeaderValue>, random: (u128, u64), sample: bool) -> Self {
        let span_id = random.1 | 1;
        match incoming.and_then(|v| v.to_str().ok()).and_then(parse) {
            Some((trace_id, parent, sampled)) => {
                TraceContext { trace_id, parent_span_id: Some(parent), span_id, sampled }
            }
            None => TraceContext { trace_id: random.0 | 1, parent_span_id: None, span_id, sampled: sample },
        }
    }

    /// `traceparent` for the engine.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled));
        // Hex digits and dashes are always a header value.
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

fn parse(value: &str) -> Option<(u128, u64, bool)> {
    let value = value.trim();
    // Lower-case hex digits only; the number parser below would also take a sign.
    if !value.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-')) {
        return None;
    }
    let mut parts = value.split('-');
    let version = parts.next().filter(|v| v.len() == 2 && *v != "ff")?;
    u8::from_str_radix(version, 16).ok()?;
    let trace = parts.next().filter(|t| t.len() == 32)?;
    let span = parts.next().filter(|s| s.len() == 16)?;
    let flags = parts.next().filter(|f| f.len() == 2)?;
    if version == "00" && parts.next().is_some() {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|t| *t != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|s| *s != 0)?;
    Some((trace, span, u8::from_str_radix(flags, 16).ok()? & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_trace_goes_on() {
        let incoming = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let context = TraceContext::continue_or_start(Some(&incoming), (7, 8), false);
        assert_eq!(context.parent_span_id, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!(context.header(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000009-01");
    }

    #[test]
    fn a_broken_context_starts_a_new_trace() {
        for bad in [
            "",
            "+0-+bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-+1",
            "00-0-0-0",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            let context = TraceContext::continue_or_start(HeaderValue::from_str(bad).ok().as_ref(), (6, 8), true);
            assert_eq!((context.trace_id, context.parent_span_id, context.sampled), (7, None, true), "{bad}");
        }
    }
}
