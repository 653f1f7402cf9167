//! Machine-readable error codes: the one table that clients, docs and tests share.
//!
//! Design rule 9: 400 for what the client got wrong, 429 with `Retry-After` for what it may repeat, 503 when there is
//! no capacity, 504 for a deadline that passed. `docs/reference/errors.md` is generated from [`ErrorCode::ALL`].

use serde::Serialize;
use std::fmt;

macro_rules! codes {
    ($($variant:ident = $name:literal, $status:literal, $kind:literal, $doc:literal;)+) => {
        /// `error.code` in every error object this program writes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode { $(#[doc = $doc] $variant,)+ }

        impl ErrorCode {
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $name,)+ }
            }

            /// HTTP status when the error is answered before a stream began.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(ErrorCode::$variant => $status,)+ }
            }

            /// OpenAI's `error.type`.
            #[must_use]
            pub const fn kind(self) -> &'static str {
                match self { $(ErrorCode::$variant => $kind,)+ }
            }

            /// What happened and what to do, for the reference page.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $(ErrorCode::$variant => $doc,)+ }
            }
        }
    };
}

codes! {
    InvalidJson = "invalid_json", 400, "invalid_request_error", "The body is not valid JSON. Send a JSON object.";
    InvalidRequest = "invalid_request", 400, "invalid_request_error", "A field has a wrong type or an impossible value. The message names it.";
    InvalidHeader = "invalid_header", 400, "invalid_request_error", "A header cannot be used as sent. The message names it.";
    EmptyBody = "empty_body", 400, "invalid_request_error", "The endpoint needs a JSON body.";
    Unauthorized = "unauthorized", 401, "authentication_error", "No API key, or one that is not known here. Send `Authorization: Bearer KEY`.";
    NotFound = "not_found", 404, "invalid_request_error", "No such path.";
    ModelNotFound = "model_not_found", 404, "invalid_request_error", "No engine serves this model. `GET /v1/models` lists those that are served.";
    MethodNotAllowed = "method_not_allowed", 405, "invalid_request_error", "The path exists, the method does not fit. `Allow` names those that do.";
    RequestTimeout = "request_timeout", 408, "invalid_request_error", "The request body did not arrive in time.";
    BodyTooLarge = "body_too_large", 413, "invalid_request_error", "The body is larger than `limits.body_bytes`.";
    IdempotencyInFlight = "idempotency_in_flight", 409, "invalid_request_error", "A request with this `Idempotency-Key` is being answered, and its answer (a stream, or a very large one) cannot be given twice. Repeat when it has ended.";
    UnsupportedMediaType = "unsupported_media_type", 415, "invalid_request_error", "Send `content-type: application/json` without content encoding.";
    IdempotencyMismatch = "idempotency_mismatch", 422, "invalid_request_error", "Another request runs under this `Idempotency-Key`. Use a new key for a new request.";
    HeadersTooLarge = "headers_too_large", 431, "invalid_request_error", "The request's headers are more or larger than `limits.header_count` and `limits.header_bytes`.";
    EngineOverloaded = "engine_overloaded", 429, "overloaded_error", "Every engine that could serve this refused for lack of room. Repeat after `Retry-After`.";
    QuotaClass = "quota_class", 429, "overloaded_error", "The fleet is near its limit and the request's class has had its share. Repeat after `Retry-After`.";
    QuotaTenant = "quota_tenant", 429, "rate_limit_error", "The tenant has had its share of its class, or its configured rate. Repeat after `Retry-After`.";
    RetryBudget = "retry_budget", 429, "rate_limit_error", "The fleet is busy and the tenant's repetitions exceed their budget. Repeat later and less often.";
    QueueFull = "queue_full", 429, "overloaded_error", "Too much waits already that is at least as important. Repeat after `Retry-After`.";
    SloUnattainable = "slo_unattainable", 429, "overloaded_error", "The request cannot be served in the time it allows. The message names the predicted time. Repeat elsewhere, later, or with more time.";
    WaitBudget = "wait_budget", 429, "overloaded_error", "The request has waited for an engine as long as it may. Repeat after `Retry-After`.";
    EngineFailed = "engine_failed", 502, "engine_error", "The engine failed before it produced anything, and no retry was left.";
    EngineBadResponse = "engine_bad_response", 502, "engine_error", "The engine sent something that is not an answer (HTML, broken JSON, a broken HTTP message).";
    EngineTruncated = "engine_truncated", 502, "engine_error", "The engine's stream ended without a finish reason. What came before it is not complete.";
    EngineAborted = "engine_aborted", 502, "engine_error", "The engine aborted the request inside its stream.";
    NoCapacity = "no_capacity", 503, "overloaded_error", "No engine of this model can take a request now, or none could be reached. Repeat after `Retry-After`.";
    ShuttingDown = "shutting_down", 503, "overloaded_error", "This gateway is stopping. Repeat against another one.";
    EngineStalled = "engine_stalled", 504, "engine_error", "The engine sent nothing for longer than the idle time-out of the request's class.";
    DeadlineExceeded = "deadline_exceeded", 504, "timeout_error", "The request's own deadline passed before it was answered.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
