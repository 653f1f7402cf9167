//! What was evicted to the tier and came back is what was computed: whatever the schedule, however far behind the worker is,
//! and whatever comes back damaged or too late.

use super::*;
use crate::faults::{CorruptBlock, FaultSwitch, Faults};
use crate::kv_events::KvEventsConfig;
use crate::kv_events::Medium;
use crate::kv_events::tests::Mirror;
use crate::offload::memory::PER_PAGE_BYTES;
use crate::offload::worker::Turn;
use crate::offload::{MemoryTier, OffloadConfig, OffloadStats};
use crate::scheduler::policy::{Order, SchedulePolicy};

/// A rank whose worker gets its turns from the test.
struct Rank {
    core: Core,
    mirror: Mirror,
    rids: RidSet,
    config: EngineConfig,
    next: usize,
}

fn page_bytes(config: &EngineConfig) -> usize {
    config.kv_bytes() / config.pages()
}

/// A pool of a few pages above a tier of a few more.
fn offloading(pages: usize, tier_pages: usize, max_running: usize, budget: usize) -> EngineConfig {
    let config = config(pages, max_running, budget);
    let bytes = tier_pages * (page_bytes(&config) + PER_PAGE_BYTES);
    EngineConfig {
        offload: OffloadConfig { bytes, deadline: Duration::from_secs(3_600), ..OffloadConfig::default() },
        kv_events: Some(KvEventsConfig::default()),
        ..config
    }
}

impl Rank {
    fn new(config: EngineConfig) -> Self {
        let core = Core::new(&config);
        Rank { core, mirror: Mirror::default(), rids: RidSet::default(), config, next: 0 }
    }

    fn submit(&mut self, ask: &Ask) -> Arc<Mailbox> {
        let task = Task::Generate(params(ask.max_new_tokens));
        let (sequence, mailbox) = sequence(&self.config, &self.rids, self.next, task, &ask.prompt);
        self.next += 1;
        self.core.submit(sequence);
        mailbox
    }

    fn corrupt(&mut self, corrupt: Option<CorruptBlock>) -> FaultSwitch {
        let switch = FaultSwitch::default();
        switch.set(Faults { corrupt_block: corrupt, ..Faults::default() });
        self.core.offload_worker().unwrap().set_faults(switch.clone());
        switch
    }

    /// So many turns of the worker at the most.
    fn work(&mut self, turns: usize) {
        for _ in 0..turns {
            if self.core.offload_worker().unwrap().turn(Instant::now()) != Turn::Done {
                return;
            }
        }
    }

    fn step(&mut self) {
        self.core.step();
        self.core.scheduler.check().unwrap();
        self.listen();
    }

    fn listen(&mut self) {
        self.core.save_evicted();
        let log = self.core.scheduler.blocks.log().unwrap();
        self.mirror.apply(&log.take());
        for medium in [Medium::Gpu, Medium::Cpu] {
            assert_eq!(self.mirror.on(medium), log.names(medium), "{medium:?}");
        }
    }

    /// One after another, the worker never behind.
    fn answer(&mut self, ask: &Ask) -> Update {
        let mailbox = self.submit(ask);
        for _ in 0..10_000 {
            self.step();
            self.work(usize::MAX);
            if self.core.scheduler.is_idle() {
                return taken(&mailbox);
            }
        }
        panic!("the engine did not come to rest");
    }

    fn stats(&self) -> OffloadStats {
        self.core.stats.offload.unwrap()
    }

    /// Nothing in flight: every page, buffer and name is where it belongs.
    fn check_rest(&mut self) {
        self.work(usize::MAX);
        self.step();
        assert!(self.core.scheduler.is_idle());
        assert_eq!(self.core.scheduler.blocks.held(), 0);
        let offload = self.core.scheduler.offload.as_ref().unwrap();
        assert_eq!(offload.lent(), [0, 0]);
        assert_eq!(offload.resident().len(), self.stats().held_pages);
        assert!(self.stats().held_bytes <= self.config.offload.bytes);
        assert!(self.rids.lock().is_empty());
    }
}

/// A prompt of its own that fills many pages.
fn filler(number: u32, tokens: u32) -> Ask {
    Ask {
        prompt: (0..tokens).map(|i| 300 + (number * 131 + i * 7) % 700).collect(),
        max_new_tokens: 3,
        at: 0,
        leaves: None,
    }
}

