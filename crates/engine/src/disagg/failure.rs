//! How a leg fails, in SGLang's words.

use super::config::Role;
use crate::transfer::TransferError;

/// How far it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The two legs had not met.
    Bootstrap,
    Transfer,
}

/// Which leg of which request it is, for texts.
#[derive(Clone, Debug)]
pub(crate) struct LegName {
    pub(crate) role: Role,
    pub(crate) rid: String,
    pub(crate) room: u64,
    pub(crate) rank: usize,
}

/// Why a leg ends without its pages; it becomes an abort with status 500.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) phase: Phase,
    pub(crate) message: String,
}

impl Failure {
    /// Of a task that said nothing.
    pub(crate) fn unknown() -> Self {
        Failure { phase: Phase::Transfer, message: "KV transfer failed: its task has ended".to_owned() }
    }
}

impl LegName {
    pub(crate) fn failed(&self, phase: Phase, error: &TransferError) -> Failure {
        let LegName { role, rid, room, rank } = self;
        let (what, request) = match (role, phase) {
            (Role::Decode, Phase::Bootstrap) => ("Decode handshake", "decode_req.req"),
            (Role::Decode, Phase::Transfer) => ("Decode transfer", "decode_req.req"),
            (_, Phase::Bootstrap) => ("Prefill bootstrap", "req"),
            (_, Phase::Transfer) => ("Prefill transfer", "req"),
        };
        let message = format!(
            "{what} failed for request rank={rank} {request}.rid='{rid}' {request}.bootstrap_room={room} with exception \
             KVTransferError(bootstrap_room={room}): {error}"
        );
        Failure { phase, message }
    }
}
