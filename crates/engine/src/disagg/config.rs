//! The role of an engine, and what it needs to know for it.

use crate::transfer::Secret;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// What an engine does of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    #[default]
    Unified,
    /// Prompt and first token.
    Prefill,
    /// Every token after the first.
    Decode,
}

impl Role {
    /// SGLang's `--disaggregation-mode`.
    #[must_use]
    pub fn mode(self) -> &'static str {
        match self {
            Role::Unified => "null",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }

    /// SGLang's metric label `engine_type`.
    #[must_use]
    pub fn engine_type(self) -> &'static str {
        match self {
            Role::Unified => "unified",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

/// Settings of a prefill or decode engine.
#[derive(Clone, Debug)]
pub struct DisaggConfig {
    pub role: Role,
    /// Where a prefill engine waits for decode engines.
    pub bootstrap_host: IpAddr,
    /// As above; for a decode engine the port of prefill engines whose requests name none. 0 takes a free one.
    pub bootstrap_port: u16,
    /// How long one leg waits for the other to appear.
    pub handshake: Duration,
    /// Longest silence of the other engine.
    pub deadline: Duration,
    /// What both engines must know. `None`: nothing.
    pub secret: Option<Secret>,
    /// Buffers of about a megabyte for pages on their way, all requests together.
    pub buffers: usize,
}

impl Default for DisaggConfig {
    fn default() -> Self {
        DisaggConfig {
            role: Role::Unified,
            bootstrap_host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            bootstrap_port: 8998,
            handshake: Duration::from_secs(5),
            deadline: Duration::from_secs(5),
            secret: None,
            buffers: 64,
        }
    }
}
