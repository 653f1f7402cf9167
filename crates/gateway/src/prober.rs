//! One task per engine: are you alive, how loaded are you, who are you?
//!
//! A poll of the engine's cheap endpoint is probe and load report in one. It must be answered within
//! `health.probe_timeout_ms`; a failed one is repeated at once, so that a frozen engine is out after two time-outs.
//! It does not count as failed if a stream of that engine moved meanwhile: an engine deep in a long prefill, or with a
//! busy HTTP side, is not a frozen one.
//!
//! Who it is takes several questions, some of which pass through the engine's scheduler. They are asked beside the
//! polls and never count against it, with two exceptions: an engine of which nothing is known, and one that answers
//! again after it was out. That one may be another program by now, so it gets no request before it has said who it is.

mod farewell;
mod identity;

use crate::clock::millis;
use crate::fleet::EngineHandle;
use crate::kv_follow::Following;
use crate::state::Shared;
pub use identity::current_spec;
use identity::identify;
use plimsoll_core::EngineKind;
use plimsoll_load::HealthState;
use plimsoll_pools::capability::Capability;
use plimsoll_pools::loads::{PollState, poll};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// An engine is asked who it is again this often: it may have been upgraded behind its address.
const IDENTIFY_EVERY: Duration = Duration::from_secs(30);

/// The same for one that was too busy for some of the questions.
const INCOMPLETE_AGAIN: Duration = Duration::from_secs(10);

/// The same for one that a poll says has changed.
const CHANGED_AGAIN: Duration = Duration::from_secs(1);

/// As [`plimsoll_pools::http::CallError::Exhausted`] says it: out of file descriptors here.
const EXHAUSTED: &str = "this process cannot open another connection";

/// One that has never answered is asked every so many intervals: who it is takes several questions.
const UNPROVEN_INTERVALS: u32 = 2;

/// Runs until the engine is removed and its last request has ended.
pub async fn run(shared: Arc<Shared>, engine: Arc<EngineHandle>) {
    let mut stopped = engine.stopped();
    let prober = Prober {
        shared: shared.clone(),
        engine: engine.clone(),
        state: None,
        renewals: JoinSet::new(),
        asked: Instant::now(),
        changed: false,
        anew: false,
        following: Following::default(),
    };
    tokio::select! {
        _ = stopped.wait_for(|stop| *stop) => {}
        () = prober.watch() => {}
    }
    farewell::watch(&shared, &engine).await;
}

struct Prober {
    shared: Arc<Shared>,
    engine: Arc<EngineHandle>,
    state: Option<PollState>,
    /// At most one: the questions that are being asked beside the polls.
    renewals: JoinSet<Result<(), String>>,
    /// When they were last begun.
    asked: Instant,
    /// Something says that the engine is not what is known of it.
    changed: bool,
    /// Its counters have begun anew: it is another process.
    anew: bool,
    /// Its KV events.
    following: Following,
}

