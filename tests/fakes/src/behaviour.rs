//! What the fake does by default ([`Options`]) and what can be changed while it runs ([`Control`]).
//!
//! Both are one flat list, so that a test reads as one line of JSON: `{"fault":{"kind":"stall_after","events":3}}`.

use crate::fault::Fault;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Which family of engine to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    Sglang,
    Vllm,
    Openai,
}

impl Dialect {
    /// How long after the client went away a streaming generation still runs (`sglang.md` §1.6, `engines.md` §2), in ms.
    #[must_use]
    pub const fn notice_stream_ms(self) -> u64 {
        match self {
            Dialect::Sglang => 2_000,
            Dialect::Vllm | Dialect::Openai => 200,
        }
    }

    /// The same for an answer in one piece, in ms.
    #[must_use]
    pub const fn notice_whole_ms(self) -> u64 {
        match self {
            Dialect::Sglang => 4_000,
            Dialect::Vllm | Dialect::Openai => 800,
        }
    }

    /// Time that `/health` takes, in ms: SGLang runs a token through the scheduler and polls once a second.
    #[must_use]
    pub const fn health_ms(self) -> u64 {
        match self {
            Dialect::Sglang => 1_050,
            Dialect::Vllm | Dialect::Openai => 0,
        }
    }
}

/// How to start a fake engine.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Family of engine to be.
    #[arg(long, value_enum, default_value = "sglang")]
    pub dialect: Dialect,
    /// Model name that it serves.
    #[arg(long, default_value = "tiny")]
    pub model: String,
    /// Time before the first token, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub ttft_ms: u64,
    /// Time between tokens, in milliseconds; 0 writes as fast as the socket takes it.
    #[arg(long, default_value_t = 0)]
    pub itl_ms: u64,
    /// Tokens of an answer whose request names no maximum.
    #[arg(long, default_value_t = 16)]
    pub tokens: u64,
    /// Text of each token is padded to this many bytes.
    #[arg(long, default_value_t = 0)]
    pub event_bytes: usize,
    /// Close a connection that is idle for this long, in milliseconds (uvicorn: 5 s).
    #[arg(long, default_value_t = 5_000)]
    pub idle_close_ms: u64,
    /// Requests that run at once; further ones wait.
    #[arg(long)]
    pub max_running: Option<u64>,
    /// Requests that wait at once; further ones are refused.
    #[arg(long)]
    pub max_queued: Option<u64>,
    /// Was started with `--enable-priority-scheduling` (SGLang only; vLLM does not say).
    #[arg(long)]
    pub priority_scheduling: bool,
    /// PEM certificate chain; with `--tls-key` the fake speaks TLS.
    #[arg(long, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM private key.
    #[arg(long, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl Options {
    /// A fake of this family on a free loopback port that answers at once.
    #[must_use]
    pub fn new(dialect: Dialect) -> Options {
        Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            dialect,
            model: "tiny".into(),
            ttft_ms: 0,
            itl_ms: 0,
            tokens: 16,
            event_bytes: 0,
            idle_close_ms: 5_000,
            max_running: None,
            max_queued: None,
            priority_scheduling: false,
            tls_cert: None,
            tls_key: None,
        }
    }
}

/// What `POST /_ctl` accepts. A field that is left out stays as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// One fault for every generation request from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Faults dealt out in turn, one per generation request, for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<Vec<Fault>>,
    /// With `fault` or `faults`: only for so many generation requests, then none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_close_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_stream_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_whole_ms: Option<u64>,
    /// Send the head of a stream before its first token, as SGLang and vLLM do. Off: with the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_headers: Option<bool>,
    /// Read the head of a second request on a connection, then close without a word and without running it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close_on_reuse: Option<bool>,
    /// Paths that answer 404 although this family has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_paths: Option<Vec<String>>,
    /// Paths that take the request and never answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_paths: Option<Vec<String>>,
    /// Stop listening for this long, in milliseconds, so that connects are refused by the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuse_ms: Option<u64>,
    /// Close every idle connection now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub close_idle: bool,
    /// Set the counters to zero (running ones keep running).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset_counters: bool,
}