#[test]
fn a_prefix_that_was_evicted_comes_back_and_is_told_of() {
    let mut rank = Rank::new(offloading(12, 40, 4, 64));
    let first = filler(1, 100);
    let alone_first = alone(&first);
    assert_eq!(rank.answer(&first).ids, alone_first);
    for number in 2..5 {
        rank.answer(&filler(number, 150));
    }
    assert!(rank.core.scheduler.blocks.lookup(first_chain(&rank, &first).digests()).is_empty(), "it was evicted");
    let again = rank.answer(&first);
    assert_eq!(again.ids, alone_first);
    assert_eq!((again.cached_tokens, again.host_tokens), (96, 96));
    assert_eq!(rank.core.stats.host_tokens, 96);
    let stats = rank.stats();
    assert_eq!((stats.loaded_pages, stats.lost_pages, stats.corrupt_pages, stats.late_loads), (6, 0, 0, 0));
    // Now it is in the pages again: no load.
    let third = rank.answer(&first);
    assert_eq!((third.cached_tokens, third.host_tokens), (96, 0));
    rank.check_rest();
}

fn first_chain(rank: &Rank, ask: &Ask) -> plimsoll_cache::Chain {
    let mut chain = plimsoll_cache::Chain::new(rank.config.page_tokens, None);
    chain.extend(&ask.prompt);
    chain
}

#[test]
fn a_corrupt_page_is_dropped_counted_and_computed() {
    let mut rank = Rank::new(offloading(12, 60, 4, 64));
    let first = filler(1, 100);
    rank.answer(&first);
    for number in 2..5 {
        rank.answer(&filler(number, 150));
    }
    rank.corrupt(Some(CorruptBlock { nth: Some(3) }));
    let held = rank.stats().held_pages;
    let again = rank.answer(&first);
    assert_eq!(again.ids, alone(&first));
    assert_eq!((again.cached_tokens, again.host_tokens), (32, 32), "the two before it were sound");
    assert_eq!((rank.stats().corrupt_pages, rank.stats().loaded_pages), (1, 2));
    assert!(held > 0);
    rank.check_rest();
}

#[test]
fn a_load_that_is_late_is_given_up() {
    let mut config = offloading(12, 60, 4, 64);
    config.offload.deadline = Duration::ZERO;
    let mut rank = Rank::new(config);
    let first = filler(1, 100);
    rank.answer(&first);
    for number in 2..5 {
        rank.answer(&filler(number, 150));
    }
    let mailbox = rank.submit(&first);
    while !rank.core.scheduler.is_idle() {
        // The worker never gets a turn.
        rank.step();
    }
    let update = taken(&mailbox);
    assert_eq!((update.ids, update.cached_tokens), (alone(&first), 0));
    assert_eq!((rank.stats().late_loads, rank.stats().loaded_pages), (1, 0));
    rank.check_rest();
}

#[test]
fn who_leaves_or_is_aborted_while_it_loads_gives_everything_back() {
    let mut rank = Rank::new(offloading(12, 60, 4, 64));
    let first = filler(1, 100);
    rank.answer(&first);
    for number in 2..5 {
        rank.answer(&filler(number, 150));
    }
    for turn in 0..4 {
        let mailbox = rank.submit(&first);
        rank.step();
        assert!(rank.core.scheduler.running.iter().any(|sequence| sequence.load.is_some()));
        assert!(rank.core.scheduler.blocks.held() > 0);
        rank.work(turn);
        if turn % 2 == 0 {
            leave(&mailbox);
        } else {
            rank.core.abort(None);
        }
        rank.core.sweep();
        assert_eq!(rank.core.scheduler.blocks.held(), 0);
        rank.check_rest();
    }
    assert_eq!(rank.answer(&first).ids, alone(&first));
    rank.check_rest();
}