impl Prober {
    async fn watch(mut self) {
        loop {
            let (shared, engine) = (self.shared.clone(), self.engine.clone());
            let health = shared.settings.load().health.clone();
            let began = Instant::now();
            let began_at = shared.now();
            let was_out = self.is_out();
            let restarts_show = engine.capability.load().as_ref().is_some_and(|known| known.kind == EngineKind::Vllm);
            let result = self.round(millis(health.probe_timeout_ms)).await;
            engine.endpoint().reap_idle();
            let failed = result.is_err();
            match result {
                Ok(()) => {
                    engine.last_error.store(None);
                    let anew = std::mem::take(&mut self.anew);
                    if anew || (was_out && !restarts_show) {
                        self.following.restarted(anew);
                    }
                    if let Some(found) = engine.capability.load_full() {
                        self.following.follow(&shared, &engine, &found);
                    }
                    shared.with_health(|s| s.probe_ok(engine.id, shared.now()));
                }
                Err(error) => {
                    let ours = error.contains(EXHAUSTED);
                    if engine.last_error.load().as_deref() != Some(&error) {
                        let url = engine.endpoint().url().to_owned();
                        tracing::warn!(engine = %engine.id, url, why = error, "engine does not answer as it should");
                    }
                    engine.last_error.store(Some(Arc::new(error)));
                    if ours {
                        // Nothing is said about the engine.
                    } else if engine.last_progress() < began_at {
                        shared.with_health(|s| s.probe_failed(engine.id, shared.now()));
                    } else {
                        shared.with_scheduler(|s| s.progress(engine.id, shared.now()));
                    }
                }
            }
            let interval = millis(health.probe_interval_ms);
            // A first failure is looked at again at once; an engine that is out for good is not hammered.
            let pause = match (failed, *engine.watch_health().borrow()) {
                (true, HealthState::Unproven) => interval * UNPROVEN_INTERVALS,
                (true, HealthState::Healthy | HealthState::HalfOpen) => interval / 10,
                _ => interval.saturating_sub(began.elapsed()),
            };
            tokio::time::sleep(pause.max(Duration::from_millis(20))).await;
        }
    }

    fn is_out(&self) -> bool {
        *self.engine.watch_health().borrow() == HealthState::Ejected
    }

    /// One sign of life, or why there is none.
    async fn round(&mut self, timeout: Duration) -> Result<(), String> {
        let Some(known) = self.engine.capability.load_full() else {
            self.asked = Instant::now();
            let found = identify(&self.shared, &self.engine, timeout).await?;
            return self.poll_once(&found, timeout).await;
        };
        self.poll_once(&known, timeout).await?;
        let restarts_show = known.kind == EngineKind::Vllm;
        if self.is_out() && restarts_show && !self.changed {
            // The same process as before: its counters went on. Back at once, asked beside the polls.
            self.changed = true;
            self.renew(&known, timeout);
        } else if self.is_out() {
            self.renewals.abort_all();
            self.asked = Instant::now();
            self.changed = true;
            identify(&self.shared, &self.engine, timeout).await?;
            let _ = self.engine.take_renewal();
            self.changed = false;
        } else {
            // A request that was sent although all are out may have brought it back before this poll.
            self.renew(&known, timeout);
        }
        Ok(())
    }

    /// Begins to ask who it is, if it is time to.
    fn renew(&mut self, known: &Capability, timeout: Duration) {
        while let Some(done) = self.renewals.try_join_next() {
            if let Ok(Err(why)) = done {
                tracing::debug!(engine = %self.engine.id, why, "the engine does not say who it is; asked again later");
                self.changed = true;
            }
        }
        self.changed |= self.engine.take_renewal();
        let every = match (self.changed, known.complete) {
            (true, _) => CHANGED_AGAIN,
            (false, false) => INCOMPLETE_AGAIN,
            (false, true) => IDENTIFY_EVERY,
        };
        if self.renewals.is_empty() && self.asked.elapsed() >= every {
            self.asked = Instant::now();
            self.changed = false;
            let (shared, engine) = (self.shared.clone(), self.engine.clone());
            self.renewals.spawn(async move { identify(&shared, &engine, timeout).await.map(drop) });
        }
    }

    async fn poll_once(&mut self, capability: &Capability, timeout: Duration) -> Result<(), String> {
        let (shared, id) = (&self.shared, self.engine.id);
        let polled = poll(&self.engine.endpoint(), capability, self.state.as_ref(), shared.now(), timeout)
            .await
            .map_err(|error| format!("no answer to a load poll: {error}"))?;
        let now = shared.now();
        shared.with_scheduler(|s| {
            for report in polled.reports {
                s.report(id, report, now);
            }
        });
        self.changed |= polled.changed;
        self.anew |= polled.changed;
        self.state = Some(polled.state);
        if polled.sign_of_life { Ok(()) } else { Err("the engine answers that it is not up".into()) }
    }
}
