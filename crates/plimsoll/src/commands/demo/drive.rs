//! Sends the calls of a workload when they are due and counts what comes back.
//!
//! A session's calls start when the calls they wait for have ended and their pause is over; sessions start at their
//! time. Every call ends in exactly one count, completed or failed by code: a failed call releases those behind it, as
//! an agent goes on after an error.

use super::client::Client;
use super::conversation::{self, Conversation};
use super::fleet::Fleet;
use super::play::play;
use super::source::Source;
use super::stream::{self, Answer, Refusal, SILENCE_LIMIT, refusal};
use super::tally::Tally;
use crate::Failure;
use bytes::Bytes;
use plimsoll_core::Nanos;
use plimsoll_workload::traces::TraceError;
use plimsoll_workload::{Call, Session, Synth};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often a call is repeated when the gateway asks for it (429 or 503 with `Retry-After`).
const MOST_REPEATS: u32 = 8;
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Sessions that may be waiting or running at once; a trace is read no further ahead.
const MOST_SESSIONS: usize = 4_096;

pub(super) struct Drive {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    synth: Synth<'static>,
    model: String,
    chat: bool,
    in_flight: Semaphore,
    tally: Arc<Tally>,
}

impl Drive {
    pub(super) fn new(source: &Source, fleet: &Fleet, concurrency: u16, tally: Arc<Tally>) -> Result<Self, Failure> {
        let synth = Synth::new(&plimsoll_engine::words::WORDS, source.scale())
            .ok_or_else(|| Failure::failed("the engine's word list has duplicates or too few words"))?;
        let shared = Shared {
            client: Client::new(fleet.gateway_url())?,
            synth,
            model: fleet.model().to_owned(),
            chat: source.is_chat(),
            in_flight: Semaphore::new(usize::from(concurrency)),
            tally,
        };
        Ok(Drive { shared: Arc::new(shared) })
    }

    /// Runs all sessions to their end.
    pub(super) async fn run(self, sessions: impl Iterator<Item = Result<Session, TraceError>>) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for session in sessions {
            let session = session.map_err(Failure::failed)?;
            let start = begun + duration(self.shared.synth.scale().time(session.start));
            tokio::time::sleep_until(start).await;
            while running.try_join_next().is_some() {}
            if running.len() >= MOST_SESSIONS {
                running.join_next().await;
            }
            running.spawn(run_session(Arc::clone(&self.shared), session));
        }
        while running.join_next().await.is_some() {}
        Ok(())
    }
}

async fn run_session(shared: Arc<Shared>, session: Session) {
    let conversation = Arc::new(Mutex::new(Conversation::new(&session)));
    let scale = *shared.synth.scale();
    let pause = |pause| duration(scale.pause(pause));
    let call = |call: Call, _due| {
        let (shared, conversation) = (Arc::clone(&shared), Arc::clone(&conversation));
        async move { shared.call(&call, &conversation).await }
    };
    play(session.calls, Instant::now(), pause, call).await;
}

impl Shared {
    async fn call(&self, call: &Call, conversation: &Mutex<Conversation>) {
        let Ok(_permit) = self.in_flight.acquire().await else { return };
        let (path, body) = if self.chat {
            conversation.lock().unwrap_or_else(PoisonError::into_inner).next(&self.model, &self.synth, call)
        } else {
            conversation::completion(&self.model, &self.synth, call)
        };
        let body = Bytes::from(body);
        let begun = std::time::Instant::now();
        let _running = self.tally.started();
        for repeat in 0..=MOST_REPEATS {
            match self.attempt(path, body.clone(), begun).await {
                Ok(answer) => {
                    self.tally.completed(&answer);
                    conversation.lock().unwrap_or_else(PoisonError::into_inner).answered(answer.text);
                    return;
                }
                Err(Refusal { retry_after: Some(pause), .. }) if repeat < MOST_REPEATS => {
                    self.tally.repeated();
                    tokio::time::sleep(pause.min(LONGEST_RETRY_AFTER)).await;
                }
                Err(refusal) => {
                    self.tally.failed(&refusal);
                    return;
                }
            }
        }
    }

    async fn attempt(&self, path: &str, body: Bytes, begun: std::time::Instant) -> Result<Answer, Refusal> {
        let head = tokio::time::timeout(SILENCE_LIMIT, self.client.post(path, body)).await;
        let (response, lease) = head
            .map_err(|_| refusal("client_timeout", "no answer in time"))?
            .map_err(|error| refusal(error.code, error.detail))?;
        let answer = stream::read(response, begun).await?;
        self.client.give_back(lease);
        Ok(answer)
    }
}

fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos.0)
}
