//! The decision record: what was decided for a request, from which numbers, and what came of it (design rule 7).
//!
//! One cell per request, shared by the request and a bounded ring, so that `/debug/requests/{id}` shows running
//! requests too. When a request has ended its record goes to the decision log, if there is one, through a bounded
//! channel: a slow disk loses records (counted), never memory or latency. No prompt text is ever in it.

use parking_lot::Mutex;
use plimsoll_core::{Class, ErrorCode, InstanceId, Outcome, Rank};
use plimsoll_load::{Basis, Scored};
use plimsoll_traffic::admission::Basis as RefusalBasis;
use plimsoll_traffic::class::basis::Basis as ClassBasis;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Everything about one request but its text.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionRecord {
    /// Plimsoll's own id of the request.
    pub id: String,
    /// `x-request-id` as the client knows it.
    pub request_id: String,
    pub arrival_unix_ms: i64,
    #[serde(serialize_with = "as_str")]
    pub tenant: Arc<str>,
    pub route: &'static str,
    pub model: Option<String>,
    pub stream: bool,
    pub class: Class,
    pub class_rule: &'static str,
    /// What the two follow from.
    pub class_basis: ClassBasis,
    /// Estimated, or exact where the client sent token ids.
    pub prompt_tokens: u64,
    pub prompt_tokens_exact: bool,
    /// What its prompt was compared by with what engines hold: `token_ids`, or `text`, which makes turns and hits approximate. `None`
    /// where nothing can be said of hits.
    pub compared_by: Option<&'static str>,
    /// Which turn of its session it is, from 1; `None` where that cannot be known.
    pub turn: Option<u32>,
    /// Turns before it that found most of the turn before them cached.
    pub hit_rounds: Option<u32>,
    /// Tokens of this prompt that were the prompt of the turn before.
    pub known_tokens: Option<u64>,
    pub reserved_kv_tokens: u64,
    /// What traffic scheduling said; `None` where it was not asked, or has not answered yet.
    pub traffic: Option<TrafficRecord>,
    pub attempts: Vec<AttemptRecord>,
    pub outcome: Option<Outcome>,
    pub error_code: Option<ErrorCode>,
    /// HTTP status sent to the client; `None` while it waits.
    pub status: Option<u16>,
    /// As reported by the engine; `None` where it did not say.
    pub reported_prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// Arrival to the first piece of output, milliseconds.
    pub ttft_ms: Option<f64>,
    /// Longest silence between two pieces of output, milliseconds.
    pub longest_gap_ms: Option<f64>,
    pub total_ms: Option<f64>,
    pub trace_id: String,
}

fn as_str<S: serde::Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

/// Why a request was let go or refused, and after which wait.
#[derive(Clone, Debug, Serialize)]
pub struct TrafficRecord {
    /// `room`, `turn`, or the rule that refused.
    pub why: &'static str,
    /// As which it went or was refused; one that could not be in time may have become low.
    pub class: Class,
    pub queue_wait_ms: f64,
    /// The water level that counted; `None` where none is known.
    pub level: Option<f64>,
    /// The part of the capacity that its class had.
    pub share: f64,
    /// From its arrival to its first token, predicted and allowed, where it was refused for that.
    pub predicted_ms: Option<f64>,
    pub allowed_ms: Option<f64>,
    /// What a refusal follows from: `plimsoll sim replay-decisions` works it out again.
    pub basis: Option<Box<RefusalBasis>>,
}

/// One choice and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptRecord {
    pub engine: InstanceId,
    pub engine_url: String,
    pub rank: Rank,
    pub policy_reason: String,
    pub expected_wait_ms: Option<f64>,
    /// Prompt tokens that the engine was believed to hold; `None` where that cannot be known.
    pub hit_tokens: Option<u64>,
    /// Best candidates, best first.
    pub candidates: Vec<Scored>,
    /// With the candidates, all that the choice followed from: `plimsoll sim replay-decisions` makes it again.
    pub basis: Option<Basis>,
    pub considered: usize,
    pub panic: bool,
    pub half_open: bool,
    /// Arrival to this choice, milliseconds.
    pub decided_ms: f64,
    /// Time the choice took, microseconds.
    pub decision_us: f64,
    /// Id that the engine knows the request by.
    pub rid: String,
    /// The engine's route that it was sent to as token ids; `None` where it went as it came.
    pub token_route: Option<&'static str>,
    /// Why the attempt ended; `None` while it runs.
    pub end: Option<&'static str>,
    pub error: Option<String>,
}

