//! The step loop's thread and the handle that everybody else holds.
//!
//! The loop sleeps on a condition variable when nothing is to be done. Requests reach it through a bounded inbox;
//! answers leave through [`crate::mailbox`].

use crate::config::{EngineConfig, EngineError};
use crate::core::Core;
use crate::disagg::leg::Leg;
use crate::faults::FaultSwitch;
use crate::faults::crash::CrashWatch;
use crate::kv_events::CachedNames;
use crate::kv_events::publish::Sink;
use crate::lockstep::Lockstep;
use crate::mailbox::postman::Postman;
use crate::mailbox::{Mailbox, Ticket};
use crate::migration::desk::{Answer, Desk, Heard, Post, Verb};
use crate::migration::notes::Head;
use crate::request::Request;
use crate::sequence::{RidGuard, RidSet, Sequence};
use crate::stats::Stats;
use crate::transfer::{Identity, Pool};
use inbox::Inbox;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::AbortHandle;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// SGLang's own words.
    #[error("Duplicate request ID detected: {0}")]
    DuplicateRid(String),
    #[error("routed_dp_rank: {rank} is out of range, this engine has ranks 0 to {last}")]
    NoSuchRank { rank: usize, last: usize },
    #[error("The request queue is full.")]
    QueueFull,
    #[error("The engine is shutting down.")]
    Stopped,
}

/// An abort was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many aborts wait for the step loop: send it again")]
pub struct TooManyAborts;

enum Command {
    Submit {
        rank: usize,
        sequence: Box<Sequence>,
        leg: Option<Leg>,
    },
    Abort {
        prefix: Option<String>,
    },
    Flush {
        done: oneshot::Sender<bool>,
    },
    /// Nothing but a turn of the loop.
    Look,
    Cached {
        done: oneshot::Sender<Vec<CachedNames>>,
    },
    Migrate {
        id: String,
        verb: Verb,
        wait: bool,
        answer: Answer,
    },
    /// A source has connected.
    Link {
        head: Box<Head>,
        expected: oneshot::Sender<bool>,
    },
    /// On the connection of a migration. The place is one of those that bound what lies here.
    Heard {
        id: String,
        at_source: bool,
        heard: Heard,
        place: Option<OwnedSemaphorePermit>,
    },
    /// Ends the step loop as a defect would.
    #[cfg(test)]
    Break,
}

struct Shared {
    inbox: Mutex<Inbox>,
    bell: Condvar,
    /// Who bring tokens to the readers, by rank.
    postmen: Vec<Postman>,
    /// One per rank.
    stats: Mutex<Vec<Stats>>,
    /// Whose turn it is among the ranks.
    turn: AtomicUsize,
    ranks: usize,
    rids: RidSet,
    faults: FaultSwitch,
    page_tokens: usize,
    inbox_limit: usize,
}

mod inbox;
mod migrating;
#[cfg(test)]
mod tests;

/// Submits, aborts and observes. Cheap to clone; the engine runs until [`Engine`] is dropped.
#[derive(Clone)]
pub struct EngineHandle(Arc<Shared>);

/// Owns the step loop's thread. Dropping it aborts everything in flight and joins the thread.
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
    postmen: Vec<AbortHandle>,
    size: Size,
    identity: Option<Identity>,
    posts: Mutex<Option<UnboundedReceiver<Post>>>,
}

/// What the engine was built with; of each rank, but for the weights that they share.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub weight_bytes: usize,
    pub kv_bytes: usize,
    /// Whole pages times tokens per page.
    pub kv_tokens: usize,
    pub page_tokens: usize,
}

impl Engine {
    /// Makes the weights and starts the thread.
    ///
    /// # Errors
    /// When a setting cannot work or the thread cannot start.
    pub fn start(config: &EngineConfig, faults: FaultSwitch) -> Result<Engine, EngineError> {
        Self::start_with(config, faults, Vec::new())
    }

