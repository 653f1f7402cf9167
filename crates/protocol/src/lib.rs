//! Wire forms the gateway reads and writes: request bodies, server-sent events, error objects.

pub mod chat_template;
pub mod error_body;
pub mod output_text;
pub mod prompt;
pub mod request;
pub mod sse;
pub mod tokenizer;
pub mod wishes;
