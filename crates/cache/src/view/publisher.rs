//! One publisher: its stream, how it names blocks, and whether what it says has proved true.

use super::approximate::Approximate;
use super::{Family, Hit, ViewConfig};
use crate::chain::{NameFormat, Namespace, names, own_name, own_root};
use crate::fingerprint_map::FingerprintMap;
use crate::index::{Holder, PrefixIndex};
use crate::stream::{Stream, Trust};
use plimsoll_core::{EngineKind, KvEvent, Medium, Nanos, StoredBlocks};
use std::collections::BTreeMap;

/// Reports before the belief is judged.
const FEWEST_REPORTS: u32 = 8;
const SMOOTHING: f64 = 0.1;
/// Reports without complaint after which earlier ones are forgiven, and credit is back.
const PROVEN_REPORTS: u32 = 100;
/// A guess that is wrong again and again is left alone for 128 times as long as at first.
const MOST_DOUBLINGS: u32 = 7;

/// How belief and reports have compared, in shares of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Belief {
    pub reports: u64,
    /// Smoothed (believed - reported) / prompt tokens: above zero, more was believed than was there. Of all reports, those before a
    /// loss of credit too.
    pub error: f64,
    /// Smoothed |believed - reported| / prompt tokens: how far off, whichever way.
    pub deviation: f64,
    /// Tokens believed and tokens reported, summed.
    pub believed_tokens: u64,
    pub reported_tokens: u64,
}

/// A publisher as operators see it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublisherView {
    /// It tells nothing; what it holds is taken from what was sent there.
    pub approximate: bool,
    pub trust: Trust,
    /// Credited for what it is believed to hold.
    pub credited: bool,
    pub family: Option<Family>,
    pub device_blocks: u64,
    pub host_blocks: u64,
    pub belief: Belief,
    pub gaps: u64,
    pub duplicates: u64,
    /// Events in a form that is not known.
    pub skipped: u64,
    /// Blocks that could not be placed: their parent is not known.
    pub unplaced: u64,
    /// Blocks that were given up and had not been known.
    pub unknown_removals: u64,
    /// Events whose names do not follow from their tokens.
    pub misnamed: u64,
}

/// What became of blocks that a publisher says it has lost.
#[derive(Debug)]
pub(super) struct Lost {
    /// How many of them it was known to have.
    pub(super) held: usize,
    /// Those that it has neither on the device nor on the host now.
    pub(super) nowhere: Vec<u64>,
}

/// How engines of a kind name blocks, as long as nothing else is known.
fn guess(kind: EngineKind) -> NameFormat {
    match kind {
        EngineKind::Sglang => NameFormat::Sglang,
        EngineKind::Vllm | EngineKind::Openai => NameFormat::Own,
    }
}

#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) stream: Stream<Vec<KvEvent>>,
    kind: EngineKind,
    pub(super) device: Holder,
    /// Of what is on the device or on the host. A page on the host hangs on one that may be on the device only, so what the host
    /// has by itself is no chain.
    either: Holder,
    /// What is on the host.
    pub(super) on_host: FingerprintMap,
    pub(super) family: Option<Family>,
    /// The format has been seen to hold on a root block.
    proven: bool,
    /// From its names to ours, where its own mean nothing here.
    pub(super) names: BTreeMap<u64, u64>,
    /// Its assumed cache, where it tells nothing.
    pub(super) approximate: Option<Approximate>,
    belief: Belief,
    /// The error of the reports that are judged by, since the credit was lost last.
    judged_error: f64,
    judged: u32,
    distrusted_until: Option<Nanos>,
    /// Times in a row that it was found wrong.
    distrusts: u32,
    pub(super) skipped: u64,
    pub(super) unplaced: u64,
    pub(super) unknown_removals: u64,
    /// Times that it had nothing any more, by its own word.
    pub(super) emptied: u64,
    misnamed: u64,
}

