//! The role of an engine, and what it needs to know for it.

use crate::transfer::Secret;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
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
    /// The bootstrap port, when it is open already: see [`DisaggConfig::listen`].
    pub listener: Option<Arc<TcpListener>>,
}

impl DisaggConfig {
    /// Opens the bootstrap port of a prefill engine, so that nobody who finds the engine's own address open is refused
    /// there. Without it the port is opened when the engine starts to serve.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn listen(&mut self) -> io::Result<()> {
        if self.role == Role::Prefill {
            let listener = TcpListener::bind((self.bootstrap_host, self.bootstrap_port))?;
            listener.set_nonblocking(true)?;
            self.listener = Some(Arc::new(listener));
        }
        Ok(())
    }

    pub(crate) fn listener(&mut self) -> io::Result<tokio::net::TcpListener> {
        if self.listener.is_none() {
            self.listen()?;
        }
        match &self.listener {
            Some(listener) => tokio::net::TcpListener::from_std(listener.try_clone()?),
            None => Err(io::Error::other("only a prefill engine has a bootstrap port")),
        }
    }
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
            listener: None,
        }
    }
}
