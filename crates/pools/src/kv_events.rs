//! KV events as SGLang and vLLM publish them over ZMQ: decoding them, and listening.
//!
//! The forms drift between releases: batches and events are arrays or maps, block names are signed, unsigned or bytes,
//! fields come and go. So the decoder takes what it knows by name or by place, passes over what it does not know and says how much
//! that was; it never trusts a length that the bytes cannot back.

mod decode;
mod msgpack;
mod subscribe;

pub use decode::{DecodeError, decode_batch};
pub use subscribe::{Heard, Source, Subscription};
