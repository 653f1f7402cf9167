//! What happens next: events in order of time, equal times by precedence, then in the order in which they
//! were written down.
//!
//! A heap alone orders equal times as it likes, and a run would then depend on its implementation. Every entry carries a
//! running number, so that the same calls give the same order on any machine.

use plimsoll_core::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events to come.
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    numbered: u64,
}

/// Time, precedence, number, event.
type Entry<E> = Reverse<(Nanos, u8, u64, Held<E>)>;

/// Not compared: time and number have decided before.
#[derive(Debug)]
struct Held<E>(E);

impl<E> PartialEq for Held<E> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<E> Eq for Held<E> {}
impl<E> PartialOrd for Held<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Held<E> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Agenda { heap: BinaryHeap::new(), numbered: 0 }
    }
}

impl<E> Agenda<E> {
    /// Of equal times the lower `precedence` is first.
    pub fn put(&mut self, at: Nanos, precedence: u8, event: E) {
        self.numbered += 1;
        self.heap.push(Reverse((at, precedence, self.numbered, Held(event))));
    }

    /// The earliest event, the first written down among equals.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|Reverse((at, .., Held(event)))| (at, event))
    }

    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_their_order() {
        let mut agenda = Agenda::default();
        for n in 0..100u64 {
            let precedence = (n % 2) as u8;
            agenda.put(Nanos(n % 3), precedence, (precedence, n));
        }
        let order: Vec<(Nanos, (u8, u64))> = std::iter::from_fn(|| agenda.pop()).collect();
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
        assert_eq!(order.len(), 100);
    }
}
