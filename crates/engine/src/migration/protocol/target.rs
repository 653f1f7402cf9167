//! The target's half of a migration, without engine, socket or clock.
//!
//! It holds pages and a place for a request that it may get. It emits only after `take_over` with the fence, which the
//! source gives out at its commit, or when the source has committed with its last word. Until then it can give up at any time, for ever: an aborted migration is never taken
//! over, so its word is proof for the source.

use super::{Fence, Refusal, Why};
use plimsoll_core::Nanos;

/// What is asked of it, by verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Verify,
    TakeOver(Warrant),
    Abort,
}

/// Why it may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Warrant {
    Fence(Fence),
    /// The driver's word that the source's process has ended: nobody else will emit.
    SourceGone,
}

/// What it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum News {
    /// The source has connected.
    Linked,
    /// Everything has come and agrees with its sums. `direct`: and the source has committed with it.
    Complete {
        fence: Fence,
        direct: bool,
    },
    /// What came does not fit or is damaged.
    Bad,
    /// The source goes on itself, or the request is over there.
    SourceAborted,
    LinkLost,
    /// The request is over here, after the take-over.
    RequestEnded,
    /// The request was aborted by its id before the take-over.
    Cancelled,
}

/// What must be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// Tell the source that everything is here.
    Confirm,
    /// Run the sequence.
    Install,
    /// Give up pages, place and request id.
    Free,
    /// Tell the source, if it can be told, that this side will never take over.
    TellRefused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Pages and place are held.
    Reserved,
    /// Blocks are coming.
    Receiving,
    /// Everything is here and agrees.
    Ready,
    /// The request runs here.
    TakenOver,
    /// The request ended here.
    Done,
    /// Nothing is held.
    Aborted(Why),
}

/// How long a state may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    /// From `reserve` until the source connects, and between blocks.
    pub(crate) reserve: Nanos,
    /// From the last block to `take_over`.
    pub(crate) ready: Nanos,
    /// How long the end is remembered, so that a repeated verb gets its answer.
    pub(crate) remember: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    state: State,
    limits: Limits,
    deadline: Nanos,
    /// Known with the last block.
    fence: Option<Fence>,
    /// Everything came, and then the connection broke: the source may have committed and cannot be told anything.
    is_cut_off: bool,
}

impl Target {
    /// Reserved.
    pub(crate) fn new(now: Nanos, limits: Limits) -> Self {
        Target { state: State::Reserved, limits, deadline: now + limits.reserve, fence: None, is_cut_off: false }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// When [`Self::tick`] must be called; never while the request runs here.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.state == State::TakenOver { Nanos::MAX } else { self.deadline }
    }

    /// Pages, place and id are held for a request that does not run here.
    pub(crate) fn holds(&self) -> bool {
        matches!(self.state, State::Reserved | State::Receiving | State::Ready)
    }

    /// The sequence runs here.
    pub(crate) fn emits(&self) -> bool {
        self.state == State::TakenOver
    }

    /// A verb. One whose effect is there already is answered like the first.
    ///
    /// # Errors
    /// When it does not fit the state; nothing has changed then.
    pub(crate) fn ask(&mut self, now: Nanos, ask: Ask) -> Result<Vec<Effect>, Refusal> {
        use State::{Aborted, Done, Ready, Receiving, Reserved, TakenOver};
        Ok(match (ask, self.state) {
            (Ask::Abort, Aborted(_)) | (Ask::Verify, Ready | TakenOver | Done) => Vec::new(),
            (_, Aborted(_)) => return Err(Refusal::Over),
            // If the source has committed, nobody would go on.
            (Ask::Abort, Ready) if self.is_cut_off => return Err(Refusal::CutOff),
            (Ask::Abort, Reserved | Receiving | Ready) => {
                self.enter(now, Aborted(Why::Asked), &[Effect::Free, Effect::TellRefused])
            }
            (Ask::Abort, TakenOver | Done) => return Err(Refusal::TakenOver),
            (Ask::Verify | Ask::TakeOver(_), Reserved | Receiving) => return Err(Refusal::WrongState),
            (Ask::TakeOver(Warrant::Fence(fence)), _) if self.fence != Some(fence) => return Err(Refusal::BadFence),
            (Ask::TakeOver(_), Ready) => self.enter(now, TakenOver, &[Effect::Install]),
            (Ask::TakeOver(_), TakenOver | Done) => Vec::new(),
        })
    }

    /// Something happened. What no longer matters changes nothing.
    pub(crate) fn learn(&mut self, now: Nanos, news: News) -> Vec<Effect> {
        use State::{Aborted, Done, Ready, Receiving, Reserved, TakenOver};
        let give_up = [Effect::Free, Effect::TellRefused];
        match (news, self.state) {
            (News::Linked, Reserved | Receiving) => self.enter(now, Receiving, &[]),
            (News::Complete { fence, direct }, Receiving) => {
                self.fence = Some(fence);
                if direct {
                    self.enter(now, TakenOver, &[Effect::Confirm, Effect::Install])
                } else {
                    self.enter(now, Ready, &[Effect::Confirm])
                }
            }
            (News::Bad, Reserved | Receiving) => self.enter(now, Aborted(Why::Damaged), &give_up),
            (News::Cancelled, Reserved | Receiving | Ready) => self.enter(now, Aborted(Why::Cancelled), &give_up),
            (News::SourceAborted, Reserved | Receiving | Ready) => {
                self.enter(now, Aborted(Why::SourceAborted), &[Effect::Free])
            }
            // What is complete is kept: the driver may have the fence, and the source be dead.
            (News::LinkLost, Receiving) => self.enter(now, Aborted(Why::LinkLost), &[Effect::Free]),
            (News::LinkLost, Ready) => {
                self.is_cut_off = true;
                Vec::new()
            }
            (News::RequestEnded, TakenOver) => self.enter(now, Done, &[]),
            _ => Vec::new(),
        }
    }

    /// Blocks came: the reservation lives on.
    pub(crate) fn progress(&mut self, now: Nanos) {
        if self.state == State::Receiving {
            self.deadline = now + self.limits.reserve;
        }
    }

    /// The deadline may have passed. `None`: forget this migration.
    pub(crate) fn tick(&mut self, now: Nanos) -> Option<Vec<Effect>> {
        use State::{Aborted, Done, Ready, Receiving, Reserved, TakenOver};
        if now < self.deadline() {
            return Some(Vec::new());
        }
        match self.state {
            Reserved | Receiving | Ready => {
                Some(self.enter(now, Aborted(Why::Expired), &[Effect::Free, Effect::TellRefused]))
            }
            TakenOver => Some(Vec::new()),
            Done | Aborted(_) => None,
        }
    }

    fn enter(&mut self, now: Nanos, state: State, effects: &[Effect]) -> Vec<Effect> {
        self.state = state;
        self.deadline = now
            + match state {
                State::Reserved | State::Receiving => self.limits.reserve,
                State::Ready => self.limits.ready,
                State::TakenOver | State::Done | State::Aborted(_) => self.limits.remember,
            };
        effects.to_vec()
    }
}
