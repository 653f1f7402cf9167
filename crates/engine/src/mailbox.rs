//! The way from the step loop to one reader: what is new since the reader last looked.
//!
//! Not a queue: news is merged while the reader is slow (SGLang coalesces the same way), so the engine never waits for a
//! reader and the memory is bounded by the request's own output. A reader that goes away closes the mailbox, and the
//! step loop drops the request before its next step. That of a migrated request waits a little for another reader.
//!
//! Tokens of most requests come here in the [`postman`]'s bag, a step's tokens together, and are turned into text by whom
//! reads them. The end of such a request is posted at once and may overtake them, so it says after how many tokens it counts.

use crate::refusal::Refusal;
use crate::request::Finish;
use crate::sampling::logprobs::TokenLogprobs;
use kept::{Kept, Place};
use news::{News, Spelling};
use parking_lot::Mutex;
use plimsoll_protocol::tokenizer::Detokenizer;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

mod kept;
mod news;
pub(crate) mod postman;
#[cfg(test)]
mod tests;

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
    /// Of them, those that came from the offload tier.
    pub host_tokens: usize,
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
        self.host_tokens = later.host_tokens;
        self.retractions = later.retractions;
        self.embedding = later.embedding.or(self.embedding.take());
        self.finish = later.finish;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    news: Mutex<News>,
    /// In place of `news`, for a request that came by migration.
    kept: Option<Mutex<Kept>>,
    bell: Notify,
    closed: AtomicBool,
    /// The scheduler has looked at it and it stays.
    settled: AtomicBool,
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
    /// One that forgets nothing and is closed when nobody has read for `linger`.
    pub(crate) fn keeping(now: Instant, linger: Duration) -> Self {
        Mailbox { kept: Some(Mutex::new(Kept::new(now, linger))), ..Mailbox::default() }
    }

    /// The request begins to run: how long nobody has read is counted from now on.
    pub(crate) fn begin_lingering(&self, now: Instant) {
        if let Some(kept) = &self.kept {
            kept.lock().begin_lingering(now);
        }
    }

    /// Adds news and wakes the reader. Nothing is added after a finish.
    pub(crate) fn post(&self, change: impl FnOnce(&mut Update)) {
        if self.put(change) {
            self.ring();
        }
    }

    /// As [`Self::post`], and leaves it to the caller to wake the reader: false when there is nothing to wake it for.
    pub(crate) fn put(&self, change: impl FnOnce(&mut Update)) -> bool {
        if let Some(kept) = &self.kept {
            return kept.lock().add(change);
        }
        self.news.lock().add(change)
    }

    /// From now on tokens come by [`Self::deposit`], and the reader makes their text with this.
    pub(crate) fn read_by(&self, stream: Detokenizer) {
        self.news.lock().read_by(stream);
    }

    /// Adds a token; to wake the reader is left to the caller.
    pub(crate) fn deposit(&self, token: u32) {
        self.news.lock().deposit(token);
    }

    /// Posts the end, which counts after so many deposited tokens. Nothing happens after another end.
    pub(crate) fn end(&self, after_tokens: usize, finish: Finish, embedding: Option<Vec<f32>>) {
        let complete = match &self.kept {
            Some(_) => self.put(|update| (update.finish, update.embedding) = (Some(finish), embedding)),
            None => self.news.lock().end(after_tokens, finish, embedding),
        };
        if complete {
            self.ring();
        }
    }

    /// Wakes the reader.
    pub(crate) fn ring(&self) {
        if self.kept.is_some() {
            self.bell.notify_waiters();
        } else {
            self.bell.notify_one();
        }
    }

    /// The scheduler keeps the request: for now it is not refused.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// `None` while the scheduler has not looked at the request.
    fn verdict(&self) -> Option<Result<(), Refusal>> {
        let news = self.news.lock();
        match news.finish() {
            Some(Finish::Refused(refusal)) => Some(Err(refusal.clone())),
            Some(_) => Some(Ok(())),
            None => (news.has_tokens() || self.settled.load(Ordering::Acquire)).then_some(Ok(())),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        match &self.kept {
            Some(kept) => kept.lock().is_left(),
            None => self.closed.load(Ordering::Acquire),
        }
    }

    /// Output tokens posted so far, where everything is kept.
    pub(crate) fn kept_tokens(&self) -> Option<usize> {
        self.kept.as_ref().map(|kept| kept.lock().tokens())
    }

    /// The place of a new reader that has the first `tokens` of the output, and what it is taken to have; the reader
    /// before it gets nothing more. `None` where output is not kept.
    pub(crate) fn attach(&self, tokens: usize) -> Option<(Place, Update)> {
        let attached = self.kept.as_ref()?.lock().attach(tokens);
        self.bell.notify_waiters();
        Some(attached)
    }

    /// The reader's next update; `None` while there is nothing new.
    fn take(&self, place: Option<&mut Place>, spelling: &mut Spelling) -> Option<Update> {
        if let (Some(kept), Some(place)) = (&self.kept, place) {
            let replaced = || Some(Update { finish: Some(replaced()), ..Update::default() });
            return kept.lock().read(place).unwrap_or_else(|()| replaced());
        }
        let mut update = self.news.lock().take(spelling)?;
        spelling.spell(&mut update);
        Some(update)
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
        self.depart();
    }

    /// Says again that the reader left, if it has: for a request that was not there when it was said.
    pub(crate) fn repeat_departure(&self) {
        if self.closed.load(Ordering::SeqCst) {
            self.depart();
        }
    }

    fn depart(&self) {
        if let Some((departures, serial)) = self.departure.get() {
            departures.0.lock().push(*serial);
        }
    }

    /// Whether it waits for another reader when one leaves. Nobody is told of that.
    pub(crate) fn lingers(&self) -> bool {
        self.kept.is_some()
    }
}

