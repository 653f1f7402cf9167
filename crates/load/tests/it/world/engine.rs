//! An engine as a gateway feels it: one prefill after the other, streams that decode meanwhile, and a paged prefix cache
//! that evicts the block that was not used for the longest time, leaves first.

use plimsoll_cache::chain::{NameFormat, Namespace, names};
use plimsoll_core::{KvBatch, KvEvent, LoadReport, Medium, Nanos, StoredBlocks, Target};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How large and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub block_tokens: u32,
    /// KV blocks of running requests and of the cache together.
    pub blocks: usize,
    pub prefill_tokens_per_s: f64,
    /// Of one stream alone; each further one adds a third of a millisecond.
    pub step: Nanos,
}

impl Default for Shape {
    fn default() -> Self {
        let step = Nanos::from_millis(8);
        Shape { block_tokens: 16, blocks: 4_096, prefill_tokens_per_s: 8_000.0, step }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub id: usize,
    /// Prompt and output.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Of all full blocks.
    names: Vec<u64>,
}

impl Job {
    pub(crate) fn new(id: usize, shape: Shape, mut prompt: Vec<u32>, output: &[u32]) -> Self {
        let prompt_tokens = prompt.len();
        prompt.extend(output);
        let names = names(NameFormat::Own, shape.block_tokens, Namespace::default(), &prompt).unwrap();
        Job { id, tokens: prompt, prompt_tokens, names }
    }

    fn output_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }
}

#[derive(Debug)]
struct Cached {
    used: u64,
    pins: u32,
}

#[derive(Debug)]
struct Running {
    job: Job,
    /// Full blocks of its prompt; each is pinned.
    prompt_blocks: usize,
    /// Blocks it needs besides those.
    own_blocks: usize,
    hit_blocks: usize,
}

/// What a step of an engine brings about.
#[derive(Debug)]
pub(crate) enum Happened {
    FirstToken { id: usize, cached_tokens: u64, decode: Nanos },
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub target: Target,
    pub shape: Shape,
    cache: BTreeMap<u64, Cached>,
    /// Evictable blocks by when they were let go of, first to go first.
    order: BTreeSet<(u64, u64)>,
    clock: u64,
    own_blocks: usize,
    waiting: VecDeque<Job>,
    prefilling: Option<Running>,
    decoding: BTreeMap<usize, Running>,
    seq: u64,
    epoch_s: f64,
    events: Vec<KvEvent>,
}

impl Engine {
    pub(crate) fn new(target: Target, shape: Shape) -> Self {
        Engine {
            target,
            shape,
            cache: BTreeMap::new(),
            order: BTreeSet::new(),
            clock: 0,
            own_blocks: 0,
            waiting: VecDeque::new(),
            prefilling: None,
            decoding: BTreeMap::new(),
            seq: 0,
            epoch_s: 1_000.0,
            events: Vec::new(),
        }
    }

