//! The global cache view: what every instance of a fleet holds, as far as it is known.
//!
//! Fed by KV events, by routing decisions that events have not confirmed yet, and corrected by what engines report of each
//! request. It answers one question: how many tokens of this prompt does each target have, and in which tier? An
//! instance whose stream has a hole, whose names do not fit its tokens or whose reports contradict what was believed gets no credit
//! until it has been learnt anew: affinity on a false belief costs more than none.

mod approximate;
mod by_block;
mod in_flight;
mod publisher;
mod speculative;

pub use publisher::{Belief, PublisherView};

use crate::chain::{NameFormat, Namespace, names};
use crate::fingerprint_map::FingerprintMap;
use crate::index::{Holder, Matched, PrefixIndex};
use crate::stream::{Step, Why};
use in_flight::InFlight;
use plimsoll_core::{EngineKind, KvBatch, KvEvent, Medium, Nanos, Target};
use publisher::Publisher;
use speculative::{Speculative, noted};
use std::collections::BTreeMap;

/// Bytes of an engine's name for a block of ours, in a tree that is two thirds full.
const NAMED_BYTES: usize = 24;

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewConfig {
    /// Most distinct blocks in all indexes of a view together; beyond, the publisher that has most is forgotten.
    pub max_blocks: usize,
    /// How long a routing decision counts without an event that confirms it.
    pub speculation: Nanos,
    /// How long it counts at a target that tells nothing, until the request has run.
    pub assumption: Nanos,
    /// Mean share of a prompt by which belief may exceed reports before a publisher is not believed any more.
    pub belief_error: f64,
    /// How long it is then learnt anew before it counts again.
    pub distrust: Nanos,
}

impl Default for ViewConfig {
    fn default() -> Self {
        ViewConfig {
            max_blocks: 50_000_000,
            speculation: Nanos::from_secs(2),
            assumption: Nanos::from_secs(60),
            belief_error: 0.2,
            distrust: Nanos::from_secs(30),
        }
    }
}

/// Blocks that are named alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    pub format: NameFormat,
    pub block_tokens: u32,
}

/// What a caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Ask this publisher for its messages from `from` on, and feed them to [`FleetView::replayed`].
    Replay { target: Target, from: u64 },
}

/// How much of a prompt a target has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// On the device, contiguous from the first token.
    pub device_tokens: u64,
    /// Behind those, to be loaded from host memory.
    pub host_tokens: u64,
    /// Part of `device_tokens` that only a recent routing decision says.
    pub speculative_tokens: u64,
    /// Part of `device_tokens` that requests which run there hold already: it takes no further room.
    pub shared_tokens: u64,
}

impl Hit {
    /// From depths in blocks; no more than `most` blocks can ever be hits.
    fn of(device: u64, guessed: u64, host: u64, most: u64, block: u64) -> Hit {
        let all = guessed.max(device).min(most);
        Hit {
            device_tokens: all * block,
            host_tokens: host.min(most).saturating_sub(all) * block,
            speculative_tokens: all.saturating_sub(device) * block,
            shared_tokens: 0,
        }
    }

    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.device_tokens + self.host_tokens
    }
}

/// A prompt's block names in every family in use.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    chains: Vec<(Family, Vec<u64>)>,
    tokens: u64,
}

impl Prompt {
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Names a prompt's blocks in these families; those without names for this namespace are left out.
    #[must_use]
    pub fn new(families: &[Family], namespace: Namespace<'_>, tokens: &[u32]) -> Self {
        let named = |family: &Family| Some((*family, names(family.format, family.block_tokens, namespace, tokens)?));
        Prompt { chains: families.iter().filter_map(named).collect(), tokens: tokens.len() as u64 }
    }

    /// A prompt whose blocks have names already: recorded ones, or those of a simulated engine.
    #[must_use]
    pub fn of_names(family: Family, names: Vec<u64>, tokens: u64) -> Self {
        Prompt { chains: vec![(family, names)], tokens }
    }

    /// Names of its full blocks, family by family.
    pub fn chains(&self) -> impl Iterator<Item = (Family, &[u64])> {
        self.chains.iter().map(|(family, chain)| (*family, chain.as_slice()))
    }

