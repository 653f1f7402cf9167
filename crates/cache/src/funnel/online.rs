//! The funnel of one model while it serves: four layers of the same requests, and what is lost between them.
//!
//! Two questions per request. When it is placed: what would a cache without limit, one pool of the fleet's size, and the chosen
//! rank's own cache have of it? One [`RunStack`] over all arrivals answers the first two (and every other pool size), one per rank, bounded at
//! what that rank can hold and fed with what was really sent there, the third. When it has ended: what did the engine have? Only
//! requests that have both answers count, in all layers alike; the others are counted by why they do not.
//!
//! Memory: at most `max_blocks` blocks in the pool and as many in all ranks together, 8 bytes each (16 at the worst, where lists have just
//! grown), and about 130 bytes for each of the `max_nodes` pieces of either. When a bound bites the report says `bounded`, and figures
//! are those of smaller caches than there are.

use super::recent::Recent;
use super::run_stack::{Pieces, RunStack};
use super::sums::{CellKey, Gain, Layer, Loss, Sums, Unmeasured};
use crate::view::{Family, Hit};
use plimsoll_core::{Nanos, RequestId, Target};
use std::collections::{BTreeMap, VecDeque};
use std::ops::AddAssign;

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunnelConfig {
    /// How long a block counts as seen.
    pub window: Nanos,
    /// Most blocks in the pool, and in all ranks' shadows together.
    pub max_blocks: u64,
    /// Most pieces of path, likewise.
    pub max_nodes: usize,
    /// `recent` figures cover one to two of these.
    pub period: Nanos,
    /// Most requests placed and not yet ended.
    pub max_pending: usize,
    /// Most pairs of class and tenant; further ones are counted as the tenant `other`.
    pub max_cells: usize,
}

impl Default for FunnelConfig {
    fn default() -> Self {
        FunnelConfig {
            window: Nanos::from_secs(24 * 3_600),
            max_blocks: 4 << 20,
            max_nodes: 512 << 10,
            period: Nanos::from_secs(1_800),
            max_pending: 64 << 10,
            max_cells: 1_024,
        }
    }
}

/// Pool sizes of the curve, in eighths of what the fleet can hold.
pub const CURVE_EIGHTHS: [u64; 11] = [1, 2, 4, 6, 8, 10, 12, 16, 24, 32, 64];

/// The fleet as it is.
const ONE: usize = 4;

/// Blocks are joined until they have this many tokens: pages of one token would cost as much as all else together.
const FEWEST_GRAIN_TOKENS: u64 = 16;

/// A request goes to a rank.
#[derive(Clone, Debug)]
pub struct Arrival<'a> {
    pub request: RequestId,
    /// 0 for the first choice.
    pub attempt: u8,
    pub key: CellKey,
    pub family: Family,
    /// Names of the prompt's full blocks.
    pub names: &'a [u64],
    pub prompt_tokens: u64,
    pub target: Target,
    /// What the view said of that rank; `None` where it is not credited.
    pub believed: Option<Hit>,
    /// The turn before it, if it goes one on.
    pub answer: Option<Answer>,
}

/// An answer that has become part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Tokens of the prompt that it answered, the first ones of this one.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Who made it.
    pub target: Target,
}

/// What the engine said of a prompt's cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    pub tokens: u64,
    /// From device, host and storage, where it says that.
    pub tiers: Option<[u64; 3]>,
}

/// The funnel of one model.
#[derive(Debug)]
pub struct Funnel {
    config: FunnelConfig,
    /// How the paths in the stacks are named.
    family: Option<Family>,
    pool: RunStack,
    ranks: BTreeMap<Target, Shadow>,
    pending: BTreeMap<RequestId, Pending>,
    /// Pending requests in order of arrival; some have ended.
    order: VecDeque<RequestId>,
    cells: BTreeMap<CellKey, Recent<Sums>>,
    curve: Recent<CurveSums>,
    unmeasured: [u64; Unmeasured::ALL.len()],
    /// Times the names changed and everything had to be seen anew.
    renamed: u64,
    coarse: Vec<u64>,
}

