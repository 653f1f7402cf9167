//! HTTP/1.1 towards engines: one pool per engine, connections driven by whoever uses them.
//!
//! Why not a ready-made client: a gateway needs to know *whether the engine may have begun to run a request* when a
//! send fails, must be able to drop a connection at any moment as its way of cancelling, and pays for every task
//! switch on every token. hyper does the protocol; this module owns the sockets. A connection is polled inside the
//! request that uses it, so relaying a token costs no wake-up of a second task, and dropping the request closes the
//! socket at once.
//!
//! Idle connections are kept shorter than the engine's keep-alive (uvicorn closes after 5 s). One that was closed
//! meanwhile is noticed before use; one that closes in the very moment of use is reported as [`SendError::Stale`],
//! which says whether the request had been handed to the socket.

mod conn;
mod endpoint;
mod exchange;
mod out_body;
mod stream;

pub use endpoint::{CallAnswer, CallError, Endpoint, EndpointError, EndpointOptions, Key};
pub use exchange::{BodyError, Exchange, SendError};
pub use out_body::OutBody;

#[cfg(test)]
mod tests;
