//! Two engines, one that prefills and one that decodes, joined in memory in every order a seed can think of: the greedy
//! answer is the one of a plain request, and whatever breaks, both come back to where they began.

use super::*;
use crate::disagg::failure::{Failure, Phase};
pub(crate) use crate::disagg::leg::Leg;
use crate::disagg::leg::{Inbound, InboundTask, News, Outbound, OutboundTask, Reply, Shipment, Turn};
use crate::faults::{CorruptBlock, FaultSwitch, Faults};
use crate::offload::OffloadConfig;
use crate::offload::memory::PER_PAGE_BYTES;
use crate::offload::offloader::Offloader;
use crate::refusal::Refusal;
use crate::sampling::logprobs::LogprobAsk;
use crate::transfer::{Expected, Pool, with_tail};
use plimsoll_cache::{Chain, Digest};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc::error::TryRecvError;

/// What may go wrong with one request, and when: counted in turns of its wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    Nothing,
    /// Both tasks say that the connection failed.
    Connection(usize),
    /// The decode leg's reader leaves.
    DecodeReader(usize),
    /// The prefill leg's reader leaves.
    PrefillReader(usize),
    /// Its id is aborted on the decode engine.
    DecodeAbort(usize),
    /// The tasks vanish without a word.
    Tasks(usize),
}

/// The tasks of one request and the connection between them.
pub(crate) struct Wire {
    outbound: Option<OutboundTask>,
    inbound: Option<InboundTask>,
    digests: Vec<Digest>,
    due: Option<Expected>,
    met: bool,
    landing: Option<News>,
    turns: usize,
    sent_pages: usize,
}

impl Wire {
    /// Moves at most one thing each way, as the tasks would.
    pub(crate) fn turn(&mut self) {
        self.turns += 1;
        let (Some(outbound), Some(inbound)) = (&mut self.outbound, &mut self.inbound) else { return };
        if !self.met {
            self.met = inbound.news.try_send(News::Paired).is_ok();
            // One of them is gone: the other one's handshake ends.
            if inbound.news.is_closed() || outbound.turns.is_closed() {
                self.fail();
            }
            return;
        }
        match inbound.replies.try_recv() {
            Ok(Reply::Ready { have_pages }) => {
                self.due = Some(Expected::new(self.digests.clone(), have_pages));
                let _ = outbound.turns.try_send(Turn::Ready { have_pages });
            }
            Ok(Reply::Landed) => {
                let _ = outbound.turns.try_send(Turn::Landed);
                (self.outbound, self.inbound) = (None, None);
                return;
            }
            Err(TryRecvError::Empty) => {}
            // The decode leg ended: the other side hears of it.
            Err(TryRecvError::Disconnected) => return self.fail(),
        }
        if let Some(landing) = self.landing.take() {
            if let Err(error) = inbound.news.try_send(landing) {
                self.landing = Some(error.into_inner());
            }
            return;
        }
        match outbound.shipments.try_recv() {
            Ok(Shipment::Pages(pages)) => {
                let due = self.due.as_mut().expect("nothing is sent before there is room");
                pages.iter().for_each(|page| due.take(&page).unwrap());
                self.sent_pages += pages.len();
                self.landing = Some(News::Pages(pages));
            }
            Ok(Shipment::End { pages, first }) => {
                self.due.as_ref().unwrap().finish(pages).unwrap();
                self.landing = Some(News::Landed(first));
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => self.fail(),
        }
    }

    fn fail(&mut self) {
        let failure = || Failure { phase: Phase::Transfer, message: "broken by the test".to_owned() };
        if let Some(task) = self.outbound.take() {
            let _ = task.failure.set(failure());
        }
        if let Some(task) = self.inbound.take() {
            let _ = task.news.try_send(News::Failed(failure()));
        }
        self.landing = None;
    }
}

/// Both legs of a request for this prompt, and what joins them.
pub(crate) fn wire(prompt: &[u32], pool: &Pool) -> (Wire, Box<Outbound>, Box<Inbound>) {
    let mut chain = Chain::new(16, None);
    chain.extend(prompt);
    let digests = with_tail(&chain, prompt, None);
    let (outbound, outbound_task) = Outbound::new(digests.clone(), pool.clone());
    let (inbound, inbound_task) = Inbound::new();
    let wire = Wire {
        outbound: Some(outbound_task),
        inbound: Some(inbound_task),
        digests,
        due: None,
        met: false,
        landing: None,
        turns: 0,
        sent_pages: 0,
    };
    (wire, outbound, inbound)
}

struct Pair {
    prefill: Core,
    decode: Core,
    configs: [EngineConfig; 2],
    pool: Pool,
    wires: Vec<Wire>,
    /// Of the prefill and the decode leg of each request.
    boxes: Vec<[Arc<Mailbox>; 2]>,
    rids: [RidSet; 2],
}

impl Pair {
    fn new(prefill: EngineConfig, decode: EngineConfig, buffers: usize) -> Pair {
        let (one, other) = (Core::new(&prefill), Core::new(&decode));
        let pool = Pool::new(one.kv.page_bytes(), buffers);
        let rids = [RidSet::default(), RidSet::default()];
        let (wires, boxes) = (Vec::new(), Vec::new());
        Pair { prefill: one, decode: other, configs: [prefill, decode], pool, wires, boxes, rids }
    }

