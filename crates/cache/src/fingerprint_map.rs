//! From a 64-bit fingerprint to a 32-bit number: open addressing, 12 bytes a place.
//!
//! The index and the funnel look up nothing else, millions of times a second, and neither may depend on an order that
//! changes from run to run. Keys are chained block hashes, so one multiplication spreads them well enough; small keys (block
//! ids of traces) are spread by it too. Key and value lie in one cache line. Linear probing with backward shift: no tombstones, so
//! that a map that empties is as fast as a new one, and it gives memory back when it is a quarter full.

/// The map. Iteration is not offered.
#[derive(Clone, Debug)]
pub struct FingerprintMap {
    /// Halves of the key, then the value; [`FREE`] marks a free place.
    places: Vec<[u32; 3]>,
    len: usize,
}

/// Not a value.
const FREE: u32 = u32::MAX;
const SMALLEST: usize = 16;

impl Default for FingerprintMap {
    fn default() -> Self {
        FingerprintMap { places: vec![[0, 0, FREE]; SMALLEST], len: 0 }
    }
}

fn place(key: u64, value: u32) -> [u32; 3] {
    [key as u32, (key >> 32) as u32, value]
}

fn key_of(place: [u32; 3]) -> u64 {
    u64::from(place[0]) | u64::from(place[1]) << 32
}

impl FingerprintMap {
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<[u32; 3]>()
    }

    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing: the high bits are the mixed ones.
        let bits = self.places.len().trailing_zeros();
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    fn find(&self, key: u64) -> Result<usize, usize> {
        let mask = self.places.len() - 1;
        let mut at = self.home(key);
        loop {
            let place = self.places[at];
            if place[2] == FREE {
                return Err(at);
            }
            if key_of(place) == key {
                return Ok(at);
            }
            at = (at + 1) & mask;
        }
    }

    #[must_use]
    pub fn get(&self, key: u64) -> Option<u32> {
        self.find(key).ok().map(|at| self.places[at][2])
    }

    /// Sets the value of a key and returns the one before. `value` must be less than `u32::MAX`.
    pub fn insert(&mut self, key: u64, value: u32) -> Option<u32> {
        debug_assert_ne!(value, FREE);
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.places[at][2], value)),
            Err(at) => {
                self.fill(at, key, value);
                None
            }
        }
    }

    /// Sets the value of a key that has none. False, and nothing done, when it has one.
    pub fn insert_new(&mut self, key: u64, value: u32) -> bool {
        debug_assert_ne!(value, FREE);
        let free = self.find(key).err();
        if let Some(at) = free {
            self.fill(at, key, value);
        }
        free.is_some()
    }

    fn fill(&mut self, at: usize, key: u64, value: u32) {
        self.places[at] = place(key, value);
        self.len += 1;
        if self.len * 8 > self.places.len() * 7 {
            self.resize(self.places.len() * 2);
        }
    }

    pub fn remove(&mut self, key: u64) -> Option<u32> {
        let at = self.find(key).ok()?;
        let value = self.places[at][2];
        self.len -= 1;
        let mask = self.places.len() - 1;
        let (mut hole, mut next) = (at, (at + 1) & mask);
        while self.places[next][2] != FREE {
            // An entry may fill the hole unless its home lies behind the hole.
            let home = self.home(key_of(self.places[next]));
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.places[hole][2] = FREE;
        if self.places.len() > SMALLEST && self.len * 4 < self.places.len() {
            self.resize(self.places.len() / 2);
        }
        Some(value)
    }

    fn resize(&mut self, places: usize) {
        let old = std::mem::replace(&mut self.places, vec![[0, 0, FREE]; places]);
        for place in old.into_iter().filter(|place| place[2] != FREE) {
            if let Err(at) = self.find(key_of(place)) {
                self.places[at] = place;
            }
        }
    }
}

#[cfg(test)]
mod tests;