/// A record that its request still writes.
pub type RecordCell = Arc<Mutex<DecisionRecord>>;

struct Ring {
    order: VecDeque<(String, String)>,
    /// By Plimsoll's id and by the client's.
    by_id: HashMap<String, RecordCell>,
    capacity: usize,
}

/// The ring and the log.
pub struct Decisions {
    ring: Mutex<Ring>,
    log: Option<Log>,
}

/// The way to the log's writer.
#[derive(Debug)]
pub struct Log {
    records: mpsc::Sender<RecordCell>,
    /// Records that are not in the file: the writer was behind, or could not write.
    lost: Arc<AtomicU64>,
}

impl Decisions {
    #[must_use]
    pub fn new(ring_records: usize, log: Option<Log>) -> Self {
        Decisions {
            ring: Mutex::new(Ring { order: VecDeque::new(), by_id: HashMap::new(), capacity: ring_records.max(1) }),
            log,
        }
    }

    /// Makes a record findable. The oldest one leaves.
    pub fn open(&self, record: DecisionRecord) -> RecordCell {
        let (id, request_id) = (record.id.clone(), record.request_id.clone());
        let cell = Arc::new(Mutex::new(record));
        let mut ring = self.ring.lock();
        while ring.order.len() >= ring.capacity {
            let Some((old_id, old_request_id)) = ring.order.pop_front() else { break };
            let old = ring.by_id.remove(&old_id);
            // A client may send one `x-request-id` many times; the name stays with the newest.
            if let (Some(old), Some(named)) = (old, ring.by_id.get(&old_request_id))
                && Arc::ptr_eq(&old, named)
            {
                ring.by_id.remove(&old_request_id);
            }
        }
        if request_id != id {
            ring.by_id.insert(request_id.clone(), cell.clone());
        }
        ring.by_id.insert(id.clone(), cell.clone());
        ring.order.push_back((id, request_id));
        cell
    }

    /// The request has ended: its record goes to the log.
    pub fn close(&self, cell: &RecordCell) {
        if let Some(log) = &self.log
            && log.records.try_send(cell.clone()).is_err()
        {
            log.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// By Plimsoll's id or the client's.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<DecisionRecord> {
        let cell = self.ring.lock().by_id.get(id).cloned()?;
        let record = cell.lock().clone();
        Some(record)
    }

    /// Records that are not in the log: it could not take them in time, or its file could not.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.lost.load(Ordering::Relaxed))
    }
}

/// More than any record has, so that a line is in the buffer whole or not at all.
const LOG_BUFFER_BYTES: usize = 1 << 20;