#[derive(Debug)]
struct Shadow {
    capacity_tokens: Option<u64>,
    /// Where the capacity is known.
    stack: Option<RunStack>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CurveSums([u64; CURVE_EIGHTHS.len()]);

impl AddAssign<&CurveSums> for CurveSums {
    fn add_assign(&mut self, more: &CurveSums) {
        for (sum, more) in self.0.iter_mut().zip(&more.0) {
            *sum += more;
        }
    }
}

/// What the model said when the request was placed, in tokens.
#[derive(Debug)]
struct Pending {
    key: CellKey,
    grain: u64,
    prompt: u64,
    ceiling: u64,
    curve: CurveSums,
    /// Of the last attempt's rank.
    placed: Option<u64>,
    /// Of the rank that had most.
    best: u64,
    believed: Option<Hit>,
    retried: bool,
}

/// Figures for people and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct FunnelReport {
    /// Tokens in one step of the model.
    pub grain_tokens: Option<u64>,
    /// Sum over ranks whose capacity is known.
    pub capacity_tokens: u64,
    pub ranks: usize,
    /// Ranks of which nobody says what they can hold.
    pub ranks_without_capacity: usize,
    pub window: Nanos,
    /// Age of the oldest block that still counts as seen.
    pub reach: Nanos,
    pub pool_blocks: u64,
    pub rank_blocks: u64,
    pub bytes: usize,
    /// A bound bites: layers are those of smaller caches than there are, the ceiling that of a shorter window.
    pub bounded: bool,
    pub pending: usize,
    pub renamed: u64,
    pub cells: Vec<(CellKey, Sums, Sums)>,
    /// Tokens that a pool of so many eighths of the fleet would have had: ever, and recently.
    pub curve: Vec<(u64, u64, u64)>,
    pub unmeasured: Vec<(Unmeasured, u64)>,
}

impl Funnel {
    #[must_use]
    pub fn new(config: FunnelConfig) -> Self {
        let mut funnel = Funnel {
            config,
            family: None,
            pool: RunStack::new(config.max_blocks),
            ranks: BTreeMap::new(),
            pending: BTreeMap::new(),
            order: VecDeque::new(),
            cells: BTreeMap::new(),
            curve: Recent::default(),
            unmeasured: [0; Unmeasured::ALL.len()],
            renamed: 0,
            coarse: Vec::new(),
        };
        funnel.pool.limit(config.max_blocks, config.max_nodes);
        funnel
    }

    /// A rank exists, and can hold so much; `None` where nobody says.
    pub fn set_capacity(&mut self, target: Target, tokens: Option<u64>) {
        let tokens = tokens.filter(|tokens| *tokens > 0);
        let known = self.ranks.get(&target).map(|rank| rank.capacity_tokens);
        if known == Some(tokens) {
            return;
        }
        self.ranks.entry(target).or_insert(Shadow { capacity_tokens: None, stack: None }).capacity_tokens = tokens;
        self.fit();
    }

    /// The rank is gone, and its cache with it.
    pub fn remove(&mut self, target: Target) {
        if self.ranks.remove(&target).is_some() {
            self.fit();
        }
    }

