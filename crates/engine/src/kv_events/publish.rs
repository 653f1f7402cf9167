//! The stream of one rank: numbers its batches, keeps the last ones, and hands them to sockets.
//!
//! The step loop only pushes into a bounded queue ([`Sink::publish`]); encoding and sockets are the runtime's. A batch
//! that finds the queue full is lost for everybody, but not its number: whoever listens sees the hole and knows
//! that its view is stale. Per-rank ports, numbering from 0 per process, frames and replay are SGLang's.

use super::KvEvent;
use super::config::KvEventsConfig;
use super::encode::{self, Form};
use super::faults::{Disorder, Fate};
use crate::config::EngineError;
use crate::faults::FaultSwitch;
use bytes::Bytes;
use parking_lot::Mutex;
use plimsoll_zmtp::{Endpoint, Frames, Limits, Publisher, Replier, Replies};
use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[cfg(test)]
mod tests;

/// Bytes of batches kept for replay, whatever `buffer_steps` says.
const KEPT_BYTES: usize = 256 << 20;
/// At the end, how long subscribers may take for what is queued.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Ends every replay.
const END: u64 = u64::MAX;

/// What a stream has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    pub batches: u64,
    pub events: u64,
    /// Batches lost for everybody: the queue to the sender was full.
    pub dropped_queue: u64,
    /// Batches lost for one subscriber: it was too slow.
    pub dropped_subscriber: u64,
    pub subscribers: usize,
    pub replays: u64,
}

#[derive(Debug, Default)]
struct Counters {
    batches: AtomicU64,
    events: AtomicU64,
    dropped: AtomicU64,
    replays: AtomicU64,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    ts: f64,
    events: Vec<KvEvent>,
    fate: Fate,
}

/// The step loop's end of a stream.
#[derive(Debug)]
pub struct Sink {
    sender: mpsc::Sender<Batch>,
    next: u64,
    disorder: Disorder,
    counters: Arc<Counters>,
}

impl Sink {
    /// Sends the events of one step; nothing when there are none. Never waits.
    pub fn publish(&mut self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let fate = self.disorder.next(&mut self.next);
        if fate == Fate::Unheard {
            return;
        }
        let number = self.next;
        self.next += 1;
        let count = events.len() as u64;
        let ts = self.disorder.now_s();
        let sent = self.sender.try_send(Batch { number, ts, events, fate });
        let (batches, events) = if sent.is_ok() { (1, count) } else { (0, 0) };
        self.counters.batches.fetch_add(batches, Ordering::Relaxed);
        self.counters.events.fetch_add(events, Ordering::Relaxed);
        self.counters.dropped.fetch_add(1 - batches, Ordering::Relaxed);
    }

    /// The number of the next batch.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.next
    }
}

/// All streams of an engine: rank *r* on the port + *r*. Lives on the runtime.
#[derive(Debug)]
pub struct Streams {
    config: KvEventsConfig,
    endpoint: Endpoint,
    replay: Option<Endpoint>,
    ranks: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    publisher: Arc<Publisher>,
    counters: Arc<Counters>,
    sender: JoinHandle<()>,
    _replier: Option<Replier>,
}

/// The last batches, by number.
#[derive(Debug)]
struct Kept {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    most: usize,
}