#[test]
fn one_who_waits_for_its_load_does_not_hold_up_the_others_and_can_be_preempted() {
    let order = Order { policy: SchedulePolicy::Priority, ..Order::default() };
    let mut rank = Rank::new(EngineConfig { order, ..offloading(12, 60, 4, 64) });
    let first = filler(1, 100);
    rank.answer(&first);
    for number in 2..5 {
        rank.answer(&filler(number, 150));
    }
    let waiting = rank.submit(&first);
    rank.step();
    // Another one is admitted, computes and ends.
    let other = rank.submit(&filler(6, 20));
    for _ in 0..20 {
        rank.step();
    }
    assert_eq!(taken(&other).ids, alone(&filler(6, 20)));
    // A more important one takes its pages.
    let ask = filler(7, 180);
    let task = Task::Generate(params(3));
    let (mut important, mailbox) = sequence(&rank.config, &rank.rids, 99, task, &ask.prompt);
    important.urgency.priority = Some(100);
    rank.core.submit(important);
    rank.step();
    assert_eq!(rank.core.stats.retractions, 1);
    while !rank.core.scheduler.is_idle() {
        rank.step();
        rank.work(usize::MAX);
    }
    assert_eq!(taken(&mailbox).ids, alone(&ask));
    assert_eq!(taken(&waiting).ids, alone(&first));
    rank.check_rest();
}

#[test]
fn a_flush_empties_the_tier_too() {
    let mut rank = Rank::new(offloading(12, 60, 4, 64));
    for number in 1..5 {
        rank.answer(&filler(number, 150));
    }
    assert!(rank.stats().held_pages > 0);
    // Some are on their way while it is flushed.
    rank.submit(&filler(9, 150));
    while !rank.core.scheduler.is_idle() {
        rank.step();
    }
    rank.core.flush();
    rank.check_rest();
    assert_eq!((rank.stats().held_pages, rank.stats().held_bytes), (0, 0));
    assert_eq!(rank.answer(&filler(1, 150)).cached_tokens, 0);
    rank.check_rest();
}

/// What is slow is lost, not waited for: the buffers bound what is on its way.
#[test]
fn a_worker_that_never_works_costs_pages_and_nothing_else() {
    let mut config = offloading(12, 60, 4, 64);
    config.offload.buffer_bytes = 1;
    let mut rank = Rank::new(config);
    for number in 1..8 {
        let ask = filler(number, 150);
        let mailbox = rank.submit(&ask);
        while !rank.core.scheduler.is_idle() {
            rank.step();
        }
        assert_eq!(taken(&mailbox).ids, alone(&ask));
    }
    assert_eq!(rank.core.scheduler.offload.as_ref().unwrap().lent(), [8, 0]);
    assert!(rank.stats().lost_pages > 20);
    rank.check_rest();
    assert_eq!(rank.stats().put_pages, 8);
}

#[derive(Clone, Debug)]
struct Life {
    pages: usize,
    tier_pages: usize,
    max_running: usize,
    budget: usize,
    policy: usize,
    buffers: usize,
    /// Every so many pages read one is damaged; 0: none.
    corrupt_every: u64,
    impatient: bool,
    tells_all: bool,
    /// Turns of the worker after each step, over and over.
    turns: Vec<usize>,
    pressure: Vec<(usize, f32)>,
}

fn life() -> impl Strategy<Value = Life> {
    // Room for the longest of the asks, 146 tokens.
    let sizes = (10usize..24, 0usize..60, 1usize..5, 6usize..80, 0usize..3);
    let ways = (8usize..40, 0u64..6, prop::bool::weighted(0.1), prop::bool::weighted(0.8));
    let turns = prop::collection::vec(prop_oneof![Just(0usize), 1usize..4, Just(100)], 1..8);
    let pressure = prop::collection::vec((0usize..80, 0f32..0.6), 0..4);
    (sizes, ways, turns, pressure).prop_map(|(sizes, ways, turns, pressure)| {
        let (pages, tier_pages, max_running, budget, policy) = sizes;
        let (buffers, corrupt_every, impatient, tells_all) = ways;
        Life {
            pages,
            tier_pages,
            max_running,
            budget,
            policy,
            buffers,
            corrupt_every,
            impatient,
            tells_all,
            turns,
            pressure,
        }
    })
}

/// Memory that does not say what it has.
#[derive(Debug)]
struct Silent(MemoryTier);

