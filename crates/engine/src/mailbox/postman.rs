//! From the step loop to the mailboxes: the tokens of a step leave in one bag.
//!
//! A mailbox lies where its reader last used it: to put a token there costs the step loop a trip to another core's memory,
//! and to wake the reader from outside its runtime a microsecond and more, each time for every running request. That was
//! most of what the step loop did between two steps. So it writes its tokens into a bag, one after another, hands that
//! over with one lock; one task puts them into the mailboxes and wakes the readers, from inside. That task is woken, or comes
//! by itself where it can tell when ([`rhythm`]).
//!
//! Mailboxes are named by slots, whose owners are told in the same bag, so that a token is two numbers. What lies in bags
//! stays in order. It is output of requests, which bounds it, and when a task does not come to run for long the step loop
//! delivers by itself.

use super::Mailbox;
use crate::clock::processor_time;
use alarm::{Alarm, Timer};
use parking_lot::Mutex;
use rhythm::Rhythm;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::Notify;

mod alarm;
mod rhythm;
#[cfg(test)]
mod tests;

/// Items that may wait for the task: some dozens of steps.
const MOST_WAITING: usize = 1 << 14;

/// Brings bags to the mailboxes. Clones share everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Postman(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    due: Mutex<Due>,
    /// Locked before `due` by whoever delivers, so that nobody overtakes.
    round: Mutex<Round>,
    /// Wakes the task.
    turn: Notify,
    /// Of the task.
    processor_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Due {
    items: Vec<Item>,
    /// There is a task that delivers.
    staffed: bool,
    rhythm: Rhythm,
    /// When the task looks by itself; `None`: it does not, or is at it.
    looks_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Round {
    /// By slot.
    mailboxes: Vec<Option<Arc<Mailbox>>>,
    items: Vec<Item>,
}

#[derive(Debug)]
enum Item {
    /// The slot is this mailbox's from now on.
    Open(u32, Arc<Mailbox>),
    Token(u32, u32),
    /// Something was put into it that its reader was not told of.
    Ring(u32),
    Close(u32),
}

/// What the step loop has for the mailboxes since it last handed over; belongs to one rank. Dropping it delivers.
#[derive(Debug, Default)]
pub(crate) struct Bag {
    items: Vec<Item>,
    /// Of the items, those that a reader is to hear of.
    news: usize,
    slots: Arc<Slots>,
    postman: Postman,
}

#[derive(Debug, Default)]
struct Slots(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    used: u32,
    free: Vec<u32>,
    /// Left by their owners; items for them may still lie in the bag.
    left: Vec<u32>,
}

/// The name of a mailbox in the bags of one rank, while its sequence has it.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u32,
    slots: Arc<Slots>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.0.lock().left.push(self.number);
    }
}

impl Bag {
    pub(crate) fn postman(&self) -> &Postman {
        &self.postman
    }

    /// A token for a mailbox, whose slot is `slot`, now if not before.
    #[inline]
    pub(crate) fn token(&mut self, slot: &mut Option<Slot>, mailbox: &Arc<Mailbox>, token: u32) {
        let number = self.number(slot, mailbox);
        self.items.push(Item::Token(number, token));
        self.news += 1;
    }

    /// The mailbox has news that was put there.
    pub(crate) fn note(&mut self, slot: &mut Option<Slot>, mailbox: &Arc<Mailbox>) {
        let number = self.number(slot, mailbox);
        self.items.push(Item::Ring(number));
        self.news += 1;
    }

    #[inline]
    fn number(&mut self, slot: &mut Option<Slot>, mailbox: &Arc<Mailbox>) -> u32 {
        let slot = slot.get_or_insert_with(|| {
            let slot = Slots::take(&self.slots);
            self.items.push(Item::Open(slot.number, Arc::clone(mailbox)));
            slot
        });
        debug_assert!(Arc::ptr_eq(&slot.slots, &self.slots), "the slot of another rank");
        slot.number
    }

    /// Hands everything to the task, or delivers it where there is none, or one token is not worth it.
    pub(crate) fn hand_over(&mut self) {
        self.hand_over_at(Instant::now());
    }

    fn hand_over_at(&mut self, now: Instant) {
        self.slots.reclaim(&mut self.items);
        let news = std::mem::take(&mut self.news);
        if news == 0 && self.items.len() < MOST_WAITING {
            return;
        }
        let mut due = self.postman.0.due.lock();
        let alone = news == 1 && due.items.is_empty();
        if due.items.is_empty() {
            std::mem::swap(&mut due.items, &mut self.items);
        } else {
            due.items.append(&mut self.items);
        }
        if due.staffed && !alone && due.items.len() < MOST_WAITING {
            let is_awaited = due.is_awaited(now);
            due.rhythm.beat(now);
            drop(due);
            if !is_awaited {
                self.postman.0.turn.notify_one();
            }
        } else {
            drop(due);
            self.postman.deliver();
        }
    }
}

