//! Sessions under way: which call waits for which, and when it may begin.
//!
//! Agent traffic is a closed loop: the next call comes a pause after the answer. A slow fleet is therefore asked less, as it is in reality.
//! Held are only the sessions that have begun and not ended.

use crate::input::hash;
use crate::names;
use plimsoll_cache::session::{SessionsConfig, is_hit_round};
use plimsoll_core::Nanos;
use plimsoll_traffic::class::Past;
use plimsoll_workload::{Call, Session};

/// A session by number; reused after its end.
pub(crate) type SessionSlot = u32;

#[derive(Debug)]
struct Live {
    session: Session,
    /// Its place among those that have begun, from 0.
    nth: u64,
    /// Answers that each call still waits for, and the earliest it may begin.
    waits: Vec<(u32, Nanos)>,
    /// What each call has left for those that go on from it.
    left: Vec<Left>,
    /// Calls not yet answered.
    open: usize,
}

/// A call that was answered, as the turn before another.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Turns up to it that found most of the turn before them cached.
    hit_rounds: u32,
    /// 0 where there is none yet.
    prompt_tokens: u64,
    output_tokens: u64,
    ended: Nanos,
}

/// All sessions under way.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    live: Vec<Option<Live>>,
    free: Vec<SessionSlot>,
    begun: u64,
    longest_pause: Option<Nanos>,
    regions: usize,
    seed: u64,
}

impl Sessions {
    pub(crate) fn new(longest_pause: Option<Nanos>, regions: usize, seed: u64) -> Self {
        Sessions { longest_pause, regions, seed, ..Sessions::default() }
    }

    /// The region that a session comes from, by number; `None` where there are none. All of a session comes from one.
    pub(crate) fn region(&self, slot: SessionSlot) -> Option<usize> {
        let live = self.live.get(slot as usize)?.as_ref().filter(|_| self.regions > 0)?;
        Some((names::mix(hash(&live.session.id) ^ names::mix(self.seed)) % self.regions as u64) as usize)
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.live.len() - self.free.len()
    }

