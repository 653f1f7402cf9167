//! Everything at once: a prefill engine and two others that take requests of their own, decode what the first has begun,
//! hand running requests to each other and back, run out of pages, offload what they evict and load it back, damaged or not,
//! lose connections and readers. Who is served gets the answer that it gets alone, bit for bit, and nothing is kept.

use super::*;
use crate::core::tests::legs::{Leg, Wire, wire};
use crate::core::tests::{Ask, alone, asks, params, taken};
use crate::faults::{CorruptBlock, FaultSwitch, Faults};
use crate::offload::{OffloadConfig, PER_PAGE_BYTES};
use crate::scheduler::policy::{Order, SchedulePolicy};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;

/// Where a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain(usize),
    /// Prefilled elsewhere, decoded here.
    Legs(usize),
}

/// An attempt to hand a request to the other side.
#[derive(Clone, Copy, Debug)]
struct Move {
    ask: prop::sample::Index,
    /// Round of the offer, and rounds of shipping.
    at: usize,
    shipping: usize,
    commit: usize,
    /// The connection is lost while blocks are shipped.
    lost: bool,
}

fn way() -> impl Strategy<Value = Way> {
    (any::<bool>(), 0usize..2).prop_map(|(legs, side)| if legs { Way::Legs(side) } else { Way::Plain(side) })
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (any::<prop::sample::Index>(), 0usize..90, 0usize..12, 0usize..3, prop::bool::weighted(0.2));
    let one = one.prop_map(|(ask, at, shipping, commit, lost)| Move { ask, at, shipping, commit, lost });
    prop::collection::vec(one, 0..10)
}

/// Steps from which a share of the pages is kept away.
fn pressure() -> impl Strategy<Value = Vec<(usize, f32)>> {
    prop::collection::vec((0usize..80, 0f32..0.8), 0..4)
}

/// What is known of a request that has begun.
struct Life {
    /// Where it runs.
    side: usize,
    reader: Option<Ticket>,
    read: Read,
}

/// A move under way.
struct Under {
    id: String,
    request: usize,
    from: usize,
    course: Move,
    freezes_at: usize,
}

struct World {
    prefill: Core,
    prefill_config: EngineConfig,
    prefill_rids: RidSet,
    prefill_pool: Pool,
    sides: [Side; 2],
    wires: Vec<Wire>,
    prefilled: Vec<Arc<Mailbox>>,
    lives: Vec<Option<Life>>,
    moves: usize,
}

impl World {
    fn new(prefill_config: EngineConfig, sides: [EngineConfig; 2], asks: usize, buffers: usize) -> World {
        let prefill = Core::new(&prefill_config);
        let prefill_pool = Pool::new(prefill.page_bytes(), buffers);
        World {
            prefill,
            prefill_config,
            prefill_rids: RidSet::default(),
            prefill_pool,
            sides: sides.map(|config| Side::new(&config)),
            wires: Vec::new(),
            prefilled: Vec::new(),
            lives: (0..asks).map(|_| None).collect(),
            moves: 0,
        }
    }

    fn submit(&mut self, name: usize, ask: &Ask, way: Way) {
        let params = params(ask.max_new_tokens);
        let (side, mailbox) = match way {
            Way::Plain(side) => (side, self.sides[side].submit(name, params, &ask.prompt)),
            Way::Legs(side) => {
                let (wire, outbound, inbound) = wire(&ask.prompt, &self.prefill_pool);
                let task = || Task::Generate(params.clone());
                let (first, prefilled) = sequence(&self.prefill_config, &self.prefill_rids, name, task(), &ask.prompt);
                let here = &mut self.sides[side];
                let (second, mailbox) = sequence(&here.config, &here.rids, name, task(), &ask.prompt);
                self.prefill.submit_leg(first, Leg::Prefill(outbound));
                here.cores[0].submit_leg(second, Leg::Decode(inbound));
                self.wires.push(wire);
                self.prefilled.push(prefilled);
                (side, mailbox)
            }
        };
        self.lives[name] = Some(Life { side, reader: Some(Ticket::bare(mailbox)), read: Read::default() });
    }