    fn chain(&self, family: Family) -> Option<&[u64]> {
        self.chains.iter().find(|(known, _)| *known == family).map(|(_, chain)| chain.as_slice())
    }
}

/// What an event takes while it is held back.
fn held_bytes(event: &KvEvent) -> usize {
    let more = match event {
        KvEvent::Stored(stored) => stored.names.len() * 8 + stored.tokens.len() * 4,
        KvEvent::Removed { names, .. } => names.len() * 8,
        KvEvent::Cleared => 0,
    };
    size_of::<KvEvent>() + more
}

/// The view of one model's fleet.
#[derive(Debug, Default)]
pub struct FleetView {
    config: ViewConfig,
    families: BTreeMap<Family, PrefixIndex>,
    publishers: BTreeMap<Target, Publisher>,
    /// Holder by number: what is in the indexes. `Host` stands for what a target has on the device or on its host.
    holders: Vec<Option<(Target, Medium)>>,
    speculative: Speculative,
    in_flight: InFlight,
    /// Publishers forgotten for want of room.
    overflows: u64,
}

impl FleetView {
    #[must_use]
    pub fn new(config: ViewConfig) -> Self {
        FleetView { config, ..FleetView::default() }
    }

    /// A target whose events will come. `kind` and `block_tokens`, where it is known already, say how its blocks are probably named; its
    /// first events confirm or refute it.
    pub fn add(&mut self, target: Target, kind: EngineKind, block_tokens: Option<u32>) {
        if self.publishers.contains_key(&target) {
            return;
        }
        let device = self.new_holder(target, Medium::Device);
        let either = self.new_holder(target, Medium::Host);
        self.publishers.insert(target, Publisher::new(kind, block_tokens, device, either));
    }

    fn new_holder(&mut self, target: Target, medium: Medium) -> Holder {
        let at = self.holders.iter().position(Option::is_none).unwrap_or(self.holders.len());
        if at == self.holders.len() {
            self.holders.push(None);
        }
        self.holders[at] = Some((target, medium));
        at as Holder
    }

    /// The target is gone, and everything believed of it.
    pub fn remove(&mut self, target: Target) {
        let Some(mut publisher) = self.publishers.remove(&target) else { return };
        self.clear(&mut publisher);
        for holder in publisher.holders() {
            self.holders[usize::from(holder)] = None;
        }
        self.speculative.forget(target);
    }

    fn clear(&mut self, publisher: &mut Publisher) {
        publisher.on_host = FingerprintMap::default();
        for index in self.families.values_mut() {
            for holder in publisher.holders() {
                if index.held_by(holder) > 0 {
                    index.clear(holder);
                }
            }
        }
        self.families.retain(|_, index| index.blocks() > 0);
    }

    /// A message from a publisher's live socket.
    pub fn live(&mut self, now: Nanos, target: Target, seq: u64, batch: KvBatch) -> Vec<Want> {
        let Some(publisher) = self.publishers.get_mut(&target) else { return Vec::new() };
        publisher.skipped += u64::from(batch.skipped);
        let bytes = batch.events.iter().map(held_bytes).sum();
        let steps = publisher.stream.live(now, seq, batch.at_unix_s, bytes, batch.events);
        self.obey(now, target, steps)
    }

    /// A message that a publisher sent again.
    pub fn replayed(&mut self, now: Nanos, target: Target, seq: u64, batch: KvBatch) -> Vec<Want> {
        let Some(publisher) = self.publishers.get_mut(&target) else { return Vec::new() };
        let steps = publisher.stream.replayed(seq, batch.events);
        self.obey(now, target, steps)
    }

    /// Nobody listens where the target published: its process has ended, and its KV with it.
    pub fn gone(&mut self, now: Nanos, target: Target) {
        let Some(publisher) = self.publishers.get_mut(&target) else { return };
        let steps = publisher.stream.gone();
        self.obey(now, target, steps);
    }

    /// The replay has ended, or its socket has failed.
    pub fn replay_ended(&mut self, now: Nanos, target: Target) -> Vec<Want> {
        let Some(publisher) = self.publishers.get_mut(&target) else { return Vec::new() };
        let steps = publisher.stream.replay_ended();
        self.obey(now, target, steps)
    }

