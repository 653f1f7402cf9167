//! Generations in flight: who waits, who runs, and how one is aborted.
//!
//! SGLang's `/abort_request` matches by **prefix** over everything in flight, refuses a rid that is already in flight and
//! ignores an empty one (`sglang.md` §1.3, §1.7). A slot leaves the set when it is dropped, whatever ended it.

use crate::state::State;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct Running {
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    rid: String,
    runs: bool,
    abort: watch::Sender<bool>,
}

impl Running {
    /// (in flight, of these running)
    pub(crate) fn sizes(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.entries.values().filter(|entry| entry.runs).count() as u64)
    }

    /// Aborts everything whose rid starts with `rid`; `None` aborts all.
    pub(crate) fn abort(&self, rid: Option<&str>) {
        for entry in self.entries.values() {
            if rid.is_none_or(|rid| entry.rid.starts_with(rid)) {
                entry.abort.send_replace(true);
            }
        }
    }
}

/// One generation's place.
pub(crate) struct Slot {
    state: Arc<State>,
    key: u64,
    abort: watch::Receiver<bool>,
}

pub(crate) enum Refused {
    /// This rid is in flight already.
    Duplicate,
    QueueFull,
}

/// The generation was aborted by its rid.
#[derive(Debug)]
pub(crate) struct Aborted;

impl Slot {
    pub(crate) fn take(state: &Arc<State>, rid: &str) -> Result<Slot, Refused> {
        let mut running = state.running.lock();
        if state.options.dialect == crate::Dialect::Sglang && running.entries.values().any(|entry| entry.rid == rid) {
            return Err(Refused::Duplicate);
        }
        let (in_flight, runs) = running.sizes();
        let room = state.options.max_running.is_none_or(|max| runs < max);
        if !room && state.options.max_queued.is_some_and(|max| in_flight - runs >= max) {
            return Err(Refused::QueueFull);
        }
        let key = running.next;
        running.next += 1;
        let (abort, receiver) = watch::channel(false);
        running.entries.insert(key, Entry { rid: rid.to_owned(), runs: room, abort });
        let in_flight = running.entries.len() as u64;
        drop(running);
        state.count(|counters| {
            counters.generations += 1;
            counters.peak_in_flight = counters.peak_in_flight.max(in_flight);
            crate::state::remember(&mut counters.rids, rid);
        });
        Ok(Slot { state: state.clone(), key, abort: receiver })
    }

    /// Waits for a place in the running set.
    pub(crate) async fn run(&mut self) -> Result<(), Aborted> {
        loop {
            let freed = self.state.freed.notified();
            {
                let mut running = self.state.running.lock();
                let (_, runs) = running.sizes();
                let room = self.state.options.max_running.is_none_or(|max| runs < max);
                if let Some(entry) = running.entries.get_mut(&self.key)
                    && (entry.runs || room)
                {
                    entry.runs = true;
                    return Ok(());
                }
            }
            tokio::select! {
                () = freed => {}
                () = aborted(&mut self.abort) => return Err(Aborted),
            }
        }
    }

    pub(crate) async fn sleep(&mut self, wait: Duration) -> Result<(), Aborted> {
        if *self.abort.borrow() {
            return Err(Aborted);
        }
        if wait.is_zero() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = aborted(&mut self.abort) => Err(Aborted),
        }
    }

    /// Waits for an abort and nothing else.
    pub(crate) async fn aborted(&mut self) {
        aborted(&mut self.abort).await;
    }
}

async fn aborted(abort: &mut watch::Receiver<bool>) {
    if abort.wait_for(|aborted| *aborted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.state.running.lock().entries.remove(&self.key);
        self.state.freed.notify_waiters();
    }
}
