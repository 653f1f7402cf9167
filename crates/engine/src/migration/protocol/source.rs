//! The source's half of a migration, without engine, socket or clock.
//!
//! It owns the request until `commit`, and can always go back to emitting before it. At `commit` it gives out the fence
//! and from then on emits nothing more, unless it is shown that the target will never take over: by the target's own
//! refusal, or by the word of whoever drives the migration (who alone was given the fence).

use super::{Fence, Refusal, Why};
use plimsoll_core::Nanos;

/// What is asked of it, by verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Start,
    Freeze {
        /// Ship the rest at once.
        delta: bool,
        commit: When,
    },
    Delta,
    Commit,
    Release,
    /// Go on here. After a commit with the proof that the target does not.
    Resume(Option<Proof>),
}

/// When the source commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum When {
    /// By the verb.
    Asked,
    /// As soon as the target has confirmed.
    Confirmed,
    /// With the last word: the baton goes straight to the target, which needs no `take_over`. The shortest pause; but
    /// from then on a broken connection does not bring the request back.
    Sent,
}

/// The driver's word that the target has not taken over and never will: it answered `aborted`, or it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proof {
    pub(crate) fence: Fence,
}

/// What it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum News {
    /// The last word is on its way to the target, and cannot be taken back.
    Sent,
    /// The target holds everything, with the same counts and sums.
    Confirmed,
    /// The target gave up its reservation: it will never take over.
    Refused,
    LinkLost,
    /// The request is over here: complete, aborted, or left by its reader.
    RequestEnded,
}

/// What must be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// Connect to the target and ship what is committed, and go on as it grows.
    Ship,
    /// Schedule the sequence no more.
    Freeze,
    SendDelta,
    /// Schedule the sequence again, where it stopped.
    Thaw,
    /// Tell the target to give up its reservation, if it can be told.
    TellAbort,
    /// End the request here as migrated and free what it holds.
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Known, emitting.
    Offered,
    /// Emitting while blocks are shipped.
    Shipping,
    /// Not scheduled; the rest is on its way, or waits for `delta`.
    Frozen,
    /// The target has confirmed.
    Synced,
    /// The target's, as far as this side can say.
    Committed,
    /// Freed here.
    Released,
    /// Emitting as if nothing had happened.
    Resumed(Why),
    /// The request was over before it could be moved.
    Ended,
}

/// How long a state may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    /// From `offer` to `freeze`.
    pub(crate) ship: Nanos,
    /// From `freeze` to `commit`: how long the reader may see nothing.
    pub(crate) freeze: Nanos,
    /// From `commit` to `release`.
    pub(crate) commit: Nanos,
    /// How long the end is remembered, so that a repeated verb gets its answer.
    pub(crate) remember: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    state: State,
    limits: Limits,
    deadline: Nanos,
    fence: Fence,
    /// The rest shall be shipped, or was.
    delta_asked: bool,
    /// The last word is on its way.
    is_sent: bool,
    commit: When,
}

