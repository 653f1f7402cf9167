//! Moving a running request to another engine while its tokens keep flowing.
//!
//! Three phases, as the article describes them under cross-bucket hot migration: *prepare* (the target reserves, the
//! source ships the blocks it has while it goes on emitting), *freeze* (the source stops between two steps and ships what
//! is left, which is little however long the context), *commit* (the request goes on at the target with the next token).
//! Whoever drives it sends the verbs over HTTP (`server/migrations.rs`) and carries the client's stream across; blocks go
//! from engine to engine.
//!
//! - [`protocol`]: who may emit, as two pure state machines with the diagram.
//! - `outgoing`, `incoming`: one migration at its source and at its target.
//! - `desk`: all migrations of an engine, on the step thread: verbs in, reports out, expiry.
//! - `notes`: what the two engines say to each other besides pages.
//! - `carrier`: the connections.

pub(crate) mod desk;
mod incoming;
mod notes;
mod outgoing;
pub(crate) mod protocol;
pub(crate) mod report;
