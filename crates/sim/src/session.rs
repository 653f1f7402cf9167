//! Sessions under way: which call waits for which, and when it may begin.
//!
//! Agent traffic is a closed loop: the next call comes a pause after the answer. A slow fleet is therefore asked less, as it is in reality.
//! Held are only the sessions that have begun and not ended.

use plimsoll_core::Nanos;
use plimsoll_workload::{Call, Session};

/// A session by number; reused after its end.
pub(crate) type SessionSlot = u32;

#[derive(Debug)]
struct Live {
    session: Session,
    /// Answers that each call still waits for, and the earliest it may begin.
    waits: Vec<(u32, Nanos)>,
    /// Calls not yet answered.
    open: usize,
}

/// All sessions under way.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    live: Vec<Option<Live>>,
    free: Vec<SessionSlot>,
    longest_pause: Option<Nanos>,
}

impl Sessions {
    pub(crate) fn new(longest_pause: Option<Nanos>) -> Self {
        Sessions { longest_pause, ..Sessions::default() }
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.live.len() - self.free.len()
    }

    /// A session begins; `ready` is told of every call that waits for nobody.
    pub(crate) fn begin(&mut self, now: Nanos, session: Session, mut ready: impl FnMut(SessionSlot, usize)) {
        let waits: Vec<(u32, Nanos)> = session.calls.iter().map(|call| (call.after.len() as u32, now)).collect();
        let first: Vec<usize> = (0..waits.len()).filter(|call| waits[*call].0 == 0).collect();
        let live = Live { open: session.calls.len(), waits, session };
        if live.open == 0 {
            return;
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.live[slot as usize] = Some(live);
                slot
            }
            None => {
                self.live.push(Some(live));
                self.live.len() as SessionSlot - 1
            }
        };
        first.into_iter().for_each(|call| ready(slot, call));
    }

    pub(crate) fn call(&self, slot: SessionSlot, call: usize) -> Option<&Call> {
        self.live.get(slot as usize)?.as_ref()?.session.calls.get(call)
    }

    /// A call is answered or has failed; `ready` is told when each call begins that waited for it alone.
    pub(crate) fn answered(&mut self, now: Nanos, slot: SessionSlot, call: usize, mut ready: impl FnMut(usize, Nanos)) {
        let longest = self.longest_pause;
        let Some(live) = self.live.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        for (next, what) in live.session.calls.iter().enumerate().skip(call + 1) {
            for after in what.after.iter().filter(|after| after.call == call) {
                let pause = longest.map_or(after.delay, |longest| after.delay.min(longest));
                let (waits, earliest) = &mut live.waits[next];
                *waits -= 1;
                *earliest = (*earliest).max(now + pause);
                if *waits == 0 {
                    ready(next, *earliest);
                }
            }
        }
        live.open -= 1;
        if live.open == 0 {
            self.live[slot as usize] = None;
            self.free.push(slot);
        }
    }
}
