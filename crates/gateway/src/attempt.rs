//! One attempt on one engine: its ledger entry, its id there, and the promise that it ends exactly once.
//!
//! Whatever happens to a request (finish, error, client gone, engine removed, panic), the attempt is either ended by
//! name or dropped. Dropping settles the ledger as cancelled and aborts on the engine, so no path can forget it.

use crate::fleet::EngineHandle;
use crate::metrics::EngineWord;
use crate::owned::TokenRoute;
use crate::record::RecordCell;
use crate::state::Shared;
use crate::traffic::lane::Lane;
use plimsoll_core::{Nanos, Rank};
use plimsoll_load::{AttemptEnd, HealthState, Placed, Ticket};
use plimsoll_pools::abort::{AbortedBy, abort};
use plimsoll_pools::adapter::child_rids;
use plimsoll_pools::capability::AbortForm;
use plimsoll_pools::chunk::Usage;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Longest time an abort call may take.
const ABORT_DEADLINE: Duration = Duration::from_secs(2);

/// One leg of one try.
pub struct Attempt {
    shared: Arc<Shared>,
    pub engine: Arc<EngineHandle>,
    ticket: Ticket,
    /// Index in the decision record.
    index: usize,
    record: RecordCell,
    /// Id the engine knows it by: fixed length, unique per try, never the prefix of another.
    pub rid: String,
    /// It goes there as token ids.
    pub(crate) token_route: Option<TokenRoute>,
    /// Traffic scheduling wants to know when its prefill is over.
    pub(crate) lane: Option<Arc<Lane>>,
    rank: Rank,
    /// Prompts in a batched request: the engine names the children `{rid}_{i}`.
    children: u64,
    health: watch::Receiver<HealthState>,
    /// Placed although its engine is out, since all are: its ejection is no news.
    panic: bool,
    had_first_token: bool,
    /// The request has been handed to a socket: there may be something to abort.
    sent: bool,
    ended: bool,
}

impl Attempt {
    pub fn new(
        shared: &Arc<Shared>,
        engine: Arc<EngineHandle>,
        placed: &Placed,
        record: RecordCell,
        index: usize,
        rid: String,
        children: u64,
    ) -> Self {
        let health = engine.watch_health();
        Attempt {
            shared: shared.clone(),
            engine,
            ticket: placed.ticket,
            index,
            record,
            rid,
            token_route: None,
            lane: None,
            rank: placed.target.rank,
            children,
            health,
            panic: placed.panic,
            had_first_token: false,
            sent: false,
            ended: false,
        }
    }

    /// Placed although its engine is out.
    #[must_use]
    pub fn is_panic(&self) -> bool {
        self.panic
    }

    /// The DP rank to tell the engine; `None` where it has only one.
    #[must_use]
    pub fn pinned_rank(&self) -> Option<u16> {
        let ranks = self.engine.capability.load().as_ref().map_or(1, |c| c.dp_ranks);
        (ranks > 1).then_some(self.rank.0)
    }

    /// The id for vLLM, which makes its internal one from it: readable by the client's, unique by ours. An underscore
    /// would look like a child's number.
    #[must_use]
    pub fn vllm_id(&self) -> String {
        format!("{}-{}", self.record.lock().request_id.replace('_', "-"), self.rid)
    }

    /// The request goes to the socket now.
    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Gives the try a new id, after the engine has been told to stop whatever runs under the old one.
    pub async fn replace_rid(&mut self) {
        if let Some(abort) = self.abort_call() {
            // Past this time the old try is left to the closed connection.
            let _ = tokio::time::timeout(Duration::from_millis(300), abort).await;
        }
        self.rid = new_rid();
        let mut record = self.record.lock();
        if let Some(attempt) = record.attempts.get_mut(self.index) {
            attempt.rid.clone_from(&self.rid);
        }
    }

    /// The engine has produced something: its prefill is over.
    pub fn first_token(&mut self) {
        if !std::mem::replace(&mut self.had_first_token, true) {
            self.shared.first_token(self.ticket);
            if let Some(lane) = &self.lane {
                lane.first_token(self.ticket.request, self.shared.now());
                self.shared.traffic.nudge();
            }
        }
    }