impl Publisher {
    pub(super) fn new(kind: EngineKind, block_tokens: Option<u32>, device: Holder, either: Holder) -> Self {
        let named = |block_tokens| Family { format: guess(kind), block_tokens };
        Publisher {
            stream: Stream::default(),
            kind,
            device,
            either,
            on_host: FingerprintMap::default(),
            family: block_tokens.filter(|tokens| *tokens > 0).map(named),
            proven: false,
            names: BTreeMap::new(),
            approximate: None,
            belief: Belief::default(),
            judged_error: 0.0,
            judged: 0,
            distrusted_until: None,
            distrusts: 0,
            skipped: 0,
            unplaced: 0,
            unknown_removals: 0,
            emptied: 0,
            misnamed: 0,
        }
    }

    pub(super) fn holders(&self) -> [Holder; 2] {
        [self.device, self.either]
    }

    /// It has these blocks now, on the device or else on the host.
    ///
    /// Returns how many of them have a place.
    pub(super) fn gain(
        &mut self,
        index: &mut PrefixIndex,
        medium: Medium,
        parent: Option<u64>,
        chain: &[u64],
    ) -> usize {
        let either = index.store(self.either, parent, chain).unplaced;
        let unplaced = if medium == Medium::Device { index.store(self.device, parent, chain).unplaced } else { either };
        self.unplaced += unplaced;
        let placed = chain.len() - unplaced as usize;
        if medium != Medium::Device {
            for name in &chain[..placed] {
                self.on_host.insert(*name, 0);
            }
        }
        placed
    }

    /// It has lost these blocks there. Says of each whether it was known to have it there, and whether it is nowhere any more.
    pub(super) fn lose(&mut self, index: &mut PrefixIndex, medium: Medium, names: &[u64]) -> Lost {
        let (held, elsewhere): (Vec<bool>, Vec<bool>) = match medium {
            Medium::Device => {
                let held = index.remove_each(self.device, names);
                (held, names.iter().map(|name| self.on_host.get(*name).is_some()).collect())
            }
            _ => {
                let held = names.iter().map(|name| self.on_host.remove(*name).is_some()).collect();
                (held, index.holds_each(self.device, names))
            }
        };
        let nowhere: Vec<u64> =
            names.iter().zip(&elsewhere).filter(|(_, elsewhere)| !**elsewhere).map(|(name, _)| *name).collect();
        index.remove_each(self.either, &nowhere);
        Lost { held: held.into_iter().filter(|held| *held).count(), nowhere }
    }

    /// Starts anew after a restart or a hole.
    pub(super) fn forget(&mut self) {
        self.names.clear();
        self.proven = false;
    }

    pub(super) fn credited(&self, now: Nanos) -> bool {
        self.heard() && self.distrusted_until.is_none_or(|until| now >= until)
    }

    /// There is a belief to speak of.
    pub(super) fn heard(&self) -> bool {
        self.approximate.is_some() || matches!(self.stream.trust(), Trust::Whole | Trust::Partial)
    }

    pub(super) fn distrust(&mut self, now: Nanos, config: &ViewConfig) {
        // Events will put a view right; a guess stays as wrong as it is, so it is tried again less and less often.
        let times = if self.approximate.is_some() { 1 << self.distrusts.min(MOST_DOUBLINGS) } else { 1 };
        self.distrusts = self.distrusts.saturating_add(1);
        self.distrusted_until = Some(now + Nanos(config.distrust.0.saturating_mul(times)));
    }

