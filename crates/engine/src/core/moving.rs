//! What a migration does to a rank: takes a sequence out between two steps, puts it back, holds pages and a place for one
//! that is on its way, lets it run.

use super::Core;
use crate::mailbox::Mailbox;
use crate::model::kv::PageError;
use crate::sampling::TokenRules;
use crate::sequence::Sequence;
use plimsoll_cache::Digest;
use std::sync::Arc;
use std::time::Instant;

/// A sequence that was taken out of the schedule, with the pages it holds.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) sequence: Box<Sequence>,
    /// Where it stood among the running.
    place: usize,
}

/// Why nothing can be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) pages: usize,
    pub(crate) available_pages: usize,
    pub(crate) has_place: bool,
}

impl Core {
    /// The sequence that posts to this mailbox, running or waiting.
    pub(crate) fn posting_to(&self, mailbox: &Arc<Mailbox>) -> Option<&Sequence> {
        self.in_flight().find(|sequence| Arc::ptr_eq(&sequence.mailbox, mailbox))
    }

    pub(crate) fn with_rid(&self, rid: &str) -> Option<&Sequence> {
        self.in_flight().find(|sequence| sequence.rid.as_str() == rid)
    }

    fn in_flight(&self) -> impl Iterator<Item = &Sequence> {
        self.scheduler.running.iter().chain(self.scheduler.waiting.iter())
    }

    pub(crate) fn page_tokens(&self) -> usize {
        self.scheduler.page_tokens()
    }

    /// Prompt plus output of one request.
    pub(crate) fn context_tokens(&self) -> usize {
        self.model.config().context_tokens
    }

    pub(crate) fn vocab(&self) -> usize {
        self.model.config().vocab_tokens
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.kv.page_bytes()
    }

    pub(crate) fn copy_page(&self, page: u32, bytes: &mut [u8]) {
        let copied = self.kv.copy_page(page, bytes);
        debug_assert_eq!(copied, Ok(()), "a page of this store, in a buffer for its pages");
    }

    pub(crate) fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), PageError> {
        self.write_kv(page, bytes)
    }

    pub(crate) fn rules(&self) -> &TokenRules {
        &self.rules
    }

    /// Takes a sequence out of the schedule.
    pub(crate) fn take_out(&mut self, mailbox: &Arc<Mailbox>) -> Option<Moved> {
        let this = |sequence: &Sequence| Arc::ptr_eq(&sequence.mailbox, mailbox);
        let (sequence, place) = if let Some(at) = self.scheduler.running.iter().position(this) {
            (self.scheduler.running.remove(at), at)
        } else {
            let serial = self.scheduler.waiting.iter().find(|sequence| this(sequence))?.serial;
            (self.scheduler.waiting.remove(serial)?, self.scheduler.running.len())
        };
        self.refresh();
        let mut sequence = Box::new(sequence);
        sequence.leave_slot();
        Some(Moved { sequence, place })
    }

    /// Puts a sequence back where it stood. When its place is taken it waits for its turn, and finds its pages in the
    /// cache unless they are evicted.
    pub(crate) fn put_back(&mut self, moved: Moved) {
        let Moved { sequence, place } = moved;
        let mut sequence = *sequence;
        let mailbox = Arc::clone(&sequence.mailbox);
        if !sequence.pages.is_empty() && self.scheduler.has_place() {
            let place = place.min(self.scheduler.running.len());
            self.scheduler.run_at(place, sequence);
        } else {
            self.give_up_pages(&mut sequence);
            self.scheduler.enqueue(sequence);
        }
        // The schedule may have heard of it while the sequence was not there.
        mailbox.repeat_departure();
        self.refresh();
    }

    /// The pages of a sequence that is not in the schedule. Full ones stay in the cache.
    pub(crate) fn give_up_pages(&mut self, sequence: &mut Sequence) {
        self.scheduler.blocks.release(&sequence.pages);
        sequence.lose_pages();
        self.refresh();
    }

    /// Holds `pages` pages and a place. The first of them are those that the cache has of `chain`; says how many.
    ///
    /// # Errors
    /// When that would leave less than a page for each running sequence to grow into, or there is no place.
    pub(crate) fn reserve(&mut self, chain: &[Digest], pages: usize) -> Result<(Vec<u32>, usize), NoRoom> {
        let has_place = self.scheduler.has_place();
        let blocks = &mut self.scheduler.blocks;
        let mut held = blocks.lookup(chain);
        held.truncate(pages);
        let available_pages = blocks.available() - blocks.idle_among(&held);
        let wanted = pages - held.len() + self.scheduler.running.len();
        if !has_place || wanted > available_pages {
            return Err(NoRoom { pages: wanted, available_pages, has_place });
        }
        let have = held.len();
        blocks.take(&held);
        while held.len() < pages {
            // There are as many as were counted above.
            let Some(page) = blocks.allocate() else { break };
            held.push(page);
        }
        self.scheduler.reserved_places += 1;
        self.refresh();
        Ok((held, have))
    }

    /// Gives back what [`Self::reserve`] held.
    pub(crate) fn unreserve(&mut self, pages: &[u32]) {
        self.scheduler.blocks.release(pages);
        self.scheduler.reserved_places -= 1;
        self.refresh();
    }

    /// Runs a sequence that came here with its pages, in the place that was reserved for it.
    pub(crate) fn install(&mut self, sequence: Box<Sequence>) {
        let mut sequence = *sequence;
        sequence.last_token = (sequence.generated() > 0).then(Instant::now);
        self.scheduler.reserved_places -= 1;
        self.scheduler.adopt(sequence);
        self.refresh();
    }

    /// Ends a request that nobody has read for too long.
    pub(crate) fn drop_unread(&mut self, mailbox: &Arc<Mailbox>) {
        let Some(mut moved) = self.take_out(mailbox) else { return };
        self.give_up_pages(&mut moved.sequence);
        self.stats.aborted += 1;
    }

    /// Whether a request of this size can ever run here.
    pub(crate) fn could_fit(&self, computed_tokens: usize) -> bool {
        computed_tokens <= self.scheduler.blocks.total() * self.page_tokens()
    }

    /// Makes the full pages of a sequence that is on its way here findable, up to its computed tokens.
    pub(crate) fn commit_pages(&mut self, sequence: &mut Sequence) {
        self.scheduler.commit_pages(sequence);
    }
}
