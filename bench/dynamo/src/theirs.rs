//! `dynamo-kv-router`: its concurrent compressed tree behind one worker thread, the fastest it has.
//!
//! What it takes is read from the kernel's account of the worker's thread, which is exact while the thread waits.

use crate::measure::Index;
use crate::work::{Block, Stored};
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Events on their way at once.
const BATCH: usize = 256;

pub struct Theirs {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    /// The kernel's account of the worker.
    account: String,
    worker: Option<JoinHandle<()>>,
    events: u64,
}

impl Theirs {
    fn event(&mut self, engine: u16, data: KvCacheEventData) -> WorkerTask {
        self.events += 1;
        let event = KvCacheEvent { event_id: self.events, dp_rank: 0, data };
        WorkerTask::Event(RouterEvent::new(u64::from(engine), event))
    }

    /// Its CPU time so far.
    fn worker_s(&self) -> f64 {
        let account = std::fs::read_to_string(&self.account).unwrap_or_default();
        let ns = account.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        ns.map_or(f64::NAN, |ns| ns / 1e9)
    }

    fn send(&self, task: WorkerTask) {
        assert!(self.tasks.send(task).is_ok(), "its worker has ended");
    }

    fn flush(&self) {
        let (done, wait) = oneshot::channel();
        self.send(WorkerTask::Flush(done));
        assert!(wait.blocking_recv().is_ok(), "its worker has ended");
    }
}

impl Index for Theirs {
    type Asked = Vec<LocalBlockHash>;

    fn new() -> Self {
        let (tasks, received) = flume::unbounded();
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let own_tree = tree.clone();
        let (said, heard) = mpsc::channel();
        let worker = std::thread::spawn(move || {
            let _ = said.send(rustix::thread::gettid());
            own_tree.worker(received, None).unwrap_or_else(|error| panic!("its worker failed: {error}"));
        });
        let thread = heard.recv().map_or(0, rustix::thread::Pid::as_raw_pid);
        let account = format!("/proc/self/task/{thread}/schedstat");
        Theirs { tree, tasks, account, worker: Some(worker), events: 0 }
    }

    /// In batches, so that the channel stays small.
    fn apply(&mut self, events: Vec<Stored>) -> f64 {
        let stored = |event: &Stored| {
            let block = |block: &Block| KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(block.chained),
                tokens_hash: LocalBlockHash(block.local),
                mm_extra_info: None,
            };
            KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: event.parent.map(ExternalSequenceBlockHash),
                start_position: None,
                blocks: event.blocks.iter().map(block).collect(),
            })
        };
        let began = self.worker_s();
        for batch in events.chunks(BATCH) {
            for event in batch {
                let task = self.event(event.engine, stored(event));
                self.send(task);
            }
            self.flush();
        }
        self.worker_s() - began
    }

    fn remove(&mut self, events: &[Stored]) {
        for (nth, event) in events.iter().rev().enumerate() {
            if nth % BATCH == 0 {
                self.flush();
            }
            let block_hashes = event.blocks.iter().rev().map(|b| ExternalSequenceBlockHash(b.chained)).collect();
            let task = self.event(event.engine, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }));
            self.send(task);
        }
        self.flush();
        // What it does by itself when it is idle for a while.
        self.send(WorkerTask::CleanupStaleChildren);
        self.flush();
    }

    fn asked(blocks: &[Block]) -> Vec<LocalBlockHash> {
        blocks.iter().map(|block| LocalBlockHash(block.local)).collect()
    }

    fn matched(&self, asked: &Vec<LocalBlockHash>) -> u64 {
        self.tree.find_matches(asked, false).scores.values().map(|depth| u64::from(*depth)).sum()
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.tasks.send(WorkerTask::Terminate);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}
