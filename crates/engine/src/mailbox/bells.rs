//! Waking the readers of a step together.
//!
//! To wake a task from outside its runtime costs a microsecond and more each time: a queue behind a lock, often a system
//! call. With many running requests that is most of what the step loop does between two steps. From inside the runtime it
//! costs a tenth. So the step loop notes who has news and wakes one task, which wakes the readers.
//!
//! News itself lies in the mailboxes, in order and merged there, before its reader is noted: a bell that is rung late
//! delays, and loses and reorders nothing. A mailbox is noted once until it is rung, so what lies here is bounded by the
//! requests in flight, however long the task does not come to run.

use super::Mailbox;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::Notify;

#[cfg(test)]
mod tests;

/// Who is to be woken. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bells(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    due: Mutex<Due>,
    /// Wakes the task that rings.
    turn: Notify,
}

#[derive(Debug, Default)]
struct Due {
    mailboxes: Vec<Arc<Mailbox>>,
    /// There is a task that rings.
    staffed: bool,
}

/// Mailboxes with news of one step; belongs to the step loop.
#[derive(Debug, Default)]
pub(crate) struct Round(Vec<Arc<Mailbox>>);

impl Round {
    /// `mailbox` has news, of which its reader was not told.
    pub(crate) fn note(&mut self, mailbox: &Arc<Mailbox>) {
        if mailbox.begin_note() {
            self.0.push(Arc::clone(mailbox));
        }
    }
}

impl Bells {
    /// Wakes the readers of a round, which is empty then: through the task if there is one and it is worth it.
    pub(crate) fn ring(&self, round: &mut Round) {
        let noted = &mut round.0;
        if noted.len() > 1 {
            let mut due = self.0.due.lock();
            if due.staffed {
                due.mailboxes.append(noted);
                drop(due);
                return self.0.turn.notify_one();
            }
        }
        noted.drain(..).for_each(|mailbox| mailbox.ring_noted());
    }

    /// Rings for as long as it is polled. To be spawned in the runtime of the readers, once.
    pub(crate) fn ringing(&self) -> impl Future<Output = ()> + Send + 'static {
        let post = Post::take(self.clone());
        async move {
            let mut round = Vec::new();
            loop {
                post.0.0.turn.notified().await;
                std::mem::swap(&mut round, &mut post.0.0.due.lock().mailboxes);
                round.drain(..).for_each(|mailbox: Arc<Mailbox>| mailbox.ring_noted());
            }
        }
    }

    #[cfg(test)]
    fn due(&self) -> usize {
        self.0.due.lock().mailboxes.len()
    }
}

/// The task's, however it ends: then the step loop rings by itself.
struct Post(Bells);

impl Post {
    fn take(bells: Bells) -> Self {
        bells.0.due.lock().staffed = true;
        Post(bells)
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let mut due = self.0.0.due.lock();
        due.staffed = false;
        let left = std::mem::take(&mut due.mailboxes);
        drop(due);
        left.into_iter().for_each(|mailbox| mailbox.ring_noted());
    }
}