    fn step_prefill(&mut self) {
        self.prefill.ring();
        self.prefill.step();
        self.prefill.scheduler.check_with(&self.prefill.legs.held_pages()).unwrap();
    }

    fn step(&mut self, side: usize) {
        let side = &mut self.sides[side];
        side.cores[0].ring();
        side.cores[0].step();
        side.desk.turn(&mut side.cores);
        side.check();
    }

    /// Delivers what is on its way between the sides.
    fn carry(&mut self) {
        loop {
            let mut posts = Vec::new();
            for (from, side) in self.sides.iter_mut().enumerate() {
                posts.extend(side.desk.posts().into_iter().map(|post| (1 - from, post)));
            }
            if posts.is_empty() {
                return;
            }
            for (to, Post { id, at_source, send }) in posts {
                let [one, other] = &mut self.sides;
                let (from, to) = if to == 0 { (other, one) } else { (one, other) };
                match send {
                    Send::Open(_) | Send::Close => {}
                    Send::Note(Note::Head(head)) => {
                        if !to.desk.link(*head, &mut to.cores) {
                            // Given up there meanwhile: the connection is closed.
                            from.desk.hear(&id, at_source, Heard::Lost, &mut from.cores);
                        }
                    }
                    Send::Note(note) => {
                        let note = Note::decode(&note.encode()).unwrap();
                        to.desk.hear(&id, !at_source, Heard::Note(note), &mut to.cores);
                    }
                    Send::Pages(pages) => to.desk.hear(&id, !at_source, Heard::Pages(pages), &mut to.cores),
                }
                to.check();
            }
        }
    }

    /// Offer, reservation and start. `None` when the request cannot be moved now.
    fn begin(&mut self, request: usize, course: Move, round: usize) -> Option<Under> {
        let from = self.lives[request].as_ref().filter(|life| life.reader.is_some())?.side;
        self.moves += 1;
        let id = format!("m{}", self.moves);
        let Ok(Reply::Report(offered)) = self.sides[from].ask_as(&id, offer(request)) else { return None };
        let reserved = match self.sides[1 - from].ask_as(&id, reserve_for(&offered, 8)) {
            Ok(Reply::Report(reserved)) => reserved,
            // No room.
            _ => {
                self.sides[from].ask_as(&id, Verb::Abort).unwrap();
                return None;
            }
        };
        // It may have ended meanwhile.
        if self.sides[from].ask_as(&id, start_to(&reserved)).is_err() {
            let _ = self.sides[1 - from].ask_as(&id, Verb::Abort);
            return None;
        }
        Some(Under { id, request, from, course, freezes_at: round + course.shipping })
    }

    /// Freezes and hands over, or gives up and leaves the request where it was. True when it moved.
    fn complete(&mut self, under: &Under) -> bool {
        let Under { id, request, from, course, .. } = under;
        let (source, target) = (*from, 1 - *from);
        if course.lost {
            for (side, at_source) in [(source, true), (target, false)] {
                let side = &mut self.sides[side];
                side.desk.hear(id, at_source, Heard::Lost, &mut side.cores);
            }
        }
        let commit = [When::Asked, When::Confirmed, When::Sent][course.commit];
        let _ = self.sides[source].ask_as(id, Verb::Freeze { delta: true, commit });
        // Frozen: steps bring no token, and a buffer may have to come free.
        for _ in 0..4 {
            self.carry();
            self.step(source);
        }
        let state = |side: &mut Side| match side.ask_as(id, Verb::Look) {
            Ok(Reply::Report(report)) => report.state,
            _ => "unknown",
        };
        if commit == When::Asked && state(&mut self.sides[source]) == "synced" {
            let _ = self.sides[source].ask_as(id, Verb::Commit);
        }
        let committed = self.sides[source].ask_as(id, Verb::Look);
        let fence = match committed {
            Ok(Reply::Report(report)) if report.state == "committed" => report.fence.unwrap(),
            _ => {
                let _ = self.sides[source].ask_as(id, Verb::Abort);
                let _ = self.sides[target].ask_as(id, Verb::Abort);
                self.carry();
                return false;
            }
        };
        let Reply::Reader(attached) = self.sides[target].ask_as(id, take_over(&fence)).unwrap() else {
            panic!("no reader")
        };
        let life = self.lives[*request].as_mut().unwrap();
        let mut old = life.reader.replace(attached.ticket).unwrap();
        life.read.take(&mut old);
        assert_eq!(attached.had.ids, life.read.ids);
        self.sides[source].ask_as(id, Verb::Release).unwrap();
        life.read.take(&mut old);
        assert!(matches!(life.read.finish.take(), Some(Finish::Migrated { .. })));
        life.side = target;
        self.carry();
        true
    }

