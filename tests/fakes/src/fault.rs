//! Faults: each one is something that an engine, a proxy in front of it or a dying machine has been seen to do
//! (`gateways.md` §3.3 and §5, `sglang.md` §1.4).

use serde::{Deserialize, Serialize};

/// What to do wrong with a generation request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// Nothing wrong.
    #[default]
    None,
    /// Answer this status with an error object of the family, without running anything.
    Status {
        status: u16,
        #[serde(default)]
        retry_after_s: Option<u64>,
    },
    /// Take the request and never write a byte.
    HangBeforeHeaders,
    /// Write the head of the answer, then nothing.
    HangAfterHeaders,
    /// Take the request, then close without a byte.
    CloseBeforeHeaders,
    /// Close the connection in the middle of the chunked body.
    CutAfter { events: u64 },
    /// End the body as a good one ends, but without finish reason and without `[DONE]`.
    EndAfter { events: u64 },
    /// Send nothing more, keep the connection.
    StallAfter { events: u64 },
    /// Send an SSE event with an error object, then `[DONE]`.
    ErrorEventAfter { events: u64 },
    /// Abort inside the 200 stream. `as_error`: an error object instead of a chunk with finish reason `abort`.
    AbortAfter {
        events: u64,
        #[serde(default)]
        status_code: Option<u16>,
        #[serde(default)]
        as_error: bool,
    },
    /// Send an event whose data is not JSON.
    BadJsonAfter { events: u64 },
    /// Bytes that are not HTTP.
    Garbage,
    /// 200 with a page of HTML.
    Html,
    /// 200 with a JSON content type and half an object.
    BadJson,
    /// `content-length` smaller than the body.
    LengthShort,
    /// `content-length` larger than the body.
    LengthLong,
    /// Response headers that never end (until 64 MiB).
    EndlessHeaders,
    /// One SSE event of this many bytes.
    HugeEvent { bytes: usize },
}