impl Source {
    /// Offered. `fence` is a value that nobody else can guess.
    pub(crate) fn new(now: Nanos, limits: Limits, fence: Fence) -> Self {
        Source {
            state: State::Offered,
            limits,
            deadline: now + limits.ship,
            fence,
            delta_asked: false,
            is_sent: false,
            commit: When::Asked,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// When [`Self::tick`] must be called.
    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// For the target; not for the driver before the commit.
    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    /// What the driver is told.
    pub(crate) fn given_fence(&self) -> Option<Fence> {
        matches!(self.state, State::Committed | State::Released).then_some(self.fence)
    }

    /// The last word shall be the baton.
    pub(crate) fn is_direct(&self) -> bool {
        self.commit == When::Sent
    }

    /// The sequence may be scheduled here.
    pub(crate) fn emits(&self) -> bool {
        matches!(self.state, State::Offered | State::Shipping | State::Resumed(_))
    }

    /// Nothing can change any more; only the memory of it is left.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Released | State::Resumed(_) | State::Ended)
    }

    /// A verb. One whose effect is there already is answered like the first.
    ///
    /// # Errors
    /// When it does not fit the state; nothing has changed then.
    pub(crate) fn ask(&mut self, now: Nanos, ask: Ask) -> Result<Vec<Effect>, Refusal> {
        use State::{Committed, Ended, Frozen, Offered, Released, Resumed, Shipping, Synced};
        if let Ask::Resume(proof) = ask {
            return self.resume(now, proof);
        }
        if let Resumed(_) | Ended = self.state {
            return Err(Refusal::Over);
        }
        Ok(match (ask, self.state) {
            (Ask::Start, Offered) => self.enter(now, Shipping, &[Effect::Ship]),
            (Ask::Freeze { delta, commit }, Shipping) => {
                self.commit = commit;
                self.delta_asked = delta;
                let effects = [Effect::Freeze, Effect::SendDelta];
                self.enter(now, Frozen, if delta { &effects } else { &effects[..1] })
            }
            (Ask::Freeze { delta, commit }, Frozen) => {
                // The last word was not the baton: it cannot become it.
                let limit = if self.is_sent { When::Confirmed } else { When::Sent };
                self.commit = self.commit.max(commit.min(limit));
                self.send_delta(delta)
            }
            (Ask::Freeze { commit: When::Confirmed | When::Sent, .. } | Ask::Commit, Synced) => {
                self.enter(now, Committed, &[])
            }
            (Ask::Delta, Frozen) => self.send_delta(true),
            (Ask::Release, Committed) => self.enter(now, Released, &[Effect::Release]),
            (Ask::Start, Shipping | Frozen | Synced | Committed | Released)
            | (Ask::Freeze { .. } | Ask::Delta, Synced | Committed | Released)
            | (Ask::Commit, Committed | Released)
            | (Ask::Release, Released) => Vec::new(),
            _ => return Err(Refusal::WrongState),
        })
    }

    /// Something happened. What no longer matters changes nothing.
    pub(crate) fn learn(&mut self, now: Nanos, news: News) -> Vec<Effect> {
        use State::{Committed, Ended, Frozen, Offered, Released, Resumed, Shipping, Synced};
        match (news, self.state) {
            (News::Sent, Frozen) if self.delta_asked => {
                self.is_sent = true;
                if self.commit == When::Sent { self.enter(now, Committed, &[]) } else { Vec::new() }
            }
            (News::Confirmed, Frozen) if self.is_sent && self.commit == When::Asked => {
                // One limit for the whole pause, up to the commit.
                self.state = Synced;
                Vec::new()
            }
            (News::Confirmed, Frozen) if self.is_sent => self.enter(now, Committed, &[]),
            (News::Refused, Shipping) => self.enter(now, Resumed(Why::Refused), &[]),
            (News::Refused, Frozen | Synced | Committed) => self.enter(now, Resumed(Why::Refused), &[Effect::Thaw]),
            (News::LinkLost, Shipping) => self.enter(now, Resumed(Why::LinkLost), &[]),
            (News::LinkLost, Frozen | Synced) => self.enter(now, Resumed(Why::LinkLost), &[Effect::Thaw]),
            (News::RequestEnded, Offered | Shipping | Frozen | Synced) => self.enter(now, Ended, &[Effect::TellAbort]),
            // The reader has gone to the target.
            (News::RequestEnded, Committed) => self.enter(now, Released, &[]),
            _ => Vec::new(),
        }
    }

    /// The deadline may have passed. `None`: forget this migration.
    pub(crate) fn tick(&mut self, now: Nanos) -> Option<Vec<Effect>> {
        use State::{Committed, Frozen, Offered, Released, Resumed, Shipping, Synced};
        if now < self.deadline {
            return Some(Vec::new());
        }
        Some(match self.state {
            Offered => self.enter(now, Resumed(Why::Expired), &[]),
            Shipping => self.enter(now, Resumed(Why::Expired), &[Effect::TellAbort]),
            Frozen | Synced => self.enter(now, Resumed(Why::Expired), &[Effect::Thaw, Effect::TellAbort]),
            Committed => self.enter(now, Released, &[Effect::Release]),
            _ => return None,
        })
    }

    fn resume(&mut self, now: Nanos, proof: Option<Proof>) -> Result<Vec<Effect>, Refusal> {
        use State::{Committed, Ended, Frozen, Offered, Released, Resumed, Shipping, Synced};
        Ok(match self.state {
            Offered => self.enter(now, Resumed(Why::Asked), &[]),
            Shipping => self.enter(now, Resumed(Why::Asked), &[Effect::TellAbort]),
            Frozen | Synced => self.enter(now, Resumed(Why::Asked), &[Effect::Thaw, Effect::TellAbort]),
            Committed if proof.is_some_and(|proof| proof.fence == self.fence) => {
                self.enter(now, Resumed(Why::Asked), &[Effect::Thaw, Effect::TellAbort])
            }
            Committed => return Err(Refusal::BadFence),
            Released | Ended => return Err(Refusal::Over),
            Resumed(_) => Vec::new(),
        })
    }

    fn send_delta(&mut self, wanted: bool) -> Vec<Effect> {
        if !wanted || self.delta_asked {
            return Vec::new();
        }
        self.delta_asked = true;
        vec![Effect::SendDelta]
    }

    fn enter(&mut self, now: Nanos, state: State, effects: &[Effect]) -> Vec<Effect> {
        self.state = state;
        self.deadline = now
            + match state {
                State::Offered | State::Shipping => self.limits.ship,
                State::Frozen | State::Synced => self.limits.freeze,
                State::Committed => self.limits.commit,
                State::Released | State::Resumed(_) | State::Ended => self.limits.remember,
            };
        effects.to_vec()
    }
}