impl Drop for Bag {
    fn drop(&mut self) {
        self.news += 1;
        self.hand_over();
        self.postman.deliver();
    }
}

impl Due {
    /// The task looks soon, or should have just now, and need not be woken for a bag.
    fn is_awaited(&self, now: Instant) -> bool {
        self.looks_at.is_some_and(|at| at <= now + self.rhythm.patience() && now <= at + rhythm::LONGEST_WAIT)
    }
}

impl Slots {
    fn take(this: &Arc<Self>) -> Slot {
        let mut numbers = this.0.lock();
        let number = numbers.free.pop().unwrap_or_else(|| {
            numbers.used += 1;
            numbers.used - 1
        });
        Slot { number, slots: Arc::clone(this) }
    }

    /// Slots that were left are closed behind everything that is in `items` for them, and can be had again.
    fn reclaim(&self, items: &mut Vec<Item>) {
        let mut numbers = self.0.lock();
        let Numbers { free, left, .. } = &mut *numbers;
        items.extend(left.iter().map(|number| Item::Close(*number)));
        free.append(left);
    }
}

impl Postman {
    /// Delivers for as long as it is polled. To be spawned in the runtime of the readers, once.
    pub(crate) fn delivering(&self) -> impl Future<Output = ()> + Send + 'static {
        self.delivering_by(Timer::new)
    }

    fn delivering_by<A: Alarm, M: FnOnce() -> Option<A> + Send + 'static>(
        &self,
        alarm: M,
    ) -> impl Future<Output = ()> + Send + 'static + use<A, M> {
        let post = Post::take(self.clone());
        async move {
            let shared = &*post.0.0;
            let mut alarm = alarm();
            let mut tried = 0;
            loop {
                let before = processor_time();
                tried = if post.0.deliver() { 0 } else { tried + 1 };
                let is_set = alarm.as_mut().is_some_and(|alarm| shared.announce(alarm, tried));
                let spent = processor_time().saturating_sub(before).as_nanos() as u64;
                shared.processor_ns.fetch_add(spent, Ordering::Relaxed);
                match &mut alarm {
                    Some(alarm) if is_set => tokio::select! {
                        biased;
                        () = shared.turn.notified() => {}
                        () = alarm.rings() => {}
                    },
                    _ => shared.turn.notified().await,
                }
            }
        }
    }

    /// Processor time that the task has used.
    pub(crate) fn processor_ns(&self) -> u64 {
        self.0.processor_ns.load(Ordering::Relaxed)
    }

    /// False when there was nothing.
    fn deliver(&self) -> bool {
        let mut round = self.0.round.lock();
        let Round { mailboxes, items } = &mut *round;
        let mut due = self.0.due.lock();
        std::mem::swap(items, &mut due.items);
        due.looks_at = None;
        drop(due);
        let any = !items.is_empty();
        for item in items.drain(..) {
            let of = |slot: u32| mailboxes.get(slot as usize).and_then(Option::as_ref);
            match item {
                Item::Token(slot, token) => {
                    if let Some(mailbox) = of(slot) {
                        mailbox.deposit(token);
                        mailbox.ring();
                    }
                }
                Item::Ring(slot) => {
                    if let Some(mailbox) = of(slot) {
                        mailbox.ring();
                    }
                }
                Item::Open(slot, mailbox) => {
                    let slot = slot as usize;
                    if mailboxes.len() <= slot {
                        mailboxes.resize(slot + 1, None);
                    }
                    mailboxes[slot] = Some(mailbox);
                }
                Item::Close(slot) => mailboxes[slot as usize] = None,
            }
        }
        any
    }

    #[cfg(test)]
    fn due(&self) -> usize {
        self.0.due.lock().items.len()
    }
}

impl Shared {
    /// Sets the alarm for the next bag and says so, where it can be told when that comes. The task has looked in vain so
    /// many times since the last one.
    fn announce(&self, alarm: &mut impl Alarm, tried: u32) -> bool {
        let look = self.due.lock().rhythm.next_look(alarm.now(), tried);
        let looks_at = look.filter(|at| alarm.set(*at));
        self.due.lock().looks_at = looks_at;
        looks_at.is_some()
    }
}

/// The task's, however it ends: then the step loop delivers by itself.
struct Post(Postman);

impl Post {
    fn take(postman: Postman) -> Self {
        postman.0.due.lock().staffed = true;
        Post(postman)
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.0.0.due.lock().staffed = false;
        self.0.deliver();
    }
}
