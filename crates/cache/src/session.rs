//! Which turn of which session a request is, without anybody saying so.
//!
//! A client that goes a conversation on sends all of it again: the prompt of a turn begins with the prompt of the turn before, token by
//! token, up to the opening of the answer: a template that takes thoughts out of the history has other tokens there afterwards. So every
//! prompt that was answered is remembered by where it ends before that (the chained name of its last full block, and a hash of the
//! tokens behind it), and a new prompt is looked up from its deepest block upwards: the first end it meets is the turn before. A chained name
//! that is equal means that everything before it is, so the prompt itself is not kept. Tenant and model are part of every
//! key: a session is never another's.
//!
//! Prompts shorter than a block have no end; nothing of them is cached either. Bounded: two generations of ends, the older one goes when the younger is full.

use crate::fingerprint_map::FingerprintMap;
use plimsoll_core::{Nanos, Target};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// Most prompts remembered, at about 140 bytes each.
    pub max_ends: usize,
    /// A session that has been silent for longer begins anew.
    pub idle: Nanos,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        SessionsConfig { max_ends: 256 << 10, idle: Nanos::from_secs(6 * 3_600) }
    }
}

/// Prompts that differ behind the same last full block; further ones replace the one that was silent longest.
const MOST_TAILS: usize = 4;

/// Where a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptEnd {
    key: u64,
    tail: Tail,
    /// What only opens the answer, behind the tail.
    opening: Tail,
    prompt_tokens: u64,
}

/// A few tokens, known again by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    tokens: u32,
    hash: u64,
}

impl Tail {
    fn of(tokens: &[u32]) -> Tail {
        Tail { tokens: tokens.len() as u32, hash: hash(tokens) }
    }

    /// What follows, where `tokens` begin with it.
    fn strip(self, tokens: &[u32]) -> Option<&[u32]> {
        let (begin, rest) = tokens.split_at_checked(self.tokens as usize)?;
        (hash(begin) == self.hash).then_some(rest)
    }
}

/// What a request is in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// 1 for the first.
    pub number: u32,
    /// Turns before this one that found most of the turn before them cached.
    pub hit_rounds: u32,
    /// The turn before; `None` for the first one, and where a prompt is sent again as it was.
    pub previous: Option<Previous>,
}

/// The turn before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    pub prompt_tokens: u64,
    /// This prompt begins with all of that one. Else with what stood before the answer's opening.
    pub whole: bool,
    /// `None` where the engine did not say.
    pub output_tokens: Option<u64>,
    /// Who answered.
    pub target: Target,
    pub ended: Nanos,
}

impl Turn {
    pub const FIRST: Turn = Turn { number: 1, hit_rounds: 0, previous: None };