    fn submit(&mut self, prompt: &[u32], params: &SamplingParams) {
        let name = self.wires.len();
        let (wire, outbound, inbound) = wire(prompt, &self.pool);
        let task = || Task::Generate(params.clone());
        let (one, first) = sequence(&self.configs[0], &self.rids[0], name, task(), prompt);
        let (two, second) = sequence(&self.configs[1], &self.rids[1], name, task(), prompt);
        self.prefill.submit_leg(one, Leg::Prefill(outbound));
        self.decode.submit_leg(two, Leg::Decode(inbound));
        self.boxes.push([first, second]);
        self.wires.push(wire);
    }

    fn step(&mut self, side: usize) {
        let core = if side == 0 { &mut self.prefill } else { &mut self.decode };
        core.ring();
        core.step();
        let held = core.legs.held_pages();
        core.scheduler.check_with(&held).unwrap();
        assert_eq!(core.scheduler.reserved_places, core.legs.counts().decode_transfer);
        assert!(core.scheduler.running.len() + core.scheduler.reserved_places <= self.configs[side].max_running);
    }

    /// So many turns of decode's offload worker, if it has one.
    fn work(&mut self, turns: usize) {
        if let Some(worker) = self.decode.offload_worker() {
            for _ in 0..turns {
                let _ = worker.turn(Instant::now());
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.prefill.is_idle() && self.decode.is_idle()
    }

    /// Steps and turns in turn until everything is over.
    fn run(&mut self) {
        for _ in 0..20_000 {
            if self.is_idle() {
                return;
            }
            self.step(0);
            self.wires.iter_mut().for_each(Wire::turn);
            self.step(1);
            self.work(8);
        }
        panic!("the engines did not come to rest");
    }

    fn is_back_at_the_start(&mut self) {
        for core in [&self.prefill, &self.decode] {
            assert!(core.is_idle());
            assert_eq!(core.scheduler.blocks.held(), 0);
            assert_eq!(core.scheduler.reserved_places, 0);
            assert_eq!(core.stats.legs, LegCounts::default());
        }
        assert!(self.rids.iter().all(|rids| rids.lock().is_empty()));
        assert_eq!(self.pool.in_use(), 0);
        self.work(1_000);
        let lent = self.decode.scheduler.offload.as_ref().map_or([0, 0], Offloader::lent);
        assert_eq!(lent, [0, 0]);
    }

    fn answer(&self, request: usize, side: usize) -> Update {
        taken(&self.boxes[request][side])
    }
}

fn leave(mailbox: &Arc<Mailbox>) {
    drop(Ticket::bare(Arc::clone(mailbox)));
}

fn breaks() -> impl Strategy<Value = Break> {
    prop_oneof![
        8 => Just(Break::Nothing),
        1 => (0usize..30).prop_map(Break::Connection),
        1 => (0usize..60).prop_map(Break::DecodeReader),
        1 => (0usize..30).prop_map(Break::PrefillReader),
        1 => (0usize..60).prop_map(Break::DecodeAbort),
        1 => (0usize..30).prop_map(Break::Tasks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Chunked prefill, prefix hits on either side, few pages, few buffers, preemption, other requests on both engines,
    /// failures: the answers that come are right, and nothing is kept.
    #[test]
    fn greedy_answers_do_not_depend_on_the_transfer(
        asks in asks(),
        breaks in prop::collection::vec(breaks(), 7),
        pages in (10usize..40, 10usize..40),
        running in (1usize..5, 1usize..5),
        budget in 6usize..80,
        buffers in 1usize..4,
        local in prop::collection::vec(0usize..2, 7),
        tier_pages in prop_oneof![Just(0), 1usize..40],
        seed in any::<u64>(),
    ) {
        let decode = with_tier(config(pages.1, running.1, budget.max(running.1)), tier_pages);
        let mut pair = Pair::new(config(pages.0, running.0, budget), decode, buffers);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut plain: Vec<(usize, Arc<Mailbox>)> = Vec::new();
        for round in 0..40_000 {
            for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.at == round) {
                pair.submit(&ask.prompt, &params(ask.max_new_tokens));
                // The same prompt on one engine alone: it may fill that engine's cache, and must not be disturbed.
                let side = local[index];
                let task = Task::Generate(params(ask.max_new_tokens));
                let (sequence, mailbox) = sequence(&pair.configs[side], &pair.rids[side], 900 + index, task, &ask.prompt);
                if side == 0 { pair.prefill.submit(sequence) } else { pair.decode.submit(sequence) }
                plain.push((index, mailbox));
            }
            if pair.is_idle() && asks.iter().all(|ask| ask.at <= round) {
                break;
            }
            prop_assert!(round < 39_999, "the engines did not come to rest");
            match rng.random_range(0..5) {
                side @ (0 | 1) => pair.step(side),
                2 => pair.work(1),
                _ if pair.wires.is_empty() => {}
                _ => {
                    let index = rng.random_range(0..pair.wires.len());
                    let turns = pair.wires[index].turns;
                    match breaks[index] {
                        Break::Connection(at) if at == turns => pair.wires[index].fail(),
                        Break::DecodeReader(at) if at == turns => leave(&pair.boxes[index][1]),
                        Break::PrefillReader(at) if at == turns => leave(&pair.boxes[index][0]),
                        Break::DecodeAbort(at) if at == turns => pair.decode.abort(Some(&format!("r{index}"))),
                        Break::Tasks(at) if at == turns => {
                            let wire = &mut pair.wires[index];
                            (wire.outbound, wire.inbound, wire.landing) = (None, None, None);
                        }
                        _ => {}
                    }
                    pair.wires[index].turn();
                }
            }
        }
        pair.is_back_at_the_start();
        for (index, mailbox) in plain {
            // Its id does not begin with that of an aborted one.
            prop_assert_eq!(taken(&mailbox).ids, alone(&asks[index]));
        }
        // In order of submission, which is not that of the list.
        let mut order: Vec<&Ask> = asks.iter().collect();
        order.sort_by_key(|ask| ask.at);
        for (index, ask) in order.into_iter().enumerate() {
            let whole = alone(ask);
            let (prefill, decode) = (pair.answer(index, 0), pair.answer(index, 1));
            match (breaks[index], &decode.finish) {
                (_, Some(Finish::Abort { .. } | Finish::Refused(_)) | None) => {
                    prop_assert_ne!(breaks[index], Break::Nothing);
                    prop_assert!(whole.starts_with(&decode.ids), "what came before the failure was right");
                }
                (_, Some(_)) => prop_assert_eq!(&decode.ids, &whole),
            }
            match &prefill.finish {
                Some(Finish::HandedOver) => prop_assert_eq!(&prefill.ids[..], &whole[..1]),
                other => {
                    prop_assert_ne!(breaks[index], Break::Nothing, "{:?}", other);
                    prop_assert!(prefill.ids.is_empty());
                }
            }
        }
    }
}

/// A config with an offload tier of so many pages that is never late.
fn with_tier(config: EngineConfig, pages: usize) -> EngineConfig {
    let bytes = pages * (config.kv_bytes() / config.pages() + PER_PAGE_BYTES);
    let offload = OffloadConfig { bytes, deadline: Duration::from_secs(3_600), ..OffloadConfig::default() };
    EngineConfig { offload, ..config }
}

/// A prompt of 100 tokens of its own.
fn long(number: u32) -> Vec<u32> {
    (0..100).map(|i| 300 + (number * 131 + i * 7) % 700).collect()
}

#[test]
fn a_prefix_that_decode_has_evicted_to_its_tier_is_not_sent() {
    for corrupt in [false, true] {
        let mut pair = Pair::new(config(64, 4, 64), with_tier(config(12, 4, 64), 40), 4);
        let sent = |pair: &mut Pair, prompt: &[u32]| {
            pair.submit(prompt, &params(4));
            pair.run();
            pair.wires.last().unwrap().sent_pages
        };
        // Six full pages and a part of one.
        assert_eq!(sent(&mut pair, &long(1)), 7);
        for number in 2..5 {
            assert_eq!(sent(&mut pair, &long(number)), 7);
        }
        let mut chain = Chain::new(16, None);
        chain.extend(&long(1));
        assert!(pair.decode.scheduler.blocks.lookup(chain.digests()).is_empty(), "it was evicted");
        if corrupt {
            let switch = FaultSwitch::default();
            switch.set(Faults { corrupt_block: Some(CorruptBlock { nth: Some(3) }), ..Faults::default() });
            pair.decode.offload_worker().unwrap().set_faults(switch);
        }
        // What is damaged, and what comes behind it, is prefill's to send.
        assert_eq!(sent(&mut pair, &long(1)), if corrupt { 5 } else { 1 });
        let stats = pair.decode.stats.offload.unwrap();
        assert_eq!((stats.loaded_pages, stats.corrupt_pages), if corrupt { (2, 1) } else { (6, 0) });
        let ask = Ask { prompt: long(1), max_new_tokens: 4, at: 0, leaves: None };
        assert_eq!(pair.answer(4, 1).ids, alone(&ask));
        pair.is_back_at_the_start();
    }
}

#[test]
fn a_leg_that_ends_while_the_tier_loads_leaves_nothing_behind() {
    let mut pair = Pair::new(config(64, 4, 64), with_tier(config(12, 4, 64), 40), 4);
    for number in 1..5 {
        pair.submit(&long(number), &params(4));
        pair.run();
    }
    pair.submit(&long(1), &params(4));
    for _ in 0..20 {
        // The worker has no turn.
        pair.step(0);
        pair.wires.iter_mut().for_each(Wire::turn);
        pair.step(1);
    }
    assert!(pair.decode.legs.is_loading(), "it waits for the tier");
    leave(&pair.boxes[4][1]);
    pair.run();
    pair.is_back_at_the_start();
}

#[test]
fn a_prefix_that_decode_has_is_not_sent() {
    let mut pair = Pair::new(config(40, 4, 512), config(40, 4, 512), 4);
    let prompt: Vec<u32> = (0..70).map(|i| 300 + i).collect();
    pair.submit(&prompt, &params(10));
    pair.run();
    assert_eq!(pair.wires[0].sent_pages, 5, "four full pages and the rest of six tokens");
    pair.submit(&prompt, &params(10));
    pair.run();
    assert_eq!(pair.wires[1].sent_pages, 1, "only the page that is not full");
    let (first, second) = (pair.answer(0, 1), pair.answer(1, 1));
    assert_eq!(first.ids, second.ids);
    // What was not computed again is what prefill had: decode reports that.
    assert_eq!((first.cached_tokens, second.cached_tokens), (0, 64));
    // A prompt of whole pages needs nothing at all the second time.
    pair.submit(&prompt[..64], &params(3));
    pair.run();
    assert_eq!(pair.wires[2].sent_pages, 0);
    // And a decode engine without it takes it all, however prefill got it.
    pair.decode.scheduler.blocks.flush();
    pair.submit(&prompt, &params(10));
    pair.run();
    assert_eq!(pair.wires[3].sent_pages, 5);
    assert_eq!(pair.answer(3, 1).ids, first.ids);
    pair.is_back_at_the_start();
}

#[test]
fn pages_leave_while_the_rest_is_computed() {
    let mut pair = Pair::new(config(40, 4, 16), config(40, 4, 512), 4);
    let prompt: Vec<u32> = (0..100).map(|i| 300 + i).collect();
    pair.submit(&prompt, &params(2));
    while pair.wires[0].sent_pages == 0 {
        pair.step(0);
        pair.wires[0].turn();
        pair.step(1);
    }
    assert_eq!(pair.prefill.scheduler.running.len(), 1, "the prompt is still being computed");
    assert!(pair.prefill.scheduler.running[0].remaining() > 16);
    pair.run();
    pair.is_back_at_the_start();
}

#[test]
fn prefill_keeps_no_pages_for_a_slow_connection() {
    let mut pair = Pair::new(config(40, 4, 512), config(40, 4, 512), 4);
    pair.submit(&(0..100).map(|i| 300 + i).collect::<Vec<u32>>(), &params(2));
    for _ in 0..6 {
        pair.step(1);
        pair.wires[0].turn();
        pair.step(0);
        if pair.prefill.legs.counts().prefill_inflight == 1 {
            break;
        }
    }
    assert_eq!(pair.prefill.legs.counts().prefill_inflight, 1);
    assert_eq!(pair.prefill.scheduler.blocks.held(), 0, "they are copied out");
    pair.run();
    pair.is_back_at_the_start();
}

#[test]
fn nothing_is_held_or_computed_before_the_partner_is_there() {
    let mut pair = Pair::new(config(40, 4, 512), config(40, 4, 512), 4);
    pair.submit(&[300, 301, 302], &params(4));
    for _ in 0..3 {
        pair.step(0);
        pair.step(1);
    }
    let counts = [pair.prefill.legs.counts(), pair.decode.legs.counts()];
    assert_eq!((counts[0].prefill_bootstrap, counts[1].decode_prealloc), (1, 1));
    assert_eq!(pair.prefill.scheduler.blocks.held() + pair.decode.scheduler.blocks.held(), 0);
    assert_eq!(pair.prefill.stats.steps, 0);
    pair.run();
    pair.is_back_at_the_start();
}

#[test]
fn a_first_token_that_ends_the_answer_ends_both_legs() {
    let mut pair = Pair::new(config(40, 4, 512), config(40, 4, 512), 4);
    let prompt: Vec<u32> = (0..20).map(|i| 300 + i).collect();
    pair.submit(&prompt, &params(1));
    pair.run();
    let (prefill, decode) = (pair.answer(0, 0), pair.answer(0, 1));
    assert_eq!((prefill.finish, decode.finish), (Some(Finish::HandedOver), Some(Finish::Length)));
    assert_eq!(prefill.ids, decode.ids);
    assert_eq!(prefill.text, decode.text);
    pair.is_back_at_the_start();
}

#[test]
fn what_is_reported_of_tokens_travels_bit_for_bit() {
    let ask = LogprobAsk { top: 3, ids: vec![300], prompt_from: Some(0) };
    let params = SamplingParams { logprobs: Some(ask), ..params(6) };
    let prompt: Vec<u32> = (0..40).map(|i| 300 + i).collect();
    let mut pair = Pair::new(config(40, 4, 512), config(40, 4, 512), 4);
    pair.submit(&prompt, &params);
    pair.run();
    let mut plain = Core::new(&config(40, 4, 512));
    let (sequence, mailbox) =
        sequence(&config(40, 4, 512), &RidSet::default(), 0, Task::Generate(params.clone()), &prompt);
    plain.submit(sequence);
    while !plain.is_idle() {
        plain.step();
    }
    let (whole, prefill, decode) = (taken(&mailbox), pair.answer(0, 0), pair.answer(0, 1));
    assert_eq!(decode.ids, whole.ids);
    assert_eq!(decode.logprobs, whole.logprobs);
    assert_eq!(prefill.logprobs, whole.logprobs[..1]);
    // Those of the prompt are prefill's to report.
    assert_eq!(prefill.prompt_logprobs, whole.prompt_logprobs);
    assert!(decode.prompt_logprobs.is_empty());
}

#[test]
fn sampling_with_a_seed_goes_on_where_prefill_left_it() {
    let params = SamplingParams { temperature: 0.9, seed: Some(11), ignore_eos: true, ..params(30) };
    let prompt: Vec<u32> = (0..33).map(|i| 300 + i).collect();
    let mut pair = Pair::new(config(40, 4, 512), config(40, 4, 512), 4);
    pair.submit(&prompt, &params);
    pair.run();
    let mut plain = Core::new(&config(40, 4, 512));
    let (sequence, mailbox) =
        sequence(&config(40, 4, 512), &RidSet::default(), 0, Task::Generate(params.clone()), &prompt);
    plain.submit(sequence);
    while !plain.is_idle() {
        plain.step();
    }
    assert_eq!(pair.answer(0, 1).ids, taken(&mailbox).ids);
}

#[test]
fn more_legs_than_may_wait_are_refused() {
    let small = EngineConfig { max_waiting: 2, ..config(40, 1, 64) };
    let mut pair = Pair::new(small.clone(), small, 4);
    for _ in 0..3 {
        pair.submit(&[300, 301], &params(2));
    }
    let full = Finish::Refused(Refusal::QueueFull);
    assert_eq!((pair.answer(2, 0).finish, pair.answer(2, 1).finish), (Some(full.clone()), Some(full)));
    pair.run();
    pair.is_back_at_the_start();
}
