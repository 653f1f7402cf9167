//! When those who are refused should come back: not all at once.

use plimsoll_core::Nanos;

const LEAST: Nanos = Nanos::from_secs(1);
const MOST: Nanos = Nanos::from_secs(300);
const LEAST_SPREAD_S: f64 = 3.0;

/// Seeded: the same calls give the same times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Jitter(seed)
    }

    /// `wait` (not known: a second) and up to half as long again, within what a client will believe. Clients are told whole seconds, so a short
    /// time is spread over several.
    pub(crate) fn spread(&mut self, wait: Option<Nanos>) -> Nanos {
        let wait = wait.unwrap_or(LEAST).clamp(LEAST, MOST);
        wait + Nanos::from_secs_f64((wait.as_secs_f64() * 0.5).max(LEAST_SPREAD_S) * self.draw())
    }

    /// Uniform in 0..1: splitmix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014).
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
