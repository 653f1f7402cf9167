//! How long an answer will be, before anybody knows: the mean of those that came, the recent ones counting most.
//!
//! A client's `max_tokens` says only how long it may be, mostly many times as much; booked as expected output it would fill
//! every engine on paper.

/// Weight of one answer.
const RATE: f64 = 0.05;

/// Exponential mean of output tokens per sequence.
#[derive(Clone, Copy, Debug)]
pub struct LikelyOutput {
    tokens: f64,
}

impl LikelyOutput {
    /// As assumed until answers come.
    #[must_use]
    pub fn new(assumed_tokens: u64) -> Self {
        LikelyOutput { tokens: assumed_tokens as f64 }
    }

    /// An answer of so many sequences had so many tokens together.
    pub fn learn(&mut self, tokens: u64, sequences: u64) {
        self.tokens += RATE * (tokens as f64 / sequences.max(1) as f64 - self.tokens);
    }

    /// Of one sequence, rounded up.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens.ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_came_per_sequence() {
        let mut likely = LikelyOutput::new(512);
        assert_eq!(likely.tokens(), 512);
        likely.learn(80, 0);
        assert!(likely.tokens() < 512);
        for _ in 0..200 {
            likely.learn(400, 4);
        }
        assert_eq!(likely.tokens(), 101, "100 and a rest of what was assumed");
    }
}
