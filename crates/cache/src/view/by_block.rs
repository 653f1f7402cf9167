//! A short list for each block that has one.

use crate::fingerprint_map::FingerprintMap;
use smallvec::SmallVec;

/// Mostly one or two; a system prompt's is as long as the fleet.
pub(super) type Cell<T> = SmallVec<[T; 2]>;

#[derive(Debug)]
pub(super) struct ByBlock<T> {
    /// From a block to its cell.
    at: FingerprintMap,
    cells: Vec<Cell<T>>,
    free: Vec<u32>,
}

impl<T> Default for ByBlock<T> {
    fn default() -> Self {
        ByBlock { at: FingerprintMap::default(), cells: Vec::new(), free: Vec::new() }
    }
}

impl<T> ByBlock<T> {
    pub(super) fn get(&self, block: u64) -> Option<&Cell<T>> {
        self.at.get(block).map(|at| &self.cells[at as usize])
    }

    /// The block's list, a new one where it has none. Whoever asks puts something in.
    pub(super) fn of(&mut self, block: u64) -> &mut Cell<T> {
        let at = self.at.get(block).unwrap_or_else(|| {
            let at = self.free.pop().unwrap_or_else(|| {
                self.cells.push(Cell::new());
                self.cells.len() as u32 - 1
            });
            self.at.insert(block, at);
            at
        });
        &mut self.cells[at as usize]
    }

    /// Takes from the block's list, if it has one; an empty one goes, and gives its memory back.
    pub(super) fn take<R>(&mut self, block: u64, from: impl FnOnce(&mut Cell<T>) -> R) -> Option<R> {
        let at = self.at.get(block)?;
        let cell = &mut self.cells[at as usize];
        let taken = from(cell);
        if cell.is_empty() {
            *cell = Cell::new();
            self.at.remove(block);
            self.free.push(at);
            if self.at.is_empty() {
                (self.cells, self.free) = (Vec::new(), Vec::new());
            }
        }
        Some(taken)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }
}