    /// A session begins; `ready` is told of every call that waits for nobody.
    pub(crate) fn begin(&mut self, now: Nanos, session: Session, mut ready: impl FnMut(SessionSlot, usize)) {
        let waits: Vec<(u32, Nanos)> = session.calls.iter().map(|call| (call.after.len() as u32, now)).collect();
        let first: Vec<usize> = (0..waits.len()).filter(|call| waits[*call].0 == 0).collect();
        let left = vec![Left::default(); waits.len()];
        let live = Live { open: session.calls.len(), nth: self.begun, waits, left, session };
        self.begun += 1;
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

    /// Its place among those that have begun, from 0.
    pub(crate) fn nth(&self, slot: SessionSlot) -> u64 {
        self.live.get(slot as usize).and_then(Option::as_ref).map_or(0, |live| live.nth)
    }

    pub(crate) fn call(&self, slot: SessionSlot, call: usize) -> Option<&Call> {
        self.live.get(slot as usize)?.as_ref()?.session.calls.get(call)
    }

    /// The turn before a call: the latest of those it waits for whose whole prompt it begins with.
    fn before(live: &Live, now: Nanos, call: usize) -> Option<Left> {
        let what = live.session.calls.get(call)?;
        let goes_on = |before: &usize| {
            let prompt = &live.session.calls[*before].prompt;
            prompt.full_blocks() > 0 && prompt.common_blocks(&what.prompt) == prompt.full_blocks()
        };
        let before = what.after.iter().map(|after| after.call).filter(goes_on).max()?;
        let left = live.left[before];
        let fresh = now.since(left.ended) <= SessionsConfig::default().idle;
        (left.prompt_tokens > 0 && fresh).then_some(left)
    }

    /// What the gateway knows of a call's session.
    pub(crate) fn past(&self, now: Nanos, slot: SessionSlot, call: usize) -> Past {
        let live = self.live.get(slot as usize).and_then(Option::as_ref);
        let Some((live, before)) = live.and_then(|live| Some((live, Self::before(live, now, call)?))) else {
            return Past::default();
        };
        let Left { hit_rounds, prompt_tokens, output_tokens, .. } = before;
        // Of a prompt that is sent again only the rounds are known; one that goes on is taken to have the answer in it.
        let known = hit_rounds > 0 || !Self::is_again(live, call, before);
        let most = live.session.calls.get(call).map_or(0, |what| what.prompt.tokens());
        Past { hit_rounds, known_tokens: if known { (prompt_tokens + output_tokens).min(most) } else { 0 } }
    }

    /// The prompt of the turn before, as it was: the same turn again, and no further round.
    fn is_again(live: &Live, call: usize, before: Left) -> bool {
        live.session.calls.get(call).is_some_and(|what| what.prompt.tokens() == before.prompt_tokens)
    }

    /// An engine has answered a call, and had so much of its prompt.
    pub(crate) fn served(
        &mut self,
        now: Nanos,
        slot: SessionSlot,
        call: usize,
        prompt_tokens: u64,
        cached_tokens: u64,
    ) {
        let Some(live) = self.live.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let before = Self::before(live, now, call);
        let further = before.filter(|before| !Self::is_again(live, call, *before));
        let hit = further.is_some_and(|before| is_hit_round(before.prompt_tokens, cached_tokens));
        let hit_rounds = before.map_or(0, |before| before.hit_rounds).saturating_add(u32::from(hit));
        let output_tokens = live.session.calls.get(call).map_or(0, |what| what.output_tokens);
        live.left[call] = Left { hit_rounds, prompt_tokens, output_tokens, ended: now };
    }

    /// A call is answered or has failed; `ready` is told when each call begins that waited for it alone.
    pub(crate) fn answered(&mut self, now: Nanos, slot: SessionSlot, call: usize, mut ready: impl FnMut(usize, Nanos)) {
        let longest = self.longest_pause;
        let Some(live) = self.live.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if live.left[call].prompt_tokens == 0 {
            // Nobody knows of it: who goes on from it goes on from the turn before.
            live.left[call] = Self::before(live, now, call).unwrap_or_default();
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_cache::session::{PromptEnd, TurnEnd};
    use plimsoll_core::{InstanceId, Rank, Target};
    use plimsoll_workload::{After, Prompt, Run};
    use proptest::prelude::*;

    const BLOCK: u64 = 64;

    fn call(nth: usize, runs: Vec<Run>) -> Call {
        Call {
            after: (nth > 0).then(|| After { call: nth - 1, delay: Nanos::ZERO }).into_iter().collect(),
            prompt: Prompt { block_tokens: BLOCK, runs, tail: None },
            echo_tokens: 0,
            output_tokens: 5,
            max_output_tokens: None,
            recorded: None,
        }
    }

    /// Each turn adds ten blocks; the sixth begins anew.
    #[test]
    fn rounds_are_turns_that_found_most_of_the_turn_before() {
        let mut calls: Vec<Call> =
            (0..5).map(|nth| call(nth, vec![Run { first: 0, len: 10 * (nth as u64 + 1) }])).collect();
        calls.push(call(5, vec![Run { first: 900, len: 10 }]));
        let session = Session { id: String::new(), start: Nanos::ZERO, prefix_blocks: None, calls };
        let mut sessions = Sessions::new(None, 0, 0);
        sessions.begin(Nanos::ZERO, session, |_, _| {});
        let mut rounds = Vec::new();
        // Blocks that each turn found: the third lost half and one of the turn before, the fourth failed.
        for (nth, cached) in [Some(0), Some(10), Some(9), None, Some(25), Some(0)].into_iter().enumerate() {
            let now = Nanos::from_secs(nth as u64);
            rounds.push(sessions.past(now, 0, nth).hit_rounds);
            if let Some(blocks) = cached {
                let prompt = sessions.call(0, nth).unwrap().prompt.tokens();
                sessions.served(now, 0, nth, prompt, blocks * BLOCK);
            }
            sessions.answered(now, 0, nth, |_, _| {});
        }
        assert_eq!(rounds, [0, 0, 1, 1, 1, 0]);
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn a_session_that_was_silent_for_long_begins_anew() {
        let calls = (0..3).map(|nth| call(nth, vec![Run { first: 0, len: 10 + nth as u64 }])).collect();
        let session = Session { id: String::new(), start: Nanos::ZERO, prefix_blocks: None, calls };
        let mut sessions = Sessions::new(None, 0, 0);
        sessions.begin(Nanos::ZERO, session, |_, _| {});
        sessions.served(Nanos::ZERO, 0, 0, 640, 0);
        sessions.served(Nanos::from_secs(1), 0, 1, 704, 640);
        assert_eq!(sessions.past(Nanos::from_secs(60), 0, 2), Past { hit_rounds: 1, known_tokens: 704 + 5 });
        assert_eq!(sessions.past(Nanos::from_secs(7 * 3_600), 0, 2), Past::default());
    }

    /// A turn of a random session: which turn it goes on from, how, and what becomes of it.
    #[derive(Clone, Debug)]
    struct Drawn {
        from: usize,
        /// 0: as it was; from 8 on: with another beginning.
        more_blocks: u64,
        /// Longer than a session may be silent.
        silent: bool,
        failed: bool,
        /// Of its prompt, in tenths.
        cached: u64,
    }

    fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
        let one = (0usize..100, 0u64..9, prop::bool::weighted(0.07), prop::bool::weighted(0.15), 0u64..=10);
        let turn = |(from, more_blocks, silent, failed, cached)| Drawn { from, more_blocks, silent, failed, cached };
        prop::collection::vec(one.prop_map(turn), 1..25)
    }

    proptest! {
        /// The gateway knows turns by their tokens, the simulator by the trace's own word: both say the same of every session, with
        /// branches, repetitions, failures, pauses and what was lost of the cache.
        #[test]
        fn turns_are_those_that_the_gateway_would_find(turns in drawn()) {
            let (mut calls, mut fresh, mut newest, mut since) = (Vec::<Call>::new(), 0u64, Vec::<usize>::new(), 0);
            let mut block = || { fresh += 1; Run { first: fresh, len: 1 } };
            for (nth, turn) in turns.iter().enumerate() {
                // Who repeats a turn takes its place, and what was before a long silence is gone on with only at its end: an old beginning
                // that was repeated since is known to the gateway alone.
                let from = (nth > since).then(|| newest[since + turn.from % (nth - since)]);
                since = if turn.silent { nth } else { since };
                let mut runs = from.filter(|_| turn.more_blocks < 8).map_or_else(Vec::new, |from| calls[from].prompt.runs.clone());
                // One that failed and is sent again is another call of the trace, and one turn to the gateway.
                let again = turn.more_blocks == 0 && !turn.failed && from.is_some_and(|from| !turns[from].failed);
                runs.extend((0..if again { 0 } else { turn.more_blocks.max(1) }).map(|_| block()));
                newest.push(nth);
                if again {
                    let place = from.unwrap_or(0);
                    newest.iter_mut().filter(|other| **other == place).for_each(|other| *other = nth);
                }
                let after = from.map(|call| After { call, delay: Nanos::ZERO }).into_iter().collect();
                calls.push(Call { after, ..call(0, runs) });
            }
            let session = Session { id: String::new(), start: Nanos::ZERO, prefix_blocks: None, calls: calls.clone() };
            let (mut ours, mut gateway) = (Sessions::new(None, 0, 0), plimsoll_cache::session::Sessions::new(SessionsConfig::default()));
            ours.begin(Nanos::ZERO, session, |_, _| {});
            let mut now = Nanos::ZERO;
            for (nth, turn) in turns.iter().enumerate() {
                now = now + if turn.silent { Nanos::from_secs(7 * 3_600) } else { Nanos::from_secs(1) };
                let prompt = &calls[nth].prompt;
                let mut names = Vec::new();
                names::extend(&mut names, prompt);
                let tokens: Vec<u32> = prompt.block_ids().flat_map(|id| (0..BLOCK).map(move |at| (id * 1_000 + at) as u32)).collect();
                let found = gateway.find(now, 1, &names, BLOCK as u32, &tokens);
                let theirs = Past { hit_rounds: found.hit_rounds, known_tokens: found.known_tokens(prompt.tokens(), prompt.tokens()) };
                prop_assert_eq!(ours.past(now, 0, nth), theirs, "turn {} of {:?}", nth, turns);
                if !turn.failed {
                    let cached = prompt.tokens() * turn.cached / 10;
                    ours.served(now, 0, nth, prompt.tokens(), cached);
                    let end = PromptEnd::of(1, &names, BLOCK as u32, &tokens, 0).unwrap();
                    let target = Target { instance: InstanceId(0), rank: Rank(0) };
                    gateway.ended(now, end, &found, TurnEnd { cached_tokens: Some(cached), output_tokens: Some(5), target });
                }
                ours.answered(now, 0, nth, |_, _| {});
            }
        }
    }
}
