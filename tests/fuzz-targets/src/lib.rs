//! What fuzzing runs: one function per parser of foreign bytes, which panics when a promise is broken.
//!
//! Why a crate of its own: the same functions run under libFuzzer (`tests/fuzz`, nightly, by hand) and in the normal
//! tests, which replay the committed corpus and a bounded number of seeded mutations of it on stable Rust. "Does not
//! panic" is the least of the promises: each target also compares with a slow and obvious reading of the same bytes.
//! Source: issue 2, bad input.

pub mod chunk;
pub mod headers;
pub mod http_answer;
pub mod kv_events;
pub mod mutate;
pub mod prometheus;
pub mod request;
pub mod settings;
pub mod sse;
pub mod zmtp_frames;

mod json;

/// A parser under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of its folder in `tests/fuzz/corpus`.
    pub name: &'static str,
    /// Panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Mutated inputs in the replay, few where each costs a connection.
    pub mutations: u64,
}

/// All of them; the replay fails when a folder of the corpus has no target or the other way round.
pub const TARGETS: &[Target] = &[
    Target { name: "chunk", run: chunk::run, mutations: 30_000 },
    Target { name: "headers", run: headers::run, mutations: 15_000 },
    Target { name: "http_answer", run: http_answer::run, mutations: 250 },
    Target { name: "kv_events", run: kv_events::run, mutations: 30_000 },
    Target { name: "prometheus", run: prometheus::run, mutations: 20_000 },
    Target { name: "request", run: request::run, mutations: 50_000 },
    Target { name: "settings", run: settings::run, mutations: 900 },
    Target { name: "sse", run: sse::run, mutations: 25_000 },
    Target { name: "zmtp_frames", run: zmtp_frames::run, mutations: 30_000 },
];