    /// Every so many turns of an offload worker the next page it reads is damaged.
    fn offload(&mut self, core: usize, turns: usize, corrupt: bool) {
        let core = match core {
            0 => &mut self.prefill,
            side => &mut self.sides[side - 1].cores[0],
        };
        let faults = FaultSwitch::default();
        faults.set(Faults { corrupt_block: corrupt.then_some(CorruptBlock { nth: Some(1) }), ..Faults::default() });
        let Some(worker) = core.offload_worker() else { return };
        worker.set_faults(faults);
        for _ in 0..turns {
            worker.turn(Instant::now());
        }
    }

    fn is_idle(&self) -> bool {
        self.prefill.is_idle() && self.sides.iter().all(|side| side.cores[0].is_idle() && !side.desk.is_busy())
    }

    fn is_back_at_the_start(&mut self) {
        for core in 0..3 {
            self.offload(core, 10_000, false);
        }
        for core in self.sides.iter_mut().flat_map(|side| &mut side.cores).chain([&mut self.prefill]) {
            core.step();
            let Some(offload) = &core.scheduler.offload else { continue };
            assert_eq!((offload.lent(), offload.resident().len()), ([0, 0], offload.stats.held_pages));
        }
        assert_eq!((self.prefill.scheduler.blocks.held(), self.prefill_pool.in_use()), (0, 0));
        assert!(self.prefill_rids.lock().is_empty());
        self.sides.iter().for_each(Side::check_empty);
    }
}

/// Everything that may differ from case to case.
#[derive(Clone, Debug)]
struct Case {
    asks: Vec<Ask>,
    ways: Vec<Way>,
    moves: Vec<Move>,
    pressure: Vec<(usize, f32)>,
    /// Of the prefill engine and of the two sides.
    pages: [usize; 3],
    /// Pages of the tiers below them; 0: none.
    tiers: [usize; 3],
    /// Running at most, at the prefill engine and at the sides.
    running: [usize; 2],
    policy: usize,
    budget: usize,
    buffers: usize,
    seed: u64,
}

prop_compose! {
    fn case()(
        asks in asks(),
        ways in prop::collection::vec(way(), 7),
        moves in moves(),
        pressure in pressure(),
        pages in prop::array::uniform3(11usize..30),
        tiers in prop::array::uniform3(prop_oneof![1 => Just(0usize), 9 => 10usize..60]),
        running in (1usize..5, 2usize..5),
        (policy, budget, buffers, seed) in (0usize..3, 8usize..80, 1usize..4, any::<u64>()),
    ) -> Case {
        Case { asks, ways, moves, pressure, pages, tiers, running: [running.0, running.1], policy, budget, buffers, seed }
    }
}

/// How often what this is about has happened, over all cases.
#[derive(Clone, Copy, Debug, Default)]
struct Happened {
    moved: u64,
    stayed: u64,
    handed_over: u64,
    retracted: u64,
    cached_tokens: u64,
    loaded_pages: u64,
    corrupt_pages: u64,
}

#[test]
fn greedy_answers_depend_on_nothing_that_happens_to_them() {
    let mut runner = TestRunner::new(ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(150) });
    let happened = Cell::new(Happened::default());
    runner.run(&case(), |case| live(&case, &happened)).unwrap();
    let all = happened.get();
    let counts = [all.moved, all.stayed, all.handed_over, all.retracted, all.cached_tokens / 16];
    assert!(counts.iter().all(|count| *count > 2), "{all:?}");
    assert!(all.loaded_pages > 2 && all.corrupt_pages > 0, "{all:?}");
}

