//! A subscriber over real sockets, as a router would be one: it applies what it hears, sees holes, and asks for replays.

use super::*;
use crate::EngineConfig;
use crate::driver::{Engine, EngineHandle};
use crate::faults::Faults;
use crate::kv_events::config::{Format, Publisher as Transport};
use crate::kv_events::faults::{DropEvents, DropMode, WrongSeq};
use crate::kv_events::tests::Mirror;
use crate::kv_events::tests::decode::decode;
use crate::kv_events::{CachedNames, Medium, Owner};
use crate::model::ModelConfig;
use crate::namespace::Namespace;
use crate::request::{Request, Task};
use crate::sampling::SamplingParams;
use plimsoll_zmtp::{Client, Role};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

/// A router's view of one rank.
struct Router {
    live: Client,
    replay: Endpoint,
    mirror: Mirror,
    next: u64,
    holes: usize,
    /// A hole that no replay could fill.
    blind: bool,
    medium_names: Vec<String>,
}

impl Router {
    async fn connect(streams: &Streams, rank: u16) -> Router {
        let limits = Limits { incoming_bytes: 16 << 20, ..Limits::default() };
        let endpoint = streams.endpoint.of_rank(rank).unwrap();
        let mut live = Client::connect(&endpoint, Role::Sub, &limits).await.unwrap();
        live.subscribe(streams.config.topic.as_bytes()).await.unwrap();
        let replay = streams.replay.as_ref().unwrap().of_rank(rank).unwrap();
        Router { live, replay, mirror: Mirror::default(), next: 0, holes: 0, blind: false, medium_names: Vec::new() }
    }

    /// Everything from the expected number on, as far as it is kept.
    async fn catch_up(&mut self) {
        let limits = Limits { incoming_bytes: 16 << 20, ..Limits::default() };
        let mut client = Client::connect(&self.replay, Role::Dealer, &limits).await.unwrap();
        client.send(&[&b""[..], &self.next.to_be_bytes()]).await.unwrap();
        loop {
            let frames = timeout(PATIENCE, client.recv()).await.unwrap().unwrap();
            // With or without the topic: count from the back.
            let [.., number, payload] = frames.as_slice() else { panic!("{frames:?}") };
            let number = u64::from_be_bytes(number[..].try_into().unwrap());
            if number == END {
                assert!(payload.is_empty());
                return;
            }
            self.take(number, payload);
        }
    }

    fn take(&mut self, number: u64, payload: &[u8]) {
        if number < self.next {
            return;
        }
        self.blind |= number > self.next;
        if !self.blind {
            let (_, events, rank) = decode(payload, &mut self.medium_names);
            assert!(rank < 2);
            self.mirror.apply(&events);
        }
        self.next = number + 1;
    }

    /// Listens until the batch before `until` is applied.
    async fn listen(&mut self, until: u64) {
        while self.next < until {
            match timeout(Duration::from_millis(500), self.live.recv()).await {
                Ok(frames) => {
                    let frames = frames.unwrap();
                    let number = u64::from_be_bytes(frames[1][..].try_into().unwrap());
                    if number > self.next {
                        self.holes += 1;
                        self.catch_up().await;
                    }
                    self.take(number, &frames[2]);
                }
                // The last ones may be among those that were dropped.
                Err(_) => {
                    self.holes += 1;
                    self.catch_up().await;
                    if self.next < until {
                        self.blind = true;
                        return;
                    }
                }
            }
        }
    }
}

fn engine_config(format: Format, dp_size: usize) -> EngineConfig {
    EngineConfig {
        model: ModelConfig { layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 32, ..ModelConfig::default() },
        kv_tokens: 20 * 16,
        max_running: 3,
        token_budget: 64,
        context_tokens: 256,
        dp_size,
        kv_events: Some(KvEventsConfig {
            publisher: Transport::Zmq,
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            bind: Some(true),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: "kv@here".to_owned(),
            format,
            ..KvEventsConfig::default()
        }),
        ..EngineConfig::default()
    }
}

fn start(config: &EngineConfig) -> (Engine, Streams, FaultSwitch) {
    let faults = FaultSwitch::default();
    let (streams, sinks) = Streams::open(config.kv_events.as_ref().unwrap(), config.dp_size as u16, &faults).unwrap();
    let engine = Engine::start_with(config, faults.clone(), sinks).unwrap();
    (engine, streams, faults)
}