impl Streams {
    /// Opens the sockets of all ranks and gives every rank's sink. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub fn open(
        config: &KvEventsConfig,
        ranks: u16,
        faults: &FaultSwitch,
    ) -> Result<(Streams, Vec<Sink>), EngineError> {
        config.check().map_err(EngineError::KvEvents)?;
        let wrong = |error: plimsoll_zmtp::EndpointError| EngineError::KvEvents(error.to_string());
        let mut endpoint: Endpoint = config.endpoint.parse().map_err(wrong)?;
        let mut listeners: Vec<Option<TcpListener>> = (0..ranks).map(|_| None).collect();
        if config.bind.unwrap_or(endpoint.is_wildcard()) {
            let bound = endpoint.bind_ranks(ranks).map_err(wrong)?;
            endpoint = bound.first().map_or(endpoint, |(_, first)| first.clone());
            listeners = bound.into_iter().map(|(listener, _)| Some(listener)).collect();
        } else if endpoint.port == 0 || endpoint.of_rank(ranks - 1).is_none() {
            return Err(EngineError::KvEvents(format!("cannot connect to {endpoint}: name the subscriber's port")));
        }
        let mut replay: Option<Endpoint> =
            config.replay_endpoint.as_deref().map(str::parse).transpose().map_err(wrong)?;
        let mut repliers: Vec<Option<TcpListener>> = (0..ranks).map(|_| None).collect();
        if let Some(wanted) = &mut replay {
            let bound = wanted.bind_ranks(ranks).map_err(wrong)?;
            *wanted = bound.first().map_or(wanted.clone(), |(_, first)| first.clone());
            repliers = bound.into_iter().map(|(listener, _)| Some(listener)).collect();
        }
        let mut streams = Streams { config: config.clone(), endpoint, replay, ranks: Vec::new() };
        let mut sinks = Vec::new();
        for (rank, (listener, replier)) in (0..ranks).zip(listeners.into_iter().zip(repliers)) {
            let (stream, sink) = streams.start(rank, listener, replier, faults)?;
            streams.ranks.push(stream);
            sinks.push(sink);
        }
        Ok((streams, sinks))
    }

    fn start(
        &self,
        rank: u16,
        listener: Option<TcpListener>,
        replier: Option<TcpListener>,
        faults: &FaultSwitch,
    ) -> Result<(Stream, Sink), EngineError> {
        let config = &self.config;
        let io = |error: std::io::Error| EngineError::KvEvents(error.to_string());
        let limits = Limits { queued_messages: config.hwm, ..Limits::default() };
        let publisher = Arc::new(match (listener, self.endpoint.of_rank(rank)) {
            (Some(listener), _) => Publisher::bind(listener, limits).map_err(io)?,
            (None, Some(endpoint)) => Publisher::connect(endpoint, limits),
            (None, None) => return Err(EngineError::KvEvents(format!("rank {rank} has no port"))),
        });
        let counters = Arc::new(Counters::default());
        let kept = Arc::new(Mutex::new(Kept { batches: VecDeque::new(), bytes: 0, most: config.buffer_steps }));
        let topic = Bytes::from(config.topic.clone());
        let form = config.form();
        let replier = replier
            .map(|listener| {
                let (kept, counters, topic) = (Arc::clone(&kept), Arc::clone(&counters), topic.clone());
                let answer = move |question: &[Bytes]| {
                    counters.replays.fetch_add(1, Ordering::Relaxed);
                    replay(question, &kept, form, &topic)
                };
                Replier::bind(listener, limits, answer)
            })
            .transpose()
            .map_err(io)?;
        let (sender, batches) = mpsc::channel(config.max_queue_size);
        let sending = send(batches, Arc::clone(&publisher), kept, form, topic, u32::from(rank));
        let disorder = Disorder::new(faults.clone());
        let sink = Sink { sender, next: 0, disorder, counters: Arc::clone(&counters) };
        Ok((Stream { publisher, counters, sender: tokio::spawn(sending), _replier: replier }, sink))
    }

    /// What `/server_info` says under `kv_events`, as SGLang does.
    #[must_use]
    pub fn descriptor(&self, block_size: usize) -> serde_json::Value {
        let mut value = serde_json::json!({
            "publisher": "zmq",
            "endpoint_host": self.endpoint.url_host(),
            "endpoint_port_base": self.endpoint.port,
            "topic": self.config.topic,
            "block_size": block_size,
            "dp_size": self.ranks.len(),
        });
        if let Some(replay) = &self.replay {
            value["replay_endpoint_port_base"] = replay.port.into();
        }
        value
    }

    /// The configuration as JSON, with the ports that were taken.
    #[must_use]
    pub fn config_json(&self) -> String {
        let config = KvEventsConfig {
            endpoint: self.endpoint.to_string(),
            replay_endpoint: self.replay.as_ref().map(ToString::to_string),
            ..self.config.clone()
        };
        serde_json::to_string(&config).unwrap_or_default()
    }

    /// By rank.
    #[must_use]
    pub fn stats(&self) -> Vec<StreamStats> {
        let one = |stream: &Stream| {
            let sockets = stream.publisher.stats();
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            StreamStats {
                batches: count(&stream.counters.batches),
                events: count(&stream.counters.events),
                dropped_queue: count(&stream.counters.dropped),
                dropped_subscriber: sockets.dropped,
                subscribers: sockets.subscribers,
                replays: count(&stream.counters.replays),
            }
        };
        self.ranks.iter().map(one).collect()
    }

    /// Once the sinks are gone: sends what is queued and closes the sockets.
    pub async fn close(self) {
        for stream in self.ranks {
            let _ = tokio::time::timeout(2 * LAST_WORDS, stream.sender).await;
        }
    }
}

async fn send(
    mut batches: mpsc::Receiver<Batch>,
    publisher: Arc<Publisher>,
    kept: Arc<Mutex<Kept>>,
    form: Form,
    topic: Bytes,
    rank: u32,
) {
    while let Some(batch) = batches.recv().await {
        let payload = Bytes::from(encode::batch(form, batch.ts, &batch.events, rank));
        // Kept first: whoever sees its number may ask for those before it.
        if batch.fate != Fate::Lost {
            kept.lock().push(batch.number, payload.clone());
        }
        if batch.fate == Fate::Sent {
            let wire = plimsoll_zmtp::encode(&[topic.clone(), number_frame(batch.number), payload]);
            publisher.send(&topic, &wire);
        }
    }
    publisher.drain(LAST_WORDS).await;
}

fn number_frame(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// The batches from the asked number on, then the end. SGLang up to 0.5.18 leaves the topic out.
fn replay(question: &[Bytes], kept: &Mutex<Kept>, form: Form, topic: &Bytes) -> Replies {
    let [_, from] = question else { return Box::new(std::iter::empty()) };
    let Ok(from) = <[u8; 8]>::try_from(&from[..]).map(u64::from_be_bytes) else {
        return Box::new(std::iter::empty());
    };
    let found: Vec<(u64, Bytes)> = kept.lock().batches.iter().filter(|(number, _)| *number >= from).cloned().collect();
    let topic = (form != Form::SglangArray).then(|| topic.clone());
    let end = topic.as_ref().map(|_| Bytes::new());
    let frames = |topic: Option<Bytes>, number, payload| -> Frames {
        [Some(Bytes::new()), topic, Some(number_frame(number)), Some(payload)].into_iter().flatten().collect()
    };
    let all = found.into_iter().map(move |(number, payload)| frames(topic.clone(), number, payload));
    Box::new(all.chain(std::iter::once_with(move || frames(end, END, Bytes::new()))))
}

impl Kept {
    fn push(&mut self, number: u64, payload: Bytes) {
        // Numbers that go back are those of a new start, which remembers nothing.
        if self.batches.back().is_some_and(|(last, _)| *last >= number) {
            self.batches.clear();
            self.bytes = 0;
        }
        self.bytes += payload.len();
        self.batches.push_back((number, payload));
        while self.batches.len() > self.most || self.bytes > KEPT_BYTES {
            let Some((_, oldest)) = self.batches.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }
}
