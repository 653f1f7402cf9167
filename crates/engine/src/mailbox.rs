//! The way from the step loop to one reader: what is new since the reader last looked.
//!
//! Not a queue: news is merged while the reader is slow (SGLang coalesces the same way), so the engine never waits for a
//! reader and the memory is bounded by the request's own output. A reader that goes away closes the mailbox, and the
//! step loop drops the request before its next step.

use crate::request::Finish;
use crate::sampling::logprobs::TokenLogprobs;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// News of a request.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// Token ids since the last update.
    pub ids: Vec<u32>,
    /// Text since the last update; whole characters.
    pub text: String,
    /// One per token of `ids` where they were asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Of prompt tokens, with the first update and only where asked for: those after the first one asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    pub cached_tokens: usize,
    pub retractions: u32,
    /// Set once, with the last update.
    pub finish: Option<Finish>,
    pub embedding: Option<Vec<f32>>,
}

impl Update {
    /// Adds the news that came after these.
    pub(crate) fn absorb(&mut self, later: Update) {
        self.ids.extend(later.ids);
        self.text.push_str(&later.text);
        self.logprobs.extend(later.logprobs);
        self.prompt_logprobs.extend(later.prompt_logprobs);
        self.cached_tokens = later.cached_tokens;
        self.retractions = later.retractions;
        self.embedding = later.embedding.or(self.embedding.take());
        self.finish = later.finish;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    news: Mutex<Update>,
    bell: Notify,
    closed: AtomicBool,
    /// Where to say that the reader left, and under which number.
    departure: OnceLock<(Arc<Departures>, u64)>,
}

/// Numbers of requests that their readers left, so that a step need not ask every request that waits.
#[derive(Debug, Default)]
pub(crate) struct Departures(Mutex<Vec<u64>>);

impl Departures {
    /// Those since the last call. One that has ended by itself may be among them.
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Mailbox {
    /// Adds news and wakes the reader. Nothing is added after a finish.
    pub(crate) fn post(&self, change: impl FnOnce(&mut Update)) {
        {
            let mut news = self.news.lock();
            if news.finish.is_some() {
                return;
            }
            change(&mut news);
        }
        self.bell.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// From now on, and if it was before, `departures` hears under `serial` that the reader left.
    pub(crate) fn announce(&self, departures: &Arc<Departures>, serial: u64) {
        if self.departure.set((Arc::clone(departures), serial)).is_err() {
            return;
        }
        // With the fence in `close`: one of the two threads sees what the other has done, or both do.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            departures.0.lock().push(serial);
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some((departures, serial)) = self.departure.get() {
            departures.0.lock().push(*serial);
        }
    }
}

/// The reader's end of a submitted request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) mailbox: Arc<Mailbox>,
    pub rid: String,
    pub prompt_tokens: usize,
    /// Data-parallel rank that serves it.
    pub rank: usize,
    pub arrived: Instant,
    pub(crate) done: bool,
}

impl Ticket {
    /// Waits for news. `None` after the finish was delivered.
    pub async fn next(&mut self) -> Option<Update> {
        if self.done {
            return None;
        }
        loop {
            let update = {
                let mut news = self.mailbox.news.lock();
                let ready = !news.ids.is_empty() || news.finish.is_some();
                let (cached_tokens, retractions) = (news.cached_tokens, news.retractions);
                ready.then(|| std::mem::replace(&mut *news, Update { cached_tokens, retractions, ..Update::default() }))
            };
            if let Some(update) = update {
                self.done = update.finish.is_some();
                return Some(update);
            }
            self.mailbox.bell.notified().await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}
