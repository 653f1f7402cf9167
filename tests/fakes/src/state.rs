//! Counters and switches shared by all connections of one fake.

use crate::behaviour::{Control, Options};
use crate::fault::Fault;
use crate::slot::Running;
use crate::snapshot::Snapshot;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::{Notify, watch};

const KEPT_IDS: usize = 256;

/// What the fake does now.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) faults: Vec<Fault>,
    pub(crate) faults_dealt: u64,
    pub(crate) fault_count: Option<u64>,
    pub(crate) ttft_ms: u64,
    pub(crate) itl_ms: u64,
    pub(crate) tokens: u64,
    pub(crate) event_bytes: usize,
    pub(crate) idle_close_ms: u64,
    pub(crate) health_ms: u64,
    pub(crate) notice_stream_ms: u64,
    pub(crate) notice_whole_ms: u64,
    pub(crate) early_headers: bool,
    pub(crate) close_on_reuse: bool,
    pub(crate) missing_paths: Vec<String>,
    pub(crate) hang_paths: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) generations: u64,
    pub(crate) finished: u64,
    pub(crate) aborted_by_disconnect: u64,
    pub(crate) aborted_by_rid: u64,
    pub(crate) clients_lost: u64,
    pub(crate) queue_full: u64,
    pub(crate) peak_in_flight: u64,
    pub(crate) connections: u64,
    pub(crate) reused: u64,
    pub(crate) closed_on_reuse: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) events_sent: u64,
    pub(crate) abort_rids: VecDeque<String>,
    pub(crate) rids: VecDeque<String>,
    pub(crate) last_path: String,
    pub(crate) last_headers: Vec<(String, String)>,
    pub(crate) last_body: Bytes,
}

pub(crate) struct State {
    pub(crate) options: Options,
    behaviour: Mutex<Behaviour>,
    counters: Mutex<Counters>,
    pub(crate) running: Mutex<Running>,
    /// Told when a place in the running set is free.
    pub(crate) freed: Notify,
    pub(crate) open_connections: watch::Sender<u64>,
    /// Counts up when idle connections shall close.
    pub(crate) close_idle: watch::Sender<u64>,
    /// Milliseconds for which the listener shall be away; taken by the server.
    pub(crate) refuse_ms: watch::Sender<u64>,
}

impl State {
    pub(crate) fn new(options: Options) -> State {
        let behaviour = Behaviour {
            faults: Vec::new(),
            faults_dealt: 0,
            fault_count: None,
            ttft_ms: options.ttft_ms,
            itl_ms: options.itl_ms,
            tokens: options.tokens,
            event_bytes: options.event_bytes,
            idle_close_ms: options.idle_close_ms,
            health_ms: options.dialect.health_ms(),
            notice_stream_ms: options.dialect.notice_stream_ms(),
            notice_whole_ms: options.dialect.notice_whole_ms(),
            early_headers: options.dialect != crate::Dialect::Openai,
            close_on_reuse: false,
            missing_paths: Vec::new(),
            hang_paths: Vec::new(),
        };
        State {
            options,
            behaviour: Mutex::new(behaviour),
            counters: Mutex::default(),
            running: Mutex::default(),
            freed: Notify::new(),
            open_connections: watch::Sender::new(0),
            close_idle: watch::Sender::new(0),
            refuse_ms: watch::Sender::new(0),
        }
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().clone()
    }

    pub(crate) fn count<T>(&self, change: impl FnOnce(&mut Counters) -> T) -> T {
        change(&mut self.counters.lock())
    }

    /// The fault for the next generation request.
    pub(crate) fn next_fault(&self) -> Fault {
        let mut behaviour = self.behaviour.lock();
        if behaviour.faults.is_empty() || behaviour.fault_count.is_some_and(|count| behaviour.faults_dealt >= count) {
            return Fault::None;
        }
        let turn = usize::try_from(behaviour.faults_dealt % behaviour.faults.len() as u64).unwrap_or(0);
        behaviour.faults_dealt += 1;
        behaviour.faults[turn].clone()
    }

    /// Applies what `POST /_ctl` asks.
    pub(crate) fn control(&self, control: Control) {
        let mut behaviour = self.behaviour.lock();
        if let Some(faults) = control.faults.or(control.fault.map(|fault| vec![fault])) {
            behaviour.faults = faults;
            behaviour.faults_dealt = 0;
            behaviour.fault_count = control.fault_count;
        }
        macro_rules! take {
            ($($field:ident),+) => { $(if let Some(value) = control.$field { behaviour.$field = value; })+ };
        }
        take!(ttft_ms, itl_ms, tokens, event_bytes, idle_close_ms, health_ms, notice_stream_ms, notice_whole_ms);
        take!(early_headers, close_on_reuse, missing_paths, hang_paths);
        drop(behaviour);
        if control.reset_counters {
            *self.counters.lock() = Counters::default();
        }
        if control.close_idle {
            self.close_idle.send_modify(|epoch| *epoch += 1);
        }
        if let Some(ms) = control.refuse_ms {
            self.refuse_ms.send_replace(ms);
            self.close_idle.send_modify(|epoch| *epoch += 1);
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        use base64::Engine as _;
        let (in_flight, running) = self.running.lock().sizes();
        let counters = self.counters.lock();
        Snapshot {
            dialect: self.options.dialect,
            requests: counters.requests.clone(),
            generations: counters.generations,
            finished: counters.finished,
            aborted_by_disconnect: counters.aborted_by_disconnect,
            aborted_by_rid: counters.aborted_by_rid,
            clients_lost: counters.clients_lost,
            queue_full: counters.queue_full,
            in_flight,
            running,
            peak_in_flight: counters.peak_in_flight,
            connections: counters.connections,
            open_connections: *self.open_connections.borrow(),
            reused: counters.reused,
            closed_on_reuse: counters.closed_on_reuse,
            bytes_sent: counters.bytes_sent,
            events_sent: counters.events_sent,
            abort_rids: counters.abort_rids.iter().cloned().collect(),
            rids: counters.rids.iter().cloned().collect(),
            last_path: counters.last_path.clone(),
            last_headers: counters.last_headers.clone(),
            last_body_base64: base64::engine::general_purpose::STANDARD.encode(&counters.last_body),
        }
    }
}

/// Keeps the newest [`KEPT_IDS`].
pub(crate) fn remember(ids: &mut VecDeque<String>, id: &str) {
    if ids.len() == KEPT_IDS {
        ids.pop_front();
    }
    ids.push_back(id.chars().take(256).collect());
}
