//! Who may emit: the two halves of a migration as pure state machines.
//!
//! The rule is one baton. The source has it at first; `commit` takes it from the source and gives the driver the *fence*;
//! `take_over` with the fence gives it to the target. In between nobody has it. (Or, when the driver wants the shortest
//! pause, the source commits with its last word and the target takes over with it, see [`source::When::Sent`].) It goes back to the source only when the
//! target can never get it: the target has aborted (which is for ever), or the driver says that it is gone. No clock is
//! part of this, so no delay, pause or drift can let two sides emit; clocks only decide when to give up.
//!
//! ```text
//!  source                                                 target
//!
//!  Offered ──start──► Shipping ──freeze──► Frozen         Reserved ──(source connects)──► Receiving
//!     │ emits            │ emits             │ delta         │                               │ all here,
//!     │                  │                   ▼ confirmed     │                               ▼ sums agree
//!     │                  │                 Synced            │                             Ready ──take_over──► TakenOver
//!     │                  │                   │ commit        │                               │    (fence)          │ emits
//!     ▼                  ▼                   ▼               ▼                               ▼                     ▼
//!  Resumed ◄──any failure, expiry──── Committed ──release──► Released                     Done
//!    emits   (from Committed: target          (or expiry)    Aborted ◄──abort, expiry, damage, source's word
//!             refused, or proof)                             for ever, everything freed
//! ```
//!
//! `Ended` at the source: the request was complete, aborted or left by its reader before the commit. The small world in
//! the tests tries every order of verbs, losses, repetitions, expiries and crashes on the pair.

pub(crate) mod source;
pub(crate) mod target;
#[cfg(test)]
mod tests;

/// Known to the source, from the last block on to the target, and from the commit on to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fence(pub(crate) u128);

impl std::fmt::Debug for Fence {
    /// Not its value: it opens a door.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fence")
    }
}

/// Why a migration did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Why {
    /// By a verb.
    Asked,
    Expired,
    LinkLost,
    /// The target gave up.
    Refused,
    /// The source gave up, or the request ended there.
    SourceAborted,
    /// Counts or sums did not agree.
    Damaged,
    /// The request was aborted.
    Cancelled,
}

impl Why {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Why::Asked => "asked",
            Why::Expired => "expired",
            Why::LinkLost => "link_lost",
            Why::Refused => "target_refused",
            Why::SourceAborted => "source_aborted",
            Why::Damaged => "damaged",
            Why::Cancelled => "cancelled",
        }
    }
}

/// Why a verb was not obeyed. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// It comes too early.
    WrongState,
    /// The migration has ended in a way that the verb cannot follow.
    Over,
    BadFence,
    /// The target's side of it: it has the request.
    TakenOver,
    /// The target's side: it has everything and has lost the source, which may have committed.
    CutOff,
}