    /// Time passes: replays that do not come, decisions that no event confirmed.
    pub fn tick(&mut self, now: Nanos) -> Vec<Want> {
        let targets: Vec<Target> = self.publishers.keys().copied().collect();
        targets.into_iter().flat_map(|target| self.tick_one(now, target)).collect()
    }

    /// Time passes for one of them.
    pub fn tick_one(&mut self, now: Nanos, target: Target) -> Vec<Want> {
        self.speculative.expire(now);
        let Some(publisher) = self.publishers.get_mut(&target) else { return Vec::new() };
        let steps = publisher.stream.tick(now);
        self.obey(now, target, steps)
    }

    fn obey(&mut self, now: Nanos, target: Target, steps: Vec<Step<Vec<KvEvent>>>) -> Vec<Want> {
        let mut wants = Vec::new();
        if steps.is_empty() {
            return wants;
        }
        let Some(mut publisher) = self.publishers.remove(&target) else { return wants };
        for step in steps {
            match step {
                Step::Replay { from } => wants.push(Want::Replay { target, from }),
                Step::Reset(why) => {
                    publisher.emptied += u64::from(why == Why::Restarted);
                    self.clear(&mut publisher);
                    self.speculative.forget(target);
                    publisher.forget();
                }
                Step::Apply(events) => {
                    for event in events {
                        self.apply(now, target, &mut publisher, event);
                    }
                }
            }
        }
        self.publishers.insert(target, publisher);
        wants
    }

    fn apply(&mut self, now: Nanos, target: Target, publisher: &mut Publisher, event: KvEvent) {
        match event {
            KvEvent::Cleared => {
                publisher.emptied += 1;
                self.clear(publisher);
                publisher.names.clear();
                self.speculative.forget(target);
            }
            KvEvent::Removed { names, medium } => {
                let Some(family) = publisher.family.filter(|_| medium != Medium::Storage) else { return };
                let Some(index) = self.families.get_mut(&family) else { return };
                let ours: Vec<u64> = match family.format {
                    NameFormat::Own => names.iter().filter_map(|name| publisher.names.get(name).copied()).collect(),
                    NameFormat::Sglang | NameFormat::VllmCbor => names.clone(),
                };
                let lost = publisher.lose(index, medium, &ours);
                publisher.unknown_removals += (names.len() - lost.held) as u64;
                if family.format == NameFormat::Own {
                    let mut nowhere = lost.nowhere;
                    nowhere.sort_unstable();
                    for name in &names {
                        if publisher.names.get(name).is_some_and(|ours| nowhere.binary_search(ours).is_ok()) {
                            publisher.names.remove(name);
                        }
                    }
                }
                if medium == Medium::Device {
                    ours.iter().for_each(|name| self.speculative.gone(target, *name));
                }
            }
            KvEvent::Stored(stored) => {
                // Storage is not announced reliably by any engine; it is not indexed.
                if stored.medium == Medium::Storage {
                    return;
                }
                if publisher.judge(now, &self.config, &stored) {
                    // Named otherwise than was thought: what was believed under the old names is void.
                    self.clear(publisher);
                    publisher.names.clear();
                }
                let Some(family) = publisher.family else { return };
                let Some((parent, chain)) = publisher.translate(&stored) else {
                    publisher.unplaced += stored.names.len() as u64;
                    return;
                };
                let index = self.families.entry(family).or_default();
                let placed = publisher.gain(index, stored.medium, parent, &chain);
                if family.format == NameFormat::Own {
                    publisher.names.extend(stored.names.iter().copied().zip(chain).take(placed));
                }
                self.make_room(now, publisher);
            }
        }
    }

    /// Where there are more blocks than there may be, whoever has most is forgotten and not believed for a while. `publisher` is out of
    /// the list while its events are applied.
    fn make_room(&mut self, now: Nanos, publisher: &mut Publisher) {
        while self.blocks() > self.config.max_blocks {
            self.overflows += 1;
            let held = |publisher: &Publisher| self.held_by(publisher);
            let largest = self.publishers.iter().max_by_key(|(_, other)| held(other));
            let largest = largest.filter(|(_, other)| held(other) > held(publisher)).map(|(target, _)| *target);
            let Some((target, mut other)) = largest.and_then(|target| self.publishers.remove_entry(&target)) else {
                self.drop_view(now, publisher);
                return;
            };
            self.drop_view(now, &mut other);
            self.publishers.insert(target, other);
        }
    }