    /// As [`Engine::start`], with a sink for the KV events of each rank.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(config: &EngineConfig, faults: FaultSwitch, events: Vec<Sink>) -> Result<Engine, EngineError> {
        config.validate()?;
        let mut lockstep = Lockstep::new(config)?;
        for (core, sink) in lockstep.ranks.iter_mut().zip(events) {
            core.events = Some(sink);
        }
        let identity = config.moves_kv().then(|| lockstep.identity(config.page_tokens));
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            bell: Condvar::new(),
            postmen: lockstep.postmen(),
            stats: Mutex::new(lockstep.stats().collect()),
            turn: AtomicUsize::new(0),
            ranks: config.dp_size,
            rids: RidSet::default(),
            faults,
            page_tokens: config.page_tokens,
            inbox_limit: (config.max_waiting + config.max_running) * config.dp_size,
        });
        let handle = EngineHandle(Arc::clone(&shared));
        for core in &mut lockstep.ranks {
            // Weak: the worker may outlive the engine in a call of its tier.
            let shared = Arc::downgrade(&shared);
            let wake = move || {
                if let Some(shared) = shared.upgrade() {
                    EngineHandle(shared).wake();
                }
            };
            core.start_offload(&handle.0.faults, wake).map_err(EngineError::Thread)?;
        }
        let size = lockstep.size(config.page_tokens);
        let delay = config.step_delay;
        let pool = Pool::new(lockstep.ranks[0].page_bytes(), config.migration.buffers);
        let (carry, posts) = unbounded_channel();
        let desk = Desk::new(Arc::clone(&shared.rids), pool);
        let thread = std::thread::Builder::new()
            .name("engine-step".to_owned())
            .spawn(move || {
                let last = LastWord(shared);
                run(lockstep, desk, &last.0, delay, &carry);
            })
            .map_err(EngineError::Thread)?;
        Ok(Engine { handle, thread: Some(thread), postmen: Vec::new(), size, identity, posts: Mutex::new(Some(posts)) })
    }

    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// From now on readers are served by tasks of the current runtime, where they should be, and no longer by the step loop.
    pub(crate) fn serve_readers_here(&mut self) {
        let postmen = &self.handle.0.postmen;
        self.postmen = postmen.iter().map(|postman| tokio::spawn(postman.delivering()).abort_handle()).collect();
    }

    /// What must be equal on engines that exchange KV; `None` on one that exchanges none.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// What migrations have to send; can be taken once.
    pub(crate) fn take_posts(&self) -> Option<UnboundedReceiver<Post>> {
        self.posts.lock().take()
    }

    /// Ends the step loop after its current step; everything in flight is aborted.
    pub fn stop(&self) {
        self.handle.0.inbox.lock().stop = true;
        self.handle.0.bell.notify_all();
    }

    /// The step loop still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the loop was already reported by the panic hook.
            let _ = thread.join();
        }
        self.postmen.iter().for_each(AbortHandle::abort);
    }
}

impl EngineHandle {
    /// Hands a request to the step loop: to its rank, or to the ranks in turn.
    ///
    /// # Errors
    /// When there is no such rank, the id is in flight, the inbox is full, or the engine stops.
    pub fn submit(&self, request: Request) -> Result<Ticket, SubmitError> {
        self.submit_with(request, None)
    }