    /// A stream moved: the engine lives.
    pub fn moved(&self, now: Nanos) {
        self.engine.moved(now);
    }

    /// The engine finished it. `usage` as far as it was reported; `step` is the mean time between tokens of one sequence, where it
    /// was seen.
    pub fn complete(mut self, usage: Option<Usage>, step: Option<Nanos>) {
        self.shared.prefilled(self.ticket, usage);
        if let Some(step) = step {
            self.shared.with_scheduler(|s| s.decoded(self.ticket, step));
        }
        self.settle(AttemptEnd::Ok, None);
    }

    /// Ends it; the engine has nothing left to do for it.
    pub fn end(mut self, end: AttemptEnd, error: Option<String>) {
        self.settle(end, error);
    }

    /// Ends it and tells the engine to stop.
    pub fn end_and_abort(mut self, end: AttemptEnd, error: Option<String>) {
        self.settle(end, error);
        self.abort();
    }

    /// Waits until the engine is taken out. Never returns for an attempt placed in panic.
    pub async fn ejected(&mut self) {
        if self.panic {
            return std::future::pending().await;
        }
        loop {
            if *self.health.borrow_and_update() == HealthState::Ejected {
                return;
            }
            if self.health.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn settle(&mut self, end: AttemptEnd, error: Option<String>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.shared.settle(self.ticket, end);
        let result = end_word(end);
        self.shared.metrics.attempts.get_or_create(&EngineWord { engine: self.engine.id.0, result }).inc();
        // Engines quote the request in their errors: words are kept only where prompts may be.
        let keep_words = self.shared.settings.load().telemetry.log_prompts;
        let mut record = self.record.lock();
        if let Some(attempt) = record.attempts.get_mut(self.index) {
            attempt.end = Some(result);
            attempt.error = error.filter(|_| keep_words).or(attempt.error.take());
        }
    }

    /// Tells the engine without waiting for it.
    fn abort(&self) {
        // Outside a runtime (process ending) closing the socket is all that can be done.
        if let (Some(call), Ok(runtime)) = (self.abort_call(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(call);
        }
    }

    /// The abort as work to be run; `None` where nothing has been sent, or closing the connection is all there is.
    fn abort_call(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        let capability = self.engine.capability.load_full().filter(|_| self.sent)?;
        let id = match capability.abort {
            AbortForm::SglangRid => self.rid.clone(),
            AbortForm::VllmInternalId => self.vllm_id(),
            AbortForm::Disconnect => return None,
        };
        let rids = child_rids(&id, usize::try_from(self.children).unwrap_or(usize::MAX));
        let pending = self.shared.pending_aborts.begin();
        let (engine, shared) = (self.engine.clone(), self.shared.clone());
        Some(async move {
            let _pending = pending;
            let report = abort(&engine.endpoint(), &capability, &rids, ABORT_DEADLINE).await;
            let result = match (report.by, report.failure) {
                (_, Some(failure)) => {
                    tracing::debug!(engine = %engine.id, failure, "an abort was not taken");
                    "failed"
                }
                (AbortedBy::Call, None) => "called",
                (AbortedBy::Disconnect, None) => "disconnected",
            };
            shared.metrics.aborts.get_or_create(&EngineWord { engine: engine.id.0, result }).inc();
        })
    }
}

/// 32 hex digits, time-ordered and unique.
#[must_use]
pub fn new_rid() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.settle(AttemptEnd::Cancelled, None);
            self.abort();
        }
    }
}

fn end_word(end: AttemptEnd) -> &'static str {
    match end {
        AttemptEnd::Ok => "ok",
        AttemptEnd::ClientFault => "client_fault",
        AttemptEnd::Cancelled => "cancelled",
        AttemptEnd::Refused { .. } => "refused",
        AttemptEnd::ConnectFailed => "connect_failed",
        AttemptEnd::Failed => "failed",
        AttemptEnd::Stalled => "stalled",
    }
}