    fn drop_view(&mut self, now: Nanos, publisher: &mut Publisher) {
        match publisher.approximate {
            Some(_) => self.start_over(publisher),
            None => self.clear(publisher),
        }
        publisher.names.clear();
        publisher.distrust(now, &self.config);
    }

    /// Blocks of a publisher, wherever.
    fn held_by(&self, publisher: &Publisher) -> u64 {
        let index = publisher.family.and_then(|family| self.families.get(&family));
        index.map_or(0, |index| publisher.holders().iter().map(|holder| index.held_by(*holder)).max().unwrap_or(0))
    }

    /// Families in use.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = self.publishers.values().filter_map(|publisher| publisher.family).collect();
        families.sort_unstable();
        families.dedup();
        families
    }

    /// Names a prompt's blocks in every family that is in use.
    #[must_use]
    pub fn prompt(&self, namespace: Namespace<'_>, tokens: &[u32]) -> Prompt {
        Prompt::new(&self.families(), namespace, tokens)
    }

    /// How much of a prompt each target has; targets that have nothing, or are not believed, are left out.
    #[must_use]
    pub fn hits(&self, now: Nanos, prompt: &Prompt) -> BTreeMap<Target, Hit> {
        let mut hits: BTreeMap<Target, Hit> = BTreeMap::new();
        let shared = self.in_flight.tokens(prompt);
        for (family, chain) in &prompt.chains {
            let matched = self.families.get(family).map_or_else(Matched::default, |index| index.matched(chain));
            let block = u64::from(family.block_tokens);
            // An engine always computes the last token itself.
            let most = prompt.tokens.saturating_sub(1) / block.max(1);
            let mut depths: BTreeMap<Target, (u64, u64)> = BTreeMap::new();
            for (holder, depth) in matched.iter() {
                let Some((target, medium)) = self.holders.get(usize::from(holder)).copied().flatten() else { continue };
                let entry = depths.entry(target).or_default();
                match medium {
                    Medium::Device => entry.0 = u64::from(depth),
                    _ => entry.1 = u64::from(depth),
                }
            }
            let noted = noted(*family, chain);
            for target in self.speculative.beginning(&noted.names) {
                depths.entry(target).or_default();
            }
            for (target, (device, host)) in depths {
                let Some(publisher) = self.publishers.get(&target) else { continue };
                if publisher.family != Some(*family) || !publisher.credited(now) {
                    continue;
                }
                let guessed = noted.depth(&self.speculative, now, target, device as usize) as u64;
                let mut hit = Hit::of(device, guessed, host, most, block);
                if hit.tokens() > 0 {
                    let shared =
                        shared.binary_search_by_key(&target, |(holder, _)| *holder).map_or(0, |at| shared[at].1);
                    hit.shared_tokens = shared.min(hit.device_tokens);
                    hits.insert(target, hit);
                }
            }
        }
        hits
    }

    /// What is believed of this target is its own word, and counts.
    #[must_use]
    pub fn told(&self, now: Nanos, target: Target) -> bool {
        let told = |publisher: &Publisher| publisher.approximate.is_none() && publisher.credited(now);
        self.publishers.get(&target).is_some_and(told)
    }

    /// How often the target has said that it holds nothing, or has been started anew.
    #[must_use]
    pub fn emptied(&self, target: Target) -> u64 {
        self.publishers.get(&target).map_or(0, |publisher| publisher.emptied)
    }

    /// There is a belief about this target that its reports can be held against.
    #[must_use]
    pub fn heard(&self, target: Target) -> bool {
        self.publishers.get(&target).is_some_and(Publisher::heard)
    }

    /// A request with this prompt goes to `target`: its blocks will soon be there. Returns what is believed to be there already,
    /// credited or not, so that a belief without credit can win it back by proving right. [`FleetView::left`] has to follow.
    pub fn routed(&mut self, now: Nanos, target: Target, prompt: &Prompt) -> Hit {
        self.in_flight.enter(target, prompt);
        let Some(publisher) = self.publishers.get(&target) else { return Hit::default() };
        let Some((family, chain)) = publisher.family.and_then(|family| Some((family, prompt.chain(family)?))) else {
            return Hit::default();
        };
        let matched = self.families.get(&family).map_or_else(Matched::default, |index| index.matched(chain));
        let [device, host] = publisher.holders().map(|holder| matched.depth(holder) as usize);
        let noted = noted(family, chain);
        let guessed = noted.depth(&self.speculative, now, target, device);
        let block = u64::from(family.block_tokens);
        let most = prompt.tokens.saturating_sub(1) / block.max(1);
        let (heard, until) = (publisher.heard(), now + self.counts_for(publisher));
        self.speculative.add(until, target, noted.behind(device));
        if heard { Hit::of(device as u64, guessed as u64, host as u64, most, block) } else { Hit::default() }
    }

    /// The request that went there runs there no more, however it ended. Once for every [`FleetView::routed`].
    pub fn left(&mut self, target: Target, prompt: &Prompt) {
        self.in_flight.leave(target, prompt);
    }

    /// How long a routing decision counts there by itself.
    fn counts_for(&self, publisher: &Publisher) -> Nanos {
        if publisher.approximate.is_some() { self.config.assumption } else { self.config.speculation }
    }

    /// The request that went there at `routed` has run, at least as far as its first output: a target that tells nothing has its prompt
    /// now.
    pub fn ran(&mut self, routed: Nanos, now: Nanos, target: Target, prompt: &Prompt) {
        let Some(publisher) = self.publishers.get(&target) else { return };
        let Some((family, chain)) = publisher.family.and_then(|family| Some((family, prompt.chain(family)?))) else {
            return;
        };
        if publisher.approximate.is_some() {
            self.withdrawn(routed, target, prompt);
            self.assume(now, target, family, chain);
        }
    }

    /// The request that went there at `routed` did not run there after all, or not to its end: what its events have not said is not there.
    /// What another request has said since stays.
    pub fn withdrawn(&mut self, routed: Nanos, target: Target, prompt: &Prompt) {
        let Some(publisher) = self.publishers.get(&target) else { return };
        let until = routed + self.counts_for(publisher);
        let Some((family, chain)) = publisher.family.and_then(|family| Some((family, prompt.chain(family)?))) else {
            return;
        };
        for block in noted(family, chain).names.iter() {
            self.speculative.withdrawn(target, *block, until);
        }
    }

    /// The engine said how many tokens of a prompt it had; `believed` is what was expected when the request was placed there.
    /// This judges the target. It takes nothing out of the index: what the engine did not have it has computed since, and its events
    /// have said so.
    pub fn reported(&mut self, now: Nanos, target: Target, prompt: &Prompt, believed: Hit, cached_tokens: u64) {
        let Some(publisher) = self.publishers.get_mut(&target) else { return };
        publisher.learn(now, &self.config, prompt.tokens, believed, cached_tokens);
    }

    /// Distinct blocks in all indexes.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.families.values().map(PrefixIndex::blocks).sum()
    }

    /// Bytes of memory held by the indexes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.families.values().map(PrefixIndex::bytes).sum::<usize>() + self.beside_indexes()
    }

    /// About as much, without looking at every edge.
    #[must_use]
    pub fn about_bytes(&self) -> usize {
        self.families.values().map(PrefixIndex::about_bytes).sum::<usize>() + self.beside_indexes()
    }

    fn beside_indexes(&self) -> usize {
        let one = |publisher: &Publisher| publisher.on_host.bytes() + publisher.names.len() * NAMED_BYTES;
        self.publishers.values().map(one).sum()
    }

    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Every target with the state of its stream, for operators.
    pub fn publishers(&self, now: Nanos) -> impl Iterator<Item = (Target, PublisherView)> + '_ {
        self.publishers.iter().map(move |(target, publisher)| {
            let family = publisher.family.and_then(|family| self.families.get(&family));
            let held = |holder| family.map_or(0, |index| index.held_by(holder));
            (*target, publisher.view(now, held(publisher.device)))
        })
    }
}

#[cfg(test)]
mod tests;