impl crate::offload::KvTier for Silent {
    fn tells_all(&self) -> bool {
        false
    }
    fn put(
        &self,
        key: &crate::offload::PageKey,
        page: &[u8],
        crc: u32,
        gone: &mut Vec<crate::offload::PageKey>,
    ) -> bool {
        self.0.put(key, page, crc, gone)
    }
    fn exists_prefix(&self, keys: &[crate::offload::PageKey]) -> usize {
        // It may be wrong.
        (self.0.exists_prefix(keys) + 1).min(keys.len())
    }
    fn get(&self, keys: &[crate::offload::PageKey], into: &mut [crate::offload::PageSlot<'_>]) -> usize {
        self.0.get(keys, into)
    }
    fn remove(&self, key: &crate::offload::PageKey) {
        self.0.remove(key);
    }
    fn clear(&self) {
        self.0.clear();
    }
    fn usage(&self) -> crate::offload::TierUsage {
        self.0.usage()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Two rounds of the same prompts, so that what the first left in the tier is wanted by the second.
    #[test]
    fn greedy_answers_do_not_depend_on_where_the_prefix_was(asks in asks(), life in life()) {
        let mut config = offloading(life.pages, life.tier_pages, life.max_running, life.budget);
        config.order.policy = SchedulePolicy::ALL[life.policy];
        config.offload.buffer_bytes = life.buffers * page_bytes(&config);
        if life.impatient {
            config.offload.deadline = Duration::ZERO;
        }
        if !life.tells_all {
            config.offload.tier = Some(Arc::new(Silent(MemoryTier::new(config.offload.bytes))));
        }
        if !config.offload.is_on() {
            config.offload.bytes = 1;
        }
        let mut rank = Rank::new(config);
        let rounds = 3;
        let mut asked: Vec<(usize, Arc<Mailbox>)> = Vec::new();
        let mut step = 0;
        let mut reads = 0;
        for round in 0..rounds {
            let begin = step;
            let last = asks.iter().map(|ask| ask.at).max().unwrap_or(0);
            loop {
                for (index, ask) in asks.iter().enumerate() {
                    if ask.at == step - begin {
                        asked.push((index, rank.submit(ask)));
                    }
                    if ask.leaves == Some(step - begin) && round % 2 == 0 {
                        let at = asked.len() - asked.iter().rev().position(|(i, _)| *i == index).unwrap() - 1;
                        leave(&asked.remove(at).1);
                    }
                }
                let share = life.pressure.iter().filter(|(at, _)| *at <= step).max_by_key(|(at, _)| *at);
                rank.core.press(if step > 200 { 0.0 } else { share.map_or(0.0, |(_, share)| *share) });
                reads += 1;
                let corrupt = life.corrupt_every > 0 && reads % life.corrupt_every == 0;
                rank.corrupt(corrupt.then_some(CorruptBlock { nth: None }));
                rank.step();
                rank.work(life.turns[step % life.turns.len()]);
                step += 1;
                // In vain: it never gets a turn, and the deadline is far.
                let stuck = life.turns.iter().all(|turns| *turns == 0) && !life.impatient;
                if stuck {
                    rank.work(1);
                }
                if rank.core.scheduler.is_idle() && step - begin > last {
                    break;
                }
                prop_assert!(step < 20_000, "the engine did not come to rest");
            }
        }
        rank.core.press(0.0);
        for (index, mailbox) in asked {
            let update = taken(&mailbox);
            prop_assert!(matches!(update.finish, Some(Finish::Length | Finish::StopToken(_))), "{:?}", update.finish);
            prop_assert!(update.host_tokens <= update.cached_tokens && update.cached_tokens < asks[index].prompt.len());
            prop_assert_eq!(&update.ids, &alone(&asks[index]));
        }
        if life.tells_all {
            rank.check_rest();
        }
    }
}

/// The property above is about loads and preemption at once: here they surely happen.
#[test]
fn preempted_requests_and_second_rounds_load_bit_for_bit() {
    for tells_all in [true, false] {
        let mut config = offloading(14, 60, 4, 64);
        if !tells_all {
            config.offload.tier = Some(Arc::new(Silent(MemoryTier::new(config.offload.bytes))));
        }
        let mut rank = Rank::new(config);
        let asks: Vec<Ask> = (0..6).map(|number| Ask { max_new_tokens: 40, ..filler(number, 60) }).collect();
        for _ in 0..3 {
            let boxes: Vec<_> = asks.iter().map(|ask| rank.submit(ask)).collect();
            let mut step = 0;
            while !rank.core.scheduler.is_idle() {
                rank.step();
                rank.work(step % 3);
                step += 1;
                assert!(step < 5_000);
            }
            for (ask, mailbox) in asks.iter().zip(boxes) {
                assert_eq!(taken(&mailbox).ids, alone(ask));
            }
        }
        assert!(rank.core.stats.retractions > 3 && rank.stats().loaded_pages > 20, "{:?}", rank.core.stats);
    }
}