    /// As [`Self::submit`], for a request of which this engine computes a part.
    pub(crate) fn submit_with(&self, request: Request, leg: Option<Leg>) -> Result<Ticket, SubmitError> {
        let rank = match request.rank {
            Some(rank) if rank >= self.0.ranks => {
                return Err(SubmitError::NoSuchRank { rank, last: self.0.ranks - 1 });
            }
            Some(rank) => rank,
            None => self.0.turn.fetch_add(1, Ordering::Relaxed) % self.0.ranks,
        };
        let Some(guard) = RidGuard::take(&request.rid, &self.0.rids) else {
            return Err(SubmitError::DuplicateRid(request.rid));
        };
        let mailbox = Arc::new(Mailbox::default());
        let arrived = Instant::now();
        let ticket = Ticket {
            mailbox: Arc::clone(&mailbox),
            rid: request.rid.clone(),
            prompt_tokens: request.prompt.len(),
            rank,
            arrived,
            done: false,
            place: None,
            spelling: Default::default(),
        };
        let sequence = Box::new(Sequence::new(request, guard, mailbox, self.0.page_tokens, arrived));
        let mut inbox = self.0.inbox.lock();
        if inbox.stop {
            return Err(SubmitError::Stopped);
        }
        let command = Command::Submit { rank, sequence, leg };
        inbox.request(command, self.0.inbox_limit).map_err(|inbox::Full| SubmitError::QueueFull)?;
        drop(inbox);
        self.0.bell.notify_all();
        Ok(ticket)
    }

    /// Aborts requests whose id starts with `prefix`; all of them for `None`. Not those that are submitted later.
    ///
    /// # Errors
    /// When more different ones than there can be requests wait for an engine that is frozen.
    pub fn abort(&self, prefix: Option<&str>) -> Result<(), TooManyAborts> {
        let mut inbox = self.0.inbox.lock();
        if !inbox.stop {
            let taken = inbox.abort(prefix.map(str::to_owned), self.0.inbox_limit);
            taken.map_err(|inbox::Full| TooManyAborts)?;
        }
        drop(inbox);
        self.0.bell.notify_all();
        Ok(())
    }

    /// Empties the prefix cache. False, and nothing done, while requests are in flight.
    pub async fn flush(&self) -> bool {
        let (done, answer) = oneshot::channel();
        self.send(Command::Flush { done });
        answer.await.unwrap_or(false)
    }

    /// Lets the step loop see what was changed beside it, when it would otherwise sleep.
    pub(crate) fn look(&self) {
        self.send(Command::Look);
    }

    /// What KV events should have made a subscriber believe, by rank. `None` when the engine stops; without KV events
    /// nothing has a name.
    pub async fn cached(&self) -> Option<Vec<CachedNames>> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Cached { done });
        answer.await.ok()
    }

    /// Makes the step loop look at its transfers.
    pub(crate) fn wake(&self) {
        self.0.inbox.lock().woken = true;
        self.0.bell.notify_all();
    }

    /// One snapshot per rank.
    #[must_use]
    pub fn stats(&self) -> Vec<Stats> {
        self.0.stats.lock().clone()
    }

    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.rids.lock().len()
    }

    fn send(&self, command: Command) {
        let mut inbox = self.0.inbox.lock();
        if !inbox.stop {
            // Small and rare, but a frozen engine must not collect them for ever. Who waits for one that is too much
            // learns by its end.
            let _ = inbox.control(command, self.0.inbox_limit);
        }
        drop(inbox);
        self.0.bell.notify_all();
    }
}

/// Held by the step loop's thread: however it ends, nothing is taken any more and nobody waits for what lies there. A
/// request tells its reader when it is dropped, and so does every question.
struct LastWord(Arc<Shared>);

impl Drop for LastWord {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox.lock();
        inbox.stop = true;
        let left = inbox.take();
        drop(inbox);
        drop(left);
    }
}

/// How often an engine that is frozen, or has requests and no room to compute any, looks whether that is still so, and
/// one that waits for transfers whether their readers are still there.
const POLL: Duration = Duration::from_millis(5);