    /// How the paths it has seen are named; others make it see everything anew.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        self.family
    }

    /// Ranks that it knows.
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.ranks.keys().copied()
    }

    fn grain(&self) -> Option<u64> {
        self.family.map(grain)
    }

    fn capacity_tokens(&self) -> u64 {
        self.ranks.values().filter_map(|rank| rank.capacity_tokens).fold(0, u64::saturating_add)
    }

    /// Gives every rank its bound, all of them together not more than allowed.
    fn fit(&mut self) {
        let Some(grain) = self.grain() else { return };
        let wanted = (self.capacity_tokens() / grain).max(1);
        let (most, nodes) = (self.config.max_blocks, self.config.max_nodes as u64);
        for rank in self.ranks.values_mut() {
            let Some(tokens) = rank.capacity_tokens else {
                rank.stack = None;
                continue;
            };
            let own = tokens / grain;
            let share = |of: u64| (u128::from(of) * u128::from(own) / u128::from(wanted)) as u64;
            let blocks = own.min(share(most));
            let stack = rank.stack.get_or_insert_with(|| RunStack::new(0));
            stack.limit(blocks, share(nodes).max(1) as usize);
        }
    }

    /// A request goes to a rank: what the model has of it.
    pub fn arrived(&mut self, now: Nanos, arrival: &Arrival<'_>) {
        if self.family != Some(arrival.family) {
            self.rename(arrival.family);
        }
        let grain = grain(arrival.family);
        let stride = (grain / u64::from(arrival.family.block_tokens.max(1))) as usize;
        let mut coarse = std::mem::take(&mut self.coarse);
        let path = if stride > 1 {
            coarse.clear();
            coarse.extend(arrival.names.iter().skip(stride - 1).step_by(stride));
            coarse.as_slice()
        } else {
            arrival.names
        };
        self.touch(now, arrival, grain, path);
        self.coarse = coarse;
    }

    fn touch(&mut self, now: Nanos, arrival: &Arrival<'_>, grain: u64, path: &[u64]) {
        let horizon = Nanos(now.0.saturating_sub(self.config.window.0));
        // An engine always computes the last token itself.
        let most = arrival.prompt_tokens.saturating_sub(1) / grain;
        let held = |pieces: &Pieces| pieces.iter().map(|piece| piece.blocks).sum::<u64>().min(most) * grain;
        if let Some(answer) = arrival.answer {
            self.answered(answer, grain, path);
        }
        let again = self.pending.remove(&arrival.request);
        let capacity = self.capacity_tokens() / grain;
        let (ceiling, curve) = match &again {
            Some(pending) => (pending.ceiling, pending.curve),
            None => {
                self.pool.expire(horizon);
                let pieces = self.pool.touch(path, now);
                let at = |eighths: u64| {
                    within(&pieces, (u128::from(capacity) * u128::from(eighths) / 8) as u64).min(most) * grain
                };
                (held(&pieces), CurveSums(CURVE_EIGHTHS.map(at)))
            }
        };
        let placed = self.ranks.get_mut(&arrival.target).and_then(|rank| rank.stack.as_mut()).map(|stack| {
            stack.expire(horizon);
            held(&stack.touch(path, now))
        });
        let mut best = placed.unwrap_or(0);
        if best < ceiling {
            let others = self.ranks.iter().filter(|(target, _)| **target != arrival.target);
            for stack in others.filter_map(|(_, rank)| rank.stack.as_ref()) {
                best = best.max(stack.matched(path).min(most) * grain);
            }
        }
        let pending = Pending {
            key: arrival.key.clone(),
            grain,
            prompt: arrival.prompt_tokens,
            // A rank may hold what the pool does not: by a bound that has bitten, or an answer beside another one. Seen is seen.
            ceiling: ceiling.max(placed.unwrap_or(0)),
            curve,
            placed,
            best,
            believed: arrival.believed,
            retried: again.is_some() || arrival.attempt > 0,
        };
        if again.is_none() {
            self.order.push_back(arrival.request);
        }
        self.pending.insert(arrival.request, pending);
        while self.pending.len() > self.config.max_pending || self.order.len() > 2 * self.config.max_pending {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.pending.remove(&oldest).is_some() {
                self.not_measured(Unmeasured::Overflow);
            }
        }
    }

    /// An answer lies behind its prompt, where it was made.
    fn answered(&mut self, answer: Answer, grain: u64, path: &[u64]) {
        let from = (answer.prompt_tokens / grain) as usize;
        // The last token of an answer is never computed by the one who made it.
        let to = (answer.prompt_tokens + answer.output_tokens).saturating_sub(1) / grain;
        let Some(path) = path.get(..(to as usize).min(path.len())).filter(|path| path.len() > from) else { return };
        self.pool.extend(path, from);
        if let Some(stack) = self.ranks.get_mut(&answer.target).and_then(|rank| rank.stack.as_mut()) {
            stack.extend(path, from);
        }
    }

    fn rename(&mut self, family: Family) {
        self.renamed += u64::from(self.family.is_some());
        self.family = Some(family);
        self.pool = RunStack::new(self.config.max_blocks);
        self.pool.limit(self.config.max_blocks, self.config.max_nodes);
        for rank in self.ranks.values_mut() {
            rank.stack = None;
        }
        self.fit();
    }

    /// The request has ended well; `None` where the answer did not say what was cached.
    pub fn ended(&mut self, now: Nanos, request: RequestId, reported: Option<Reported>) {
        let Some(pending) = self.pending.remove(&request) else { return };
        self.forget_order();
        let Some(reported) = reported else { return self.not_measured(Unmeasured::NotReported) };
        let Some(placed) = pending.placed else { return self.not_measured(Unmeasured::NoCapacity) };
        let entrance = pending.curve.0[ONE];
        let mut sums = Sums { requests: 1, tiers: reported.tiers.unwrap_or_default(), ..Sums::default() };
        sums.count(Layer::Prompt, pending.prompt);
        // A bounded pool may have forgotten what it would still hold.
        let ceiling = pending.ceiling.max(entrance);
        sums.count(Layer::Ceiling, ceiling);
        sums.count(Layer::Entrance, entrance);
        sums.count(Layer::Placed, placed);
        sums.count(Layer::Actual, reported.tokens);
        sums.lose(Loss::Capacity, ceiling - entrance);
        choice_losses(&mut sums, &pending, entrance, placed);
        engine_losses(&mut sums, &pending, placed, reported.tokens);
        debug_assert_eq!(sums.check(), Ok(()));
        let mut key = pending.key;
        if self.cells.len() >= self.config.max_cells && !self.cells.contains_key(&key) {
            key.tenant = "other".into();
        }
        self.cells.entry(key).or_default().add(now, self.config.period, &sums);
        self.curve.add(now, self.config.period, &pending.curve);
    }

    /// The request has not ended well: cancelled, refused, failed.
    pub fn failed(&mut self, request: RequestId) {
        if self.pending.remove(&request).is_some() {
            self.forget_order();
            self.not_measured(Unmeasured::NotCompleted);
        }
    }

    fn forget_order(&mut self) {
        while self.order.front().is_some_and(|request| !self.pending.contains_key(request)) {
            self.order.pop_front();
        }
    }

    /// A request that cannot be in the layers.
    pub fn not_measured(&mut self, why: Unmeasured) {
        self.unmeasured[why as usize] += 1;
    }

    #[must_use]
    pub fn report(&mut self, now: Nanos) -> FunnelReport {
        let period = self.config.period;
        self.curve.roll(now, period);
        let cells = self.cells.iter_mut().map(|(key, sums)| {
            sums.roll(now, period);
            (key.clone(), *sums.ever(), sums.recent())
        });
        let cells = cells.collect();
        let stacks = || self.ranks.values().filter_map(|rank| rank.stack.as_ref());
        let capacity_tokens = self.capacity_tokens();
        let (ever, recent) = (self.curve.ever().0, self.curve.recent().0);
        let grain = self.grain();
        let wanted = grain.map_or(0, |grain| capacity_tokens / grain);
        FunnelReport {
            grain_tokens: grain,
            capacity_tokens,
            ranks: self.ranks.len(),
            ranks_without_capacity: self.ranks.values().filter(|rank| rank.capacity_tokens.is_none()).count(),
            window: self.config.window,
            reach: self.pool.oldest_touch().map_or(Nanos::ZERO, |oldest| now.since(oldest)),
            pool_blocks: self.pool.blocks(),
            rank_blocks: stacks().map(RunStack::blocks).sum(),
            bytes: self.pool.bytes() + stacks().map(RunStack::bytes).sum::<usize>(),
            bounded: wanted > self.config.max_blocks
                || self.pool.blocks() >= self.config.max_blocks
                || self.pool.crowded()
                || stacks().any(RunStack::crowded),
            pending: self.pending.len(),
            renamed: self.renamed,
            cells,
            curve: (0..ever.len()).map(|at| (CURVE_EIGHTHS[at], ever[at], recent[at])).collect(),
            unmeasured: Unmeasured::ALL.iter().map(|why| (*why, self.unmeasured[*why as usize])).collect(),
        }
    }
}