/// Prompts with shared starts and owners of all kinds, more than the cache holds, two at a time.
async fn traffic(handle: &EngineHandle, rng: &mut ChaCha8Rng, requests: usize) {
    let text = |rng: &mut ChaCha8Rng| Arc::<str>::from(["a", "b"][rng.random_range(0..2usize)]);
    for _ in 0..requests / 2 {
        let mut tickets = Vec::new();
        for _ in 0..2 {
            let common = rng.random_range(0..100u32);
            let own = rng.random_range(1..40);
            let prompt =
                (0..common).map(|i| 272 + i % 300).chain((0..own).map(|_| rng.random_range(272..1000))).collect();
            let namespace = Namespace {
                extra_key: rng.random_bool(0.3).then(|| text(rng)),
                cache_salt: rng.random_bool(0.2).then(|| text(rng)),
                lora: None,
            };
            let owner = Arc::new(Owner { namespace, session_id: rng.random_bool(0.3).then(|| text(rng)) });
            let params = SamplingParams {
                max_new_tokens: rng.random_range(1..30),
                temperature: 0.0,
                ignore_eos: true,
                ..SamplingParams::default()
            };
            let rid = rng.random::<u64>().to_string();
            tickets
                .push(handle.submit(Request { owner, ..Request::new(rid, prompt, Task::Generate(params)) }).unwrap());
        }
        for mut ticket in tickets {
            while timeout(PATIENCE, ticket.next()).await.unwrap().is_some() {}
        }
    }
}

