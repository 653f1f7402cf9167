//! Those who send requests: what a trace does not know of them, and what they do about a refusal.

use super::{Event, World, precedence};
use crate::engine::Key;
use crate::session::SessionSlot;
use plimsoll_core::Nanos;
use plimsoll_load::AttemptEnd;
use plimsoll_traffic::class::Past;
use std::sync::Arc;

/// Which request, and how often it has been sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its session's place in the source, from 0.
    pub session: u64,
    pub call: u32,
    pub sending: u32,
}

/// What its caller says with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub tenant: Arc<str>,
    /// When its first token must be there.
    pub first_token_by: Option<Nanos>,
    /// When its caller leaves if the answer is not whole by then.
    pub gives_up_at: Option<Nanos>,
    /// Turns of its session before it that found their KV, where the source does not know the session as one.
    pub past: Option<Past>,
}

impl Default for Terms {
    fn default() -> Self {
        Terms { tenant: Arc::from("default"), first_token_by: None, gives_up_at: None, past: None }
    }
}

/// What a caller hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Whole {
        first_token: Nanos,
        cached_tokens: u64,
    },
    /// The rule, as reports name it.
    Refused(&'static str),
    GaveUp,
    Failed,
}

/// Who sends.
pub trait Callers {
    /// A request is about to be sent. `None`: something before the gateway refuses it. `least_busy` tells how many uncached prompt tokens the least busy
    /// engine has in front of it, as the gateway knows it.
    fn sends(&mut self, _now: Nanos, _asked: Asked, _least_busy: &mut dyn FnMut() -> u64) -> Option<Terms> {
        Some(Terms::default())
    }

    /// It was answered. `Some`: it is sent again after this time; otherwise its session goes on.
    fn hears(&mut self, _now: Nanos, _asked: Asked, _answer: Answer) -> Option<Nanos> {
        None
    }
}

/// Callers of a trace: one tenant, no promises, endless patience, nothing repeated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;
impl Callers for Plain {}

impl World<'_> {
    /// What the callers say of a request that is about to be sent, unless it is refused before the gateway.
    pub(super) fn terms(&mut self, asked: Asked) -> Option<Terms> {
        let (gateway, now) = (&mut self.gateway, self.now);
        self.callers.sends(now, asked, &mut || gateway.least_busy_tokens(now))
    }

    /// A caller hears what became of its request, and sends it again or goes on.
    pub(super) fn over(&mut self, session: SessionSlot, asked: Asked, answer: Answer) {
        let now = self.now;
        if let Some(pause) = self.callers.hears(now, asked, answer) {
            let sending = asked.sending.saturating_add(1);
            let again = Event::Call { session, call: asked.call, sending };
            // Never at this very moment again: time must pass.
            self.agenda.put(now + pause.max(Nanos(1)), precedence::CALL, again);
            return;
        }
        let agenda = &mut self.agenda;
        self.sessions.answered(now, session, asked.call as usize, |next, at| {
            agenda.put(at, precedence::CALL, Event::Call { session, call: next as u32, sending: 0 });
        });
    }

    /// The patience of a caller is at its end, unless it has its answer.
    pub(super) fn give_up(&mut self, number: u64) {
        let now = self.now;
        if let Some(waits) = self.waiting.remove(&number) {
            if let Some(door) = &mut self.door {
                door.cancel(now, number);
            }
            self.figures.refused(now, waits.class, "gave up");
            return self.over(waits.session, waits.asked, Answer::GaveUp);
        }
        let here = |request: &super::Request| request.number == number;
        let Some(slot) = self.requests.iter().position(|one| one.as_ref().is_some_and(here)) else { return };
        let key = Key(number << super::requests::SLOT_BITS | slot as u64);
        let Some(request) = self.take(key) else { return };
        self.gateway.failed(now, &request.open, AttemptEnd::Cancelled);
        if let Some(door) = &mut self.door {
            door.left(now, number);
        }
        let target = request.open.target;
        let ends = self.engines[target.instance.0 as usize].instance.abort(now, target.rank, key);
        self.announce(target.instance.0, ends);
        self.figures.failed(now, request.open.class);
        self.over(request.session, request.asked, Answer::GaveUp);
        self.give_turns();
    }
}