    /// Tokens of a prompt of so many that an engine had when the turn before was answered: its prompt and, where this one goes on with
    /// all of it, its answer. All of them where it is sent again as it was.
    ///
    /// `units`: what the prompt has in the measure in which [`Previous::prompt_tokens`] was counted: a prompt that is compared by its text has
    /// pieces, and of tokens only an estimate.
    #[must_use]
    pub fn known_tokens(&self, prompt_tokens: u64, units: u64) -> u64 {
        match self.previous {
            Some(previous) => {
                let share = u128::from(previous.prompt_tokens) * u128::from(prompt_tokens) / u128::from(units.max(1));
                let answer = previous.output_tokens.filter(|_| previous.whole).unwrap_or(0);
                u64::try_from(share).unwrap_or(u64::MAX).saturating_add(answer).min(prompt_tokens)
            }
            // Rounds, and nothing before it: it is a turn sent again.
            None if self.hit_rounds > 0 => prompt_tokens,
            None => 0,
        }
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnEnd {
    pub cached_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    pub target: Target,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    tail: Tail,
    opening: Tail,
    number: u32,
    hit_rounds: u32,
    prompt_tokens: u64,
    output_tokens: Option<u64>,
    target: Target,
    ended: Nanos,
}

#[derive(Debug, Default)]
struct Generation {
    by_key: FingerprintMap,
    ends: Vec<SmallVec<[Known; 1]>>,
    count: usize,
}

/// The sessions of all tenants.
#[derive(Debug, Default)]
pub struct Sessions {
    config: SessionsConfig,
    young: Generation,
    old: Generation,
}

/// What keeps sessions of different models and tenants apart.
#[must_use]
pub fn realm(model: &str, tenant: &str) -> u64 {
    xxh3_64_with_seed(tenant.as_bytes(), xxh3_64_with_seed(model.as_bytes(), model.len() as u64))
}

impl PromptEnd {
    /// `names` are those of the prompt's full blocks; its last `opening_tokens` only open the answer. `None` where there is no
    /// full block before those.
    #[must_use]
    pub fn of(
        realm: u64,
        names: &[u64],
        block_tokens: u32,
        tokens: &[u32],
        opening_tokens: usize,
    ) -> Option<PromptEnd> {
        let (before, opening) = tokens.split_at_checked(tokens.len().checked_sub(opening_tokens)?)?;
        let blocks = names.len().min(before.len() / block_tokens.max(1) as usize);
        let tail = before.get(blocks * block_tokens as usize..)?;
        Some(PromptEnd {
            key: key(realm, *names[..blocks].last()?),
            tail: Tail::of(tail),
            opening: Tail::of(opening),
            prompt_tokens: tokens.len() as u64,
        })
    }
}

/// Whether a turn found its session's KV: half of what the turn before left, since a system prompt that everybody has is no round
/// of this session.
#[must_use]
pub fn is_hit_round(previous_prompt_tokens: u64, cached_tokens: u64) -> bool {
    cached_tokens.saturating_mul(2) >= previous_prompt_tokens
}

fn key(realm: u64, name: u64) -> u64 {
    // One more round of mixing, so that a realm is no mere offset.
    (name ^ realm.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ realm
}

fn hash(tokens: &[u32]) -> u64 {
    let mut bytes = SmallVec::<[u8; 512]>::new();
    for token in tokens {
        bytes.extend_from_slice(&token.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, tokens.len() as u64)
}

impl Sessions {
    #[must_use]
    pub fn new(config: SessionsConfig) -> Self {
        Sessions { config, ..Sessions::default() }
    }

    /// Prompts remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.count + self.old.count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which turn a prompt is. O(blocks since the turn before); O(blocks) for a first one.
    #[must_use]
    pub fn find(&self, now: Nanos, realm: u64, names: &[u64], block_tokens: u32, tokens: &[u32]) -> Turn {
        for depth in (1..=names.len()).rev() {
            let key = key(realm, names[depth - 1]);
            let Some(rest) = tokens.get(depth * block_tokens as usize..) else { continue };
            let ends = [&self.young, &self.old].into_iter().flat_map(|generation| generation.at(key));
            let fresh = ends.filter(|end| now.since(end.ended) <= self.config.idle);
            let ours = fresh.filter_map(|end| Some((end, end.tail.strip(rest)?)));
            // The longest; of equal ones the newest.
            let Some((end, rest)) = ours.max_by_key(|(end, _)| (end.tail.tokens, end.ended)) else { continue };
            let whole = end.opening.strip(rest).is_some();
            if whole && end.prompt_tokens == tokens.len() as u64 {
                // The same prompt again: the same turn.
                return Turn { number: end.number, hit_rounds: end.hit_rounds, previous: None };
            }
            return Turn {
                number: end.number.saturating_add(1),
                hit_rounds: end.hit_rounds,
                previous: Some(Previous {
                    prompt_tokens: end.prompt_tokens,
                    whole,
                    output_tokens: end.output_tokens,
                    target: end.target,
                    ended: end.ended,
                }),
            };
        }
        Turn::FIRST
    }

    /// A turn has been answered: the next one will begin with its prompt.
    pub fn ended(&mut self, now: Nanos, prompt: PromptEnd, turn: &Turn, end: TurnEnd) {
        let hit = turn.previous.zip(end.cached_tokens);
        let hit = hit.is_some_and(|(previous, cached)| is_hit_round(previous.prompt_tokens, cached));
        let known = Known {
            tail: prompt.tail,
            opening: prompt.opening,
            number: turn.number,
            hit_rounds: turn.hit_rounds.saturating_add(u32::from(hit)),
            prompt_tokens: prompt.prompt_tokens,
            output_tokens: end.output_tokens,
            target: end.target,
            ended: now,
        };
        if self.young.count >= (self.config.max_ends / 2).max(1) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.put(prompt.key, known);
    }
}

impl Generation {
    fn at(&self, key: u64) -> &[Known] {
        self.by_key.get(key).map_or(&[], |at| &self.ends[at as usize])
    }

    fn put(&mut self, key: u64, known: Known) {
        let Some(at) = self.by_key.get(key) else {
            self.by_key.insert(key, self.ends.len() as u32);
            self.ends.push(SmallVec::from_elem(known, 1));
            self.count += 1;
            return;
        };
        let ends = &mut self.ends[at as usize];
        let same = |end: &Known| end.tail == known.tail;
        if let Some(end) = ends.iter_mut().find(|end| same(end)) {
            *end = known;
        } else if ends.len() < MOST_TAILS {
            ends.push(known);
            self.count += 1;
        } else if let Some(end) = ends.iter_mut().min_by_key(|end| end.ended) {
            *end = known;
        }
    }
}

#[cfg(test)]
mod tests;