    pub(crate) fn queue(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// Starts the next prefill if there is one, nothing else is being prefilled and its blocks fit. Returns when it is over.
    pub(crate) fn start(&mut self, now: Nanos) -> Option<Nanos> {
        if self.prefilling.is_some() {
            return None;
        }
        let job = self.waiting.pop_front()?;
        let block = self.shape.block_tokens as usize;
        let prompt = &job.names[..job.prompt_tokens / block];
        // The last token is always computed.
        let most = (job.prompt_tokens - 1) / block;
        let hit_blocks = prompt.iter().take(most).take_while(|name| self.cache.contains_key(*name)).count();
        let fresh = prompt.iter().filter(|name| !self.cache.contains_key(*name)).count();
        let own_blocks = job.tokens.len().div_ceil(block) - prompt.len();
        for name in prompt {
            self.pin(*name);
        }
        if !self.make_room(fresh + own_blocks) {
            for name in prompt.iter().rev() {
                self.unpin(*name);
            }
            self.waiting.push_front(job);
            return None;
        }
        self.insert(prompt, &job.tokens);
        self.own_blocks += own_blocks;
        let uncached = job.prompt_tokens - hit_blocks * block;
        self.prefilling = Some(Running { prompt_blocks: prompt.len(), job, own_blocks, hit_blocks });
        Some(now + Nanos::from_secs_f64(0.002 + uncached as f64 / self.shape.prefill_tokens_per_s))
    }

    pub(crate) fn prefill_over(&mut self) -> Happened {
        let Some(running) = self.prefilling.take() else { return Happened::Nothing };
        let id = running.job.id;
        let cached_tokens = running.hit_blocks as u64 * u64::from(self.shape.block_tokens);
        let step_s = self.shape.step.as_secs_f64() + 0.000_34 * self.decoding.len() as f64;
        let decode = Nanos::from_secs_f64(step_s * running.job.output_tokens() as f64);
        self.decoding.insert(id, running);
        Happened::FirstToken { id, cached_tokens, decode }
    }

    /// Its output is complete; what it has computed stays in the cache.
    pub(crate) fn finish(&mut self, id: usize) {
        let Some(running) = self.decoding.remove(&id) else { return };
        self.own_blocks -= running.own_blocks;
        let Job { names, tokens, .. } = running.job;
        for name in &names[running.prompt_blocks..] {
            self.pin(*name);
        }
        self.insert(&names, &tokens);
        // Leaves first, so that they are the first to go.
        for name in names.iter().rev() {
            self.unpin(*name);
        }
    }

    /// Everything is gone, and its publisher counts from the start again.
    pub(crate) fn restart(&mut self) {
        let (shape, target, epoch_s) = (self.shape, self.target, self.epoch_s);
        *self = Engine { epoch_s: epoch_s + 500_000.0, ..Engine::new(target, shape) };
    }

    /// Throws away what no request uses.
    pub(crate) fn flush(&mut self) {
        while self.evict_one() {}
    }

    pub(crate) fn take_events(&mut self) -> Option<(u64, KvBatch)> {
        if self.events.is_empty() {
            return None;
        }
        let seq = self.seq;
        self.seq += 1;
        let events = std::mem::take(&mut self.events);
        Some((seq, KvBatch { at_unix_s: self.epoch_s + seq as f64, events, rank: None, skipped: 0 }))
    }

    /// The number of its next message, which somebody else sends in its place.
    pub(crate) fn skip_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq - 1
    }

    pub(crate) fn report(&self, now: Nanos) -> LoadReport {
        let block = u64::from(self.shape.block_tokens);
        let pinned = self.cache.len() - self.order.len() + self.own_blocks;
        LoadReport {
            received: now,
            running_requests: Some((self.decoding.len() + usize::from(self.prefilling.is_some())) as u64),
            waiting_requests: Some(self.waiting.len() as u64),
            used_kv_tokens: Some(pinned as u64 * block),
            capacity_kv_tokens: Some(self.shape.blocks as u64 * block),
            ..LoadReport::default()
        }
    }

    /// Writes a chain's missing blocks, pinned once, and tells of them.
    fn insert(&mut self, names: &[u64], tokens: &[u32]) {
        let block = self.shape.block_tokens as usize;
        let mut from = None;
        for (depth, name) in names.iter().enumerate() {
            if self.cache.contains_key(name) {
                continue;
            }
            from.get_or_insert(depth);
            self.cache.insert(*name, Cached { used: 0, pins: 1 });
        }
        let Some(from) = from else { return };
        self.events.push(KvEvent::Stored(StoredBlocks {
            parent: from.checked_sub(1).map(|at| names[at]),
            names: names[from..].to_vec(),
            tokens: tokens[from * block..names.len() * block].to_vec(),
            block_tokens: self.shape.block_tokens,
            medium: Medium::Device,
            ..StoredBlocks::default()
        }));
    }

    fn pin(&mut self, name: u64) {
        if let Some(cached) = self.cache.get_mut(&name) {
            self.order.remove(&(cached.used, name));
            cached.pins += 1;
        }
    }

    fn unpin(&mut self, name: u64) {
        self.clock += 1;
        let Some(cached) = self.cache.get_mut(&name) else { return };
        cached.pins = cached.pins.saturating_sub(1);
        cached.used = self.clock;
        if cached.pins == 0 {
            self.order.insert((cached.used, name));
        }
    }

    fn make_room(&mut self, blocks: usize) -> bool {
        while self.cache.len() + self.own_blocks + blocks > self.shape.blocks {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    fn evict_one(&mut self) -> bool {
        let Some((_, name)) = self.order.pop_first() else { return false };
        self.cache.remove(&name);
        self.events.push(KvEvent::Removed { names: vec![name], medium: Medium::Device });
        true
    }
}