fn grain(family: Family) -> u64 {
    let block = u64::from(family.block_tokens.max(1));
    block * FEWEST_GRAIN_TOKENS.div_ceil(block)
}

/// Leading blocks that a cache of so many blocks has.
fn within(pieces: &Pieces, capacity: u64) -> u64 {
    pieces.iter().map(|piece| piece.blocks.min(capacity.saturating_sub(piece.above))).sum()
}

fn choice_losses(sums: &mut Sums, pending: &Pending, entrance: u64, placed: u64) {
    if placed >= entrance && pending.best <= placed {
        sums.gain(Gain::Partition, placed - entrance);
        return;
    }
    if pending.retried {
        match entrance.checked_sub(placed) {
            Some(lost) => sums.lose(Loss::Retry, lost),
            None => sums.gain(Gain::Partition, placed - entrance),
        }
        return;
    }
    sums.lose(Loss::CrossInstance, pending.best - placed);
    match entrance.checked_sub(pending.best) {
        Some(lost) => sums.lose(Loss::Partition, lost),
        None => sums.gain(Gain::Partition, pending.best - entrance),
    }
}

fn engine_losses(sums: &mut Sums, pending: &Pending, placed: u64, actual: u64) {
    if actual >= placed {
        sums.gain(Gain::AboveModel, actual - placed);
        // The engine's grain may be finer than the model's.
        sums.above_model += u64::from(actual - placed >= pending.grain);
        return;
    }
    let Some(believed) = pending.believed else { return sums.lose(Loss::Unknown, placed - actual) };
    let all = believed.tokens().clamp(actual, placed);
    let certain = believed.tokens().saturating_sub(believed.speculative_tokens).clamp(actual, placed);
    sums.lose(Loss::StaleView, certain - actual);
    sums.lose(Loss::InFlight, all - certain);
    sums.lose(Loss::Evicted, placed - all);
}

#[cfg(test)]
mod tests;
