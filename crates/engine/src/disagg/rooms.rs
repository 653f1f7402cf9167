//! Where the two legs of a request find each other, whichever comes first.
//!
//! A room belongs to one prefill request from its arrival to its end, and to at most one decode engine: whoever asks for a
//! room that is taken is refused, because the two would get each other's pages. A room is free again as soon as its
//! request is over.

use super::notes::Note;
use crate::transfer::{Link, TransferError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

/// A decode engine that called for a room.
pub(crate) struct Caller {
    pub(crate) link: Link,
    pub(crate) prompt_tokens: usize,
    /// See [`Note::Open`].
    pub(crate) prompt: String,
}

/// The way to a prefill leg that waits for its caller.
type Seat = oneshot::Sender<Caller>;

#[derive(Clone, Default)]
pub(crate) struct Rooms(Arc<Mutex<HashMap<u64, Room>>>);

#[derive(Default)]
struct Room {
    /// A prefill request has it.
    taken: bool,
    /// Until its caller comes.
    seat: Option<Seat>,
    /// A caller who came first.
    caller: Option<oneshot::Sender<Seat>>,
}

/// A prefill request's right to its room, given up when dropped.
pub(crate) struct Guest {
    rooms: Rooms,
    room: u64,
    partner: oneshot::Receiver<Caller>,
}

/// A caller's turn in a room, given up when dropped.
pub(crate) struct Knock {
    rooms: Rooms,
    room: u64,
    seat: oneshot::Receiver<Seat>,
}

impl Rooms {
    /// A prefill request enters its room. `None` when another one has it.
    pub(crate) fn enter(&self, room: u64) -> Option<Guest> {
        let (seat, partner) = oneshot::channel();
        let mut rooms = self.0.lock();
        let place = rooms.entry(room).or_default();
        if place.taken {
            return None;
        }
        place.taken = true;
        place.seat = match place.caller.take() {
            // A caller that has gone gives the seat back.
            Some(caller) => caller.send(seat).err(),
            None => Some(seat),
        };
        Some(Guest { rooms: self.clone(), room, partner })
    }

    /// A decode engine asks for a room. `None` when another one did.
    pub(crate) fn knock(&self, room: u64) -> Option<Knock> {
        let (caller, seat) = oneshot::channel();
        let mut rooms = self.0.lock();
        let place = rooms.entry(room).or_default();
        if let Some(waiting) = place.seat.take() {
            // The other end is in hand.
            let _ = caller.send(waiting);
        } else if place.taken || place.caller.as_ref().is_some_and(|other| !other.is_closed()) {
            return None;
        } else {
            place.caller = Some(caller);
        }
        Some(Knock { rooms: self.clone(), room, seat })
    }

    /// Rooms with anybody in them.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn tidy(&self, room: u64, change: impl FnOnce(&mut Room)) {
        if let Entry::Occupied(mut entry) = self.0.lock().entry(room) {
            change(entry.get_mut());
            if !entry.get().taken && entry.get().caller.is_none() {
                entry.remove();
            }
        }
    }
}

impl Guest {
    /// Waits for the decode engine.
    ///
    /// # Errors
    /// When it came and went.
    pub(crate) async fn partner(&mut self) -> Result<Caller, TransferError> {
        (&mut self.partner).await.map_err(|_| TransferError::Closed)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.rooms.tidy(self.room, |room| {
            room.taken = false;
            room.seat = None;
        });
    }
}

impl Knock {
    /// Waits for the prefill request.
    pub(crate) async fn seat(&mut self) -> Result<Seat, TransferError> {
        (&mut self.seat).await.map_err(|_| TransferError::Closed)
    }
}

impl Drop for Knock {
    fn drop(&mut self) {
        self.seat.close();
        self.rooms.tidy(self.room, |room| {
            if room.caller.as_ref().is_some_and(oneshot::Sender::is_closed) {
                room.caller = None;
            }
        });
    }
}

/// Reads what a caller wants.
///
/// # Errors
/// When it is not a room.
pub(crate) fn opened(note: &[u8]) -> Result<(u64, usize, String), TransferError> {
    match Note::decode(note)? {
        Note::Open { room, prompt_tokens, prompt } => Ok((room, prompt_tokens, prompt)),
        _ => Err(TransferError::Unexpected("note before the room was named")),
    }
}
