//! The order in which a trace's calls would have arrived, without running them.
//!
//! What a cache holds depends on what came in between, so sessions that are recorded each on a clock of its own have to be laid
//! beside each other. The server is taken to be as fast as the recorded one was; pauses may be capped, since a person who
//! goes home for the night says nothing about a busy hour.

use crate::plan::Session;
use plimsoll_core::Nanos;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

/// How to lay sessions out whose start is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Sessions start uniformly over this time; zero: one after the other, each when the one before has ended.
    pub window: Nanos,
    /// Longest pause before a call.
    pub longest_pause: Nanos,
    pub seed: u64,
}

/// One call and when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub at: Nanos,
    /// Index of the session and of the call in it.
    pub session: usize,
    pub call: usize,
}

/// All calls in order of arrival; equal times in the order of the source.
#[must_use]
pub fn timeline(sessions: &[Session], spread: Option<Spread>) -> Vec<Moment> {
    let mut rng = ChaCha8Rng::seed_from_u64(spread.map_or(0, |spread| spread.seed));
    let mut moments = Vec::new();
    let mut last_end = Nanos::ZERO;
    for (index, session) in sessions.iter().enumerate() {
        let start = match spread {
            None => session.start,
            Some(spread) if spread.window == Nanos::ZERO => last_end,
            Some(spread) => Nanos(rng.random_range(0..spread.window.0)),
        };
        let mut ends: Vec<Nanos> = Vec::with_capacity(session.calls.len());
        for (call, what) in session.calls.iter().enumerate() {
            let ready = what.after.iter().map(|after| {
                let pause = spread.map_or(after.delay, |spread| after.delay.min(spread.longest_pause));
                ends.get(after.call).copied().unwrap_or(start) + pause
            });
            let at = ready.max().unwrap_or(start);
            ends.push(at + what.recorded.unwrap_or(Nanos::ZERO));
            moments.push(Moment { at, session: index, call });
        }
        last_end = ends.into_iter().max().unwrap_or(last_end).max(last_end);
    }
    moments.sort_by_key(|moment| moment.at);
    moments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{After, Call, Prompt};

    fn call(after: Option<(usize, u64)>, recorded_s: u64) -> Call {
        let after = after.map(|(call, s)| After { call, delay: Nanos::from_secs(s) }).into_iter().collect();
        let prompt = Prompt { block_tokens: 64, runs: Vec::new(), tail: None };
        Call {
            after,
            prompt,
            echo_tokens: 0,
            output_tokens: 1,
            max_output_tokens: None,
            recorded: Some(Nanos::from_secs(recorded_s)),
        }
    }

    fn session(calls: Vec<Call>) -> Session {
        Session { id: String::new(), start: Nanos::from_secs(7), prefix_blocks: None, calls }
    }

    fn seconds(moments: &[Moment]) -> Vec<(u64, usize, usize)> {
        moments.iter().map(|m| (m.at.0 / 1_000_000_000, m.session, m.call)).collect()
    }

    #[test]
    fn a_call_waits_for_the_recorded_answer_and_a_capped_pause() {
        let sessions = [session(vec![call(None, 5), call(Some((0, 100)), 1), call(Some((0, 2)), 1)])];
        assert_eq!(seconds(&timeline(&sessions, None)), [(7, 0, 0), (14, 0, 2), (112, 0, 1)]);
        let spread = Spread { window: Nanos::ZERO, longest_pause: Nanos::from_secs(60), seed: 1 };
        assert_eq!(seconds(&timeline(&sessions, Some(spread))), [(0, 0, 0), (7, 0, 2), (65, 0, 1)]);
    }

    #[test]
    fn without_a_window_sessions_follow_each_other_and_with_one_they_mix() {
        let sessions: Vec<Session> = (0..50).map(|_| session(vec![call(None, 5), call(Some((0, 1)), 4)])).collect();
        let spread = Spread { window: Nanos::ZERO, longest_pause: Nanos::MAX, seed: 1 };
        let one_by_one = timeline(&sessions, Some(spread));
        assert!(one_by_one.windows(2).all(|pair| pair[0].session <= pair[1].session));
        let mixed = timeline(&sessions, Some(Spread { window: Nanos::from_secs(20), ..spread }));
        assert!(mixed.windows(2).any(|pair| pair[0].session > pair[1].session));
        assert_eq!(mixed, timeline(&sessions, Some(Spread { window: Nanos::from_secs(20), ..spread })));
    }
}