async fn mirrors(handle: &EngineHandle, routers: &mut [Router]) {
    let cached = handle.cached().await.unwrap();
    assert_eq!(cached.len(), routers.len());
    for (router, CachedNames { next_batch, gpu, cpu }) in routers.iter_mut().zip(cached) {
        router.listen(next_batch).await;
        assert!(!router.blind);
        assert!(!gpu.is_empty());
        assert_eq!((router.mirror.on(Medium::Gpu), router.mirror.on(Medium::Cpu)), (gpu, cpu));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_mirrors_every_rank_whatever_the_format_and_the_drops() {
    for (seed, format) in [Format::Default, Format::Dynamo, Format::SglangArray, Format::Vllm].into_iter().enumerate() {
        let (engine, streams, faults) = start(&engine_config(format, 2));
        let handle = engine.handle();
        let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
        let mut routers = [Router::connect(&streams, 0).await, Router::connect(&streams, 1).await];
        traffic(&handle, &mut rng, 30).await;
        mirrors(&handle, &mut routers).await;
        // Every third batch is only in the replay.
        faults.set(Faults { drop_events: Some(DropEvents { every: 3, mode: DropMode::Live }), ..Faults::default() });
        traffic(&handle, &mut rng, 30).await;
        mirrors(&handle, &mut routers).await;
        assert!(routers.iter().all(|router| router.holes > 0));
        // A late one gets all of it from the replay.
        let mut late = Router::connect(&streams, 1).await;
        late.catch_up().await;
        assert_eq!(late.mirror.on(Medium::Gpu), handle.cached().await.unwrap()[1].gpu);
        // A flush empties every view.
        faults.set(Faults::default());
        assert!(handle.flush().await);
        traffic(&handle, &mut rng, 6).await;
        mirrors(&handle, &mut routers).await;
        let stats = streams.stats();
        assert!(stats.iter().all(|s| s.batches > 20 && s.events >= s.batches && s.replays > 0), "{stats:?}");
        assert_eq!(stats.iter().map(|s| s.dropped_queue + s.dropped_subscriber).sum::<u64>(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_batches_leave_a_hole_and_silent_ones_a_wrong_view() {
    for mode in [DropMode::Lost, DropMode::Silent] {
        let (engine, streams, faults) = start(&engine_config(Format::Default, 1));
        let handle = engine.handle();
        let mut router = Router::connect(&streams, 0).await;
        faults.set(Faults { drop_events: Some(DropEvents { every: 2, mode }), ..Faults::default() });
        // Only new prefixes: the view cannot be right by accident, and no event contradicts it.
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        traffic(&handle, &mut rng, 2).await;
        let CachedNames { next_batch, gpu, .. } = handle.cached().await.unwrap().remove(0);
        match mode {
            DropMode::Lost => {
                router.listen(next_batch).await;
                assert!(router.blind, "a hole that cannot be filled must be seen");
            }
            _ => {
                // There is no hole to be seen, and yet fewer batches than steps that had something to tell.
                let mut numbers = Vec::new();
                while numbers.len() < next_batch as usize {
                    let frames = timeout(PATIENCE, router.live.recv()).await.unwrap().unwrap();
                    numbers.push(u64::from_be_bytes(frames[1][..].try_into().unwrap()));
                }
                assert_eq!(numbers, (0..next_batch).collect::<Vec<_>>());
            }
        }
        assert!(!gpu.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_starts_from_zero_with_nothing_kept() {
    let (engine, streams, faults) = start(&engine_config(Format::Default, 1));
    let handle = engine.handle();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut router = Router::connect(&streams, 0).await;
    traffic(&handle, &mut rng, 10).await;
    router.listen(handle.cached().await.unwrap()[0].next_batch).await;
    assert!(router.next > 3);
    faults.set(Faults { wrong_seq: Some(WrongSeq::Reset), ..Faults::default() });
    traffic(&handle, &mut rng, 10).await;
    let frames = timeout(PATIENCE, router.live.recv()).await.unwrap().unwrap();
    assert_eq!(&frames[1][..], &0u64.to_be_bytes(), "a number below the expected one says reset");
    let now = handle.cached().await.unwrap()[0].next_batch;
    let mut all = Router::connect(&streams, 0).await;
    // What was kept before the reset is gone: the first number is 0, not an old one.
    all.mirror = std::mem::take(&mut router.mirror);
    all.catch_up().await;
    assert_eq!((all.next, all.blind), (now, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_stall_or_die_hold_up_nothing() {
    let mut config = engine_config(Format::Default, 1);
    if let Some(events) = &mut config.kv_events {
        events.hwm = 1;
    }
    let (engine, streams, _) = start(&config);
    let handle = engine.handle();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    // Never reads; and some that vanish in the middle.
    let stalled = Router::connect(&streams, 0).await;
    for round in 0..5 {
        let gone = Router::connect(&streams, 0).await;
        traffic(&handle, &mut rng, 4).await;
        drop(gone);
        traffic(&handle, &mut rng, 4).await;
        assert_eq!(engine.handle().stats()[0].waiting, 0, "round {round}");
    }
    drop(stalled);
    // Every batch was made and kept all the same.
    let mut late = Router::connect(&streams, 0).await;
    late.catch_up().await;
    let cached = handle.cached().await.unwrap().remove(0);
    assert_eq!((late.next, late.mirror.on(Medium::Gpu)), (cached.next_batch, cached.gpu));
}

#[test]
fn the_queue_to_the_sender_is_bounded_and_a_loss_leaves_its_number_missing() {
    let (sender, mut batches) = mpsc::channel(2);
    let counters = Arc::new(Counters::default());
    let mut sink =
        Sink { sender, next: 0, disorder: Disorder::new(FaultSwitch::default()), counters: Arc::clone(&counters) };
    for _ in 0..5 {
        sink.publish(vec![KvEvent::Cleared]);
    }
    sink.publish(Vec::new());
    assert_eq!(sink.next_number(), 5);
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 3);
    let numbers: Vec<u64> = std::iter::from_fn(|| batches.try_recv().ok()).map(|batch| batch.number).collect();
    assert_eq!(numbers, [0, 1]);
    sink.publish(vec![KvEvent::Cleared]);
    assert_eq!(batches.try_recv().unwrap().number, 5);
}

#[test]
fn the_oldest_batches_are_forgotten() {
    let mut kept = Kept { batches: VecDeque::new(), bytes: 0, most: 3 };
    for number in 0..5 {
        kept.push(number, Bytes::from(vec![0; 10]));
    }
    let numbers = |kept: &Kept| kept.batches.iter().map(|batch| batch.0).collect::<Vec<_>>();
    assert_eq!((numbers(&kept), kept.bytes), (vec![2, 3, 4], 30));
    kept.push(5, Bytes::from(vec![0; KEPT_BYTES]));
    assert_eq!((numbers(&kept), kept.bytes), (vec![5], KEPT_BYTES));
    kept.push(0, Bytes::from(vec![0; 10]));
    assert_eq!((numbers(&kept), kept.bytes), (vec![0], 10));
}

#[tokio::test]
async fn addresses_that_cannot_work_are_said() {
    for (endpoint, bind, replay, says) in [
        ("ipc:///tmp/kv", None, None, "tcp://HOST:PORT"),
        ("tcp://127.0.0.1:0", None, None, "name the subscriber's port"),
        ("tcp://192.0.2.1:5557", Some(true), None, "cannot listen on tcp://192.0.2.1:5557"),
        ("tcp://*:0", None, Some("tcp://127.0.0.1"), "tcp://HOST:PORT"),
    ] {
        let config = KvEventsConfig {
            publisher: Transport::Zmq,
            endpoint: endpoint.to_owned(),
            bind,
            replay_endpoint: replay.map(str::to_owned),
            ..KvEventsConfig::default()
        };
        let error = Streams::open(&config, 1, &FaultSwitch::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
