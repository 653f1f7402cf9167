//! Sends every request when it is due, and takes down what came of it.

use super::verdict::Request;
use crate::Failure;
use crate::commands::demo::client::Client;
use crate::commands::demo::play::play;
use crate::commands::demo::stream;
use bytes::Bytes;
use plimsoll_core::Nanos;
use plimsoll_workload::{Call, Prompt, Session};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Token ids that are no special ones: so many, from this one on.
const FIRST_ID: u64 = 3;
const IDS: u64 = 190;

pub(super) struct Drive {
    shared: Arc<Shared>,
    longest_pause: Option<Nanos>,
}

struct Shared {
    client: Client,
    done: Mutex<Done>,
}

/// How many by code, and what the first of them was told.
pub(super) type Failed = BTreeMap<String, (u64, String)>;

/// Answers, what failed by its code and by how much each request was sent too late, in milliseconds.
type Done = (Vec<Request>, Failed, Vec<f64>);

impl Drive {
    pub(super) fn new(gateway: &str, longest_pause: Option<Nanos>) -> Result<Self, Failure> {
        let shared = Shared { client: Client::new(gateway)?, done: Mutex::default() };
        Ok(Drive { shared: Arc::new(shared), longest_pause })
    }

    /// Runs all sessions to their end.
    pub(super) async fn run(self, sessions: &[Session]) -> Done {
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for session in sessions {
            let start = begun + Duration::from_nanos(session.start.0);
            sleep_until(start).await;
            let (shared, longest, calls) = (Arc::clone(&self.shared), self.longest_pause, session.calls.clone());
            running.spawn(async move {
                let pause = |pause: Nanos| Duration::from_nanos(longest.map_or(pause, |longest| pause.min(longest)).0);
                let call = |call: Call, due| {
                    let shared = Arc::clone(&shared);
                    async move { shared.call(&call, due).await }
                };
                play(calls, start, pause, call).await;
            });
            while running.try_join_next().is_some() {}
        }
        while running.join_next().await.is_some() {}
        std::mem::take(&mut *self.shared.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shared {
    async fn call(&self, call: &Call, due: Instant) {
        let late_ms = due.elapsed().as_secs_f64() * 1e3;
        let outcome = ask(&self.client, call, due).await;
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.2.push(late_ms);
        match outcome {
            Ok(request) => done.0.push(request),
            Err((code, message)) => {
                let failed = done.1.entry(code).or_insert((0, message));
                failed.0 += 1;
            }
        }
    }
}

/// One request and its whole answer; else a code and what was told.
pub(super) async fn ask(client: &Client, call: &Call, due: Instant) -> Result<Request, (String, String)> {
    let posted = client.post("/v1/completions", body(call)).await;
    let (response, lease) = posted.map_err(|error| (error.code.to_owned(), error.detail))?;
    let answer = stream::read(response, due.into_std()).await.map_err(|refusal| (refusal.code, refusal.message))?;
    client.give_back(lease);
    let usage = answer.usage.ok_or_else(|| ("no_usage".to_owned(), String::new()))?;
    Ok(Request {
        ttft_ms: answer.ttft.as_secs_f64() * 1e3,
        decode_ms: answer.gaps.iter().sum::<Duration>().as_secs_f64() * 1e3,
        output_tokens: usage.completion_tokens,
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens(),
        engine: answer.engine.and_then(|id| id.parse().ok()).unwrap_or(u32::MAX),
    })
}

/// The prompt as token ids, so that the gateway and the engine agree on what it is.
fn body(call: &Call) -> Bytes {
    let mut text = String::with_capacity(call.prompt.tokens() as usize * 4 + 200);
    text.push_str(
        "{\"model\":\"plimsoll-tiny\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,",
    );
    let _ = write!(text, "\"temperature\":0,\"max_tokens\":{},\"prompt\":[", call.output_tokens);
    for (at, id) in ids(&call.prompt).enumerate() {
        let _ = write!(text, "{}{id}", if at > 0 { "," } else { "" });
    }
    text.push_str("]}");
    Bytes::from(text)
}

/// Equal blocks have equal tokens, and others differ within a page.
fn ids(prompt: &Prompt) -> impl Iterator<Item = u64> + '_ {
    let full = prompt.block_ids().map(|id| (id, prompt.block_tokens));
    let tail = prompt.tail.map(|tail| (tail.id, tail.tokens));
    full.chain(tail).flat_map(|(id, tokens)| {
        (0..tokens).map(move |at| {
            let mixed = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            FIRST_ID + (mixed >> 40) % IDS
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_workload::{Run, Tail};

    #[test]
    fn prompts_share_as_many_tokens_as_they_share_blocks() {
        let prompt = |last: u64| Prompt {
            block_tokens: 16,
            runs: vec![Run { first: 7, len: 2 }, Run { first: last, len: 1 }],
            tail: Some(Tail { id: 99, tokens: 5 }),
        };
        let (a, b): (Vec<u64>, Vec<u64>) = (ids(&prompt(40)).collect(), ids(&prompt(41)).collect());
        assert_eq!((a.len(), b.len()), (53, 53));
        let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        assert!((32..40).contains(&common), "{common}");
        assert!(a.iter().all(|id| (FIRST_ID..FIRST_ID + IDS).contains(id)));
    }
}