/// What a reader learns when another one has taken its place.
fn replaced() -> Finish {
    Finish::Abort { message: "Another reader has attached.".to_owned(), status: Some(409) }
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
    /// Where the output is kept.
    pub(crate) place: Option<Place>,
    /// Where it is made here.
    pub(crate) spelling: Spelling,
}

impl Ticket {
    #[cfg(test)]
    pub(crate) fn bare(mailbox: Arc<Mailbox>) -> Self {
        let (rid, arrived) = (String::new(), Instant::now());
        Ticket {
            mailbox,
            rid,
            prompt_tokens: 0,
            rank: 0,
            arrived,
            done: false,
            place: None,
            spelling: Spelling::default(),
        }
    }

    /// Waits until the scheduler has looked at a request that has a goal: it stays for now, or why it does not. What has
    /// no goal may be first heard of with its first token.
    ///
    /// # Errors
    /// Why it was refused; [`Self::next`] says so too.
    pub async fn accepted(&self) -> Result<(), Refusal> {
        loop {
            let bell = self.mailbox.bell.notified();
            tokio::pin!(bell);
            bell.as_mut().enable();
            if let Some(verdict) = self.mailbox.verdict() {
                return verdict;
            }
            bell.await;
        }
    }

    /// Waits for news. `None` after the finish was delivered.
    pub async fn next(&mut self) -> Option<Update> {
        if self.done {
            return None;
        }
        loop {
            // Waiting before it looks: nothing that is posted in between goes unheard.
            let bell = self.mailbox.bell.notified();
            tokio::pin!(bell);
            bell.as_mut().enable();
            if let Some(update) = self.mailbox.take(self.place.as_mut(), &mut self.spelling) {
                self.done = update.finish.is_some();
                return Some(update);
            }
            bell.await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match (&self.mailbox.kept, self.place) {
            (Some(kept), Some(place)) => kept.lock().leave(place.reader, Instant::now()),
            _ => self.mailbox.close(),
        }
    }
}