/// Drops what could not be written, or it would be tried and counted again with each of the next. The rest of a line that the file has the beginning of
/// stays, so that what follows are whole lines again when there is room. Says how many lines were dropped.
fn give_up(out: &mut BufWriter<std::fs::File>) -> u64 {
    let Ok(file) = out.get_ref().try_clone() else { return 0 };
    let (_, rest) = std::mem::replace(out, BufWriter::with_capacity(LOG_BUFFER_BYTES, file)).into_parts();
    let rest = rest.unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
    // Less than the buffer holds, so it goes nowhere yet.
    let _ = out.write_all(&rest[..end]);
    lines(&rest[end..])
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Opens the decision log and starts its writer; the writer ends when the sender is dropped.
///
/// # Errors
/// The file cannot be opened for appending.
pub fn open_log(path: &Path) -> std::io::Result<(Log, std::thread::JoinHandle<()>)> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    let (records, mut receiver) = mpsc::channel::<RecordCell>(8_192);
    let lost = Arc::new(AtomicU64::new(0));
    let missed = lost.clone();
    let path = path.to_owned();
    let writer = std::thread::Builder::new().name("decision-log".into()).spawn(move || {
        let mut out = BufWriter::with_capacity(LOG_BUFFER_BYTES, file);
        let mut complained = false;
        let mut fails = |error: std::io::Error, records: u64| {
            missed.fetch_add(records, Ordering::Relaxed);
            if !std::mem::replace(&mut complained, true) {
                tracing::error!(path = %path.display(), %error, "the decision log cannot be written; free space or restart with another file");
            }
        };
        while let Some(first) = receiver.blocking_recv() {
            let mut next = Some(first);
            while let Some(cell) = next.take() {
                let mut line = serde_json::to_vec(&*cell.lock()).unwrap_or_default();
                line.push(b'\n');
                if let Err(error) = out.write_all(&line) {
                    fails(error, 1);
                }
                next = receiver.try_recv().ok();
            }
            // Nothing more waits: make what is there visible to readers.
            if let Err(error) = out.flush() {
                fails(error, give_up(&mut out));
            }
        }
        if let Err(error) = out.flush() {
            fails(error, lines(out.buffer()));
        }
    })?;
    Ok((Log { records, lost }, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, request_id: &str) -> DecisionRecord {
        DecisionRecord {
            id: id.into(),
            request_id: request_id.into(),
            arrival_unix_ms: 0,
            tenant: "t".into(),
            route: "/generate",
            model: None,
            stream: false,
            class: Class::High,
            class_rule: "r",
            class_basis: ClassBasis {
                rules: plimsoll_traffic::class::ClassRules::default(),
                input_tokens: 1,
                predicted_hit_tokens: None,
                past: plimsoll_traffic::class::Past::default(),
                asked: None,
                bounds: None,
            },
            prompt_tokens: 1,
            prompt_tokens_exact: true,
            compared_by: None,
            turn: None,
            hit_rounds: None,
            known_tokens: None,
            reserved_kv_tokens: 1,
            traffic: None,
            attempts: vec![],
            outcome: None,
            error_code: None,
            status: None,
            reported_prompt_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            ttft_ms: None,
            longest_gap_ms: None,
            total_ms: None,
            trace_id: String::new(),
        }
    }

    #[test]
    fn the_ring_is_bounded_and_a_repeated_name_stays_with_the_newest() {
        let decisions = Decisions::new(2, None);
        decisions.open(record("a", "same"));
        decisions.open(record("b", "same"));
        decisions.open(record("c", "other"));
        assert!(decisions.find("a").is_none(), "the oldest leaves");
        assert_eq!(decisions.find("same").unwrap().id, "b");
        decisions.open(record("d", "x"));
        assert!(decisions.find("same").is_none());
        let ring = decisions.ring.lock();
        assert_eq!((ring.order.len(), ring.by_id.len()), (2, 4));
    }

    #[test]
    fn a_log_that_cannot_keep_up_drops_and_counts() {
        let (records, _receiver) = mpsc::channel(1);
        let decisions = Decisions::new(8, Some(Log { records, lost: Arc::default() }));
        let cell = decisions.open(record("a", "a"));
        decisions.close(&cell);
        decisions.close(&cell);
        assert_eq!(decisions.dropped(), 1);
    }

    /// The disk was full in the middle of a line, and has room again.
    #[test]
    fn after_a_line_that_was_cut_come_whole_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "{\"id\": 1").unwrap();
        let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        let mut out = BufWriter::with_capacity(LOG_BUFFER_BYTES, file);
        out.write_all(b"23}\n{\"id\": 2}\n{\"id\": 3}\n").unwrap();
        assert_eq!(give_up(&mut out), 2);
        out.write_all(b"{\"id\": 4}\n").unwrap();
        out.flush().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"id\": 123}\n{\"id\": 4}\n");
    }

    /// A full disk is found when the buffer is written, records later.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_the_file_could_not_take_is_counted() {
        let (log, writer) = open_log(Path::new("/dev/full")).unwrap();
        let decisions = Decisions::new(8, Some(log));
        let cell = decisions.open(record("a", "a"));
        for _ in 0..100 {
            decisions.close(&cell);
        }
        let lost = decisions.log.as_ref().unwrap().lost.clone();
        drop(decisions);
        writer.join().unwrap();
        assert_eq!(lost.load(Ordering::Relaxed), 100);
    }
}