fn run(mut lockstep: Lockstep, mut desk: Desk, shared: &Shared, delay: Duration, carry: &UnboundedSender<Post>) {
    let mut crash = CrashWatch::default();
    let mut stuck = false;
    // What counts from here on is of the first step.
    lockstep.count_processor_time();
    loop {
        let may_wait = stuck || lockstep.is_idle() || shared.faults.frozen();
        if may_wait {
            lockstep.tell_readers();
        }
        let commands = {
            let mut inbox = shared.inbox.lock();
            if lockstep.is_idle() && inbox.is_empty() {
                while inbox.is_empty() && !inbox.stop && !inbox.woken {
                    match desk.wakes_in() {
                        None => shared.bell.wait(&mut inbox),
                        Some(after) if shared.bell.wait_for(&mut inbox, after).timed_out() => break,
                        Some(_) => {}
                    }
                }
                lockstep.resume();
            }
            if inbox.stop {
                return;
            }
            if shared.faults.frozen() {
                shared.bell.wait_for(&mut inbox, POLL);
                lockstep.resume();
                continue;
            }
            if stuck && inbox.is_empty() && !inbox.woken {
                inbox.woken |= shared.bell.wait_for(&mut inbox, POLL).timed_out();
            }
            if std::mem::take(&mut inbox.woken) {
                lockstep.ring();
            }
            inbox.take()
        };
        for command in commands {
            obey(&mut lockstep, &mut desk, command);
        }
        desk.turn(&mut lockstep.ranks);
        for post in desk.posts() {
            // Without a carrier nothing is ever begun that would be posted.
            let _ = carry.send(post);
        }
        lockstep.press(shared.faults.kv_pressure());
        // Before the step as well: whoever has seen a token of a request finds the request counted.
        tell(&lockstep, shared);
        // Before the step as well: that is where the count begins.
        crash.look(&shared.faults, lockstep.stats());
        let least = shared.faults.step_delay().unwrap_or(delay);
        let begun = lockstep.begin(least, shared.faults.slow_step());
        stuck = begun.is_none();
        if let Some(begun) = begun {
            // Held while tokens are posted: whoever has seen a token finds its step counted.
            let mut told = shared.stats.lock();
            lockstep.end(begun);
            told.iter_mut().zip(lockstep.stats()).for_each(|(told, now)| *told = now);
            drop(told);
        } else {
            tell(&lockstep, shared);
        }
        lockstep.publish();
        crash.look(&shared.faults, lockstep.stats());
        lockstep.count_processor_time();
    }
}

fn tell(lockstep: &Lockstep, shared: &Shared) {
    for (told, now) in shared.stats.lock().iter_mut().zip(lockstep.stats()) {
        *told = now;
    }
}

fn obey(lockstep: &mut Lockstep, desk: &mut Desk, command: Command) {
    match command {
        Command::Submit { rank, sequence, leg: None } => lockstep.ranks[rank].submit(*sequence),
        Command::Submit { rank, sequence, leg: Some(leg) } => lockstep.ranks[rank].submit_leg(*sequence, leg),
        Command::Cached { done } => {
            let _ = done.send(lockstep.ranks.iter_mut().map(Core::cached).collect());
        }
        Command::Abort { prefix } => {
            lockstep.ranks.iter_mut().for_each(|core| core.abort(prefix.as_deref()));
            desk.cancel(prefix.as_deref(), &mut lockstep.ranks);
        }
        Command::Migrate { id, verb, wait, answer } => desk.obey(&id, verb, wait, answer, &mut lockstep.ranks),
        Command::Link { head, expected } => {
            // The caller may be gone; its connection is then lost.
            let _ = expected.send(desk.link(*head, &mut lockstep.ranks));
        }
        Command::Heard { id, at_source, heard, place } => {
            desk.hear(&id, at_source, heard, &mut lockstep.ranks);
            drop(place);
        }
        Command::Flush { done } => {
            let idle = lockstep.is_idle() && !desk.is_busy();
            if idle {
                lockstep.ranks.iter_mut().for_each(Core::flush);
            }
            // The caller may be gone.
            let _ = done.send(idle);
        }
        Command::Look => {}
        #[cfg(test)]
        Command::Break => panic!("a defect"),
    }
}