fn live(case: &Case, happened: &Cell<Happened>) -> Result<(), TestCaseError> {
    let Case { asks, ways, moves, pressure, pages, tiers, running, policy, budget, buffers, seed } = case;
    let order = Order { policy: SchedulePolicy::ALL[*policy], ..Order::default() };
    let of = |core: usize, running| {
        let config = EngineConfig { order, ..config(pages[core], running, *budget) };
        let bytes = tiers[core] * (config.page_bytes() + PER_PAGE_BYTES);
        let offload = OffloadConfig { bytes, deadline: Duration::from_secs(3_600), ..OffloadConfig::default() };
        EngineConfig { offload, ..config }
    };
    let sides = [of(1, running[1]), of(2, running[1])];
    let mut world = World::new(of(0, running[0]), sides, asks.len(), *buffers);
    let mut rng = ChaCha8Rng::seed_from_u64(*seed);
    let mut under: Vec<Under> = Vec::new();
    let mut all = happened.get();
    let last = asks.iter().map(|ask| ask.at + ask.leaves.unwrap_or(0)).max().unwrap_or(0);
    for round in 0..20_000 {
        let begins = |(_, ask): &(usize, &Ask)| ask.at == round;
        for (name, ask) in asks.iter().enumerate().filter(begins) {
            world.submit(name, ask, ways[name]);
        }
        for (name, _) in asks.iter().enumerate().filter(|(_, ask)| ask.leaves == Some(round)) {
            drop(world.lives[name].as_mut().and_then(|life| life.reader.take()));
        }
        for course in moves.iter().filter(|course| course.at == round) {
            let request = course.ask.index(asks.len());
            if under.iter().all(|other| other.request != request) {
                under.extend(world.begin(request, *course, round));
            }
        }
        let share = pressure.iter().filter(|(at, _)| *at <= round).max_by_key(|(at, _)| *at).map_or(0.0, |one| one.1);
        for side in &mut world.sides {
            side.cores[0].press(if round > 120 { 0.0 } else { share });
        }
        for one in std::mem::take(&mut under) {
            if one.freezes_at > round {
                under.push(one);
            } else if world.lives[one.request].as_ref().is_some_and(|life| life.reader.is_some()) {
                if world.complete(&one) { all.moved += 1 } else { all.stayed += 1 }
            } else {
                for side in &mut world.sides {
                    let _ = side.ask_as(&one.id, Verb::Abort);
                }
            }
        }
        // In any order, and not equally often.
        for _ in 0..4 {
            match rng.random_range(0..7) {
                6 => world.offload(rng.random_range(0..3), rng.random_range(1..40), rng.random_bool(0.4)),
                0 => world.step_prefill(),
                side @ 1..=2 => world.step(side - 1),
                3 => world.carry(),
                _ if world.wires.is_empty() => {}
                _ => {
                    let wire = rng.random_range(0..world.wires.len());
                    world.wires[wire].turn();
                }
            }
        }
        if round > last.max(120) && world.is_idle() && under.is_empty() {
            break;
        }
        prop_assert!(round < 19_999, "the engines did not come to rest");
    }
    world.carry();
    world.is_back_at_the_start();
    for core in world.sides.iter().flat_map(|side| &side.cores).chain([&world.prefill]) {
        all.retracted += core.stats.retractions;
        all.cached_tokens += core.stats.cached_tokens;
        let offload = core.stats.offload.unwrap_or_default();
        all.loaded_pages += offload.loaded_pages;
        all.corrupt_pages += offload.corrupt_pages;
    }
    all.handed_over +=
        world.prefilled.iter().filter(|one| taken(one).finish == Some(Finish::HandedOver)).count() as u64;
    happened.set(all);
    for (name, ask) in asks.iter().enumerate() {
        let Some(Life { reader: Some(reader), read, .. }) = &mut world.lives[name] else { continue };
        read.take(reader);
        prop_assert!(
            !matches!(read.finish, None | Some(Finish::Abort { .. } | Finish::Refused(_))),
            "{:?}",
            read.finish
        );
        prop_assert_eq!(&read.ids, &alone(ask), "request {} by {:?}", name, ways[name]);
    }
    Ok(())
}