    /// Finds out how this publisher names blocks, from the first root block it tells of. True when that changes what was
    /// thought.
    pub(super) fn judge(&mut self, now: Nanos, config: &ViewConfig, stored: &StoredBlocks) -> bool {
        let guess = Family { format: guess(self.kind), block_tokens: stored.block_tokens };
        let known = self.family.unwrap_or(guess);
        if stored.block_tokens == 0 {
            self.misnamed += 1;
            return false;
        }
        let resized = known.block_tokens != stored.block_tokens;
        let mut format = known.format;
        if (!self.proven || resized) && stored.parent.is_none() && !stored.tokens.is_empty() {
            let namespace =
                Namespace { cache_salt: stored.cache_salt.as_deref(), lora: stored.lora.as_deref(), extra_key: None };
            let first = stored.names.first();
            let block = stored.tokens.get(..stored.block_tokens as usize).unwrap_or_default();
            let holds = |format| {
                names(format, stored.block_tokens, namespace, block).is_some_and(|names| names.first() == first)
            };
            let found = [NameFormat::Sglang, NameFormat::VllmCbor].into_iter().find(|format| holds(*format));
            // Adapters are named in ways that are not known here: no proof against the format.
            if let Some(found) = found {
                (format, self.proven) = (found, true);
            } else if stored.lora.is_none() {
                (format, self.proven) = (NameFormat::Own, true);
                if self.kind == EngineKind::Sglang {
                    // Its names should follow from its tokens: another seed, another model, or lies.
                    self.misnamed += 1;
                    self.distrust(now, config);
                }
            }
        }
        let family = Family { format, block_tokens: stored.block_tokens };
        let changed = self.family.is_some_and(|known| known != family);
        self.family = Some(family);
        changed
    }

    /// Parent and blocks as the index names them. `None` where the parent has no name here, or no tokens came.
    pub(super) fn translate(&self, stored: &StoredBlocks) -> Option<(Option<u64>, Vec<u64>)> {
        let family = self.family?;
        if family.format != NameFormat::Own {
            return Some((stored.parent, stored.names.clone()));
        }
        let blocks = stored.tokens.chunks_exact(family.block_tokens as usize);
        if blocks.len() != stored.names.len() {
            return None;
        }
        let namespace =
            Namespace { cache_salt: stored.cache_salt.as_deref(), lora: stored.lora.as_deref(), extra_key: None };
        let parent = match stored.parent {
            Some(parent) => Some(*self.names.get(&parent)?),
            None => None,
        };
        let mut previous = parent.unwrap_or_else(|| own_root(namespace));
        let mut chain = Vec::with_capacity(stored.names.len());
        for block in blocks {
            previous = own_name(previous, block);
            chain.push(previous);
        }
        Some((parent, chain))
    }

    /// Compares belief with what the engine said.
    pub(super) fn learn(&mut self, now: Nanos, config: &ViewConfig, prompt: u64, believed: Hit, cached: u64) {
        if prompt == 0 {
            return;
        }
        self.belief.reports += 1;
        let cached = cached.min(prompt);
        self.belief.believed_tokens += believed.tokens();
        self.belief.reported_tokens += cached;
        let error = (believed.tokens() as f64 - cached as f64) / prompt as f64;
        self.belief.error += SMOOTHING * (error - self.belief.error);
        self.belief.deviation += SMOOTHING * (error.abs() - self.belief.deviation);
        self.judged_error += SMOOTHING * (error - self.judged_error);
        self.judged += 1;
        if self.judged < FEWEST_REPORTS {
            return;
        }
        if self.judged_error > config.belief_error {
            self.distrust(now, config);
            (self.judged, self.judged_error) = (0, 0.0);
        } else if self.judged >= PROVEN_REPORTS {
            (self.distrusts, self.distrusted_until) = (0, None);
        }
    }

    pub(super) fn view(&self, now: Nanos, device_blocks: u64) -> PublisherView {
        PublisherView {
            approximate: self.approximate.is_some(),
            trust: self.stream.trust(),
            credited: self.credited(now),
            family: self.family,
            device_blocks,
            host_blocks: self.on_host.len() as u64,
            belief: self.belief,
            gaps: self.stream.gaps(),
            duplicates: self.stream.duplicates(),
            skipped: self.skipped,
            unplaced: self.unplaced,
            unknown_removals: self.unknown_removals,
            misnamed: self.misnamed,
        }
    }
}
