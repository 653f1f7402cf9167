//! What a rank does with its offload tier, between steps: pages out before they are overwritten, pages in when they have
//! come.

use super::Core;
use crate::config::EngineConfig;
use crate::faults::FaultSwitch;
use crate::model::kv::PageError;
use crate::offload::offloader::Offloader;
use crate::transfer::Identity;
use std::time::Instant;

impl Core {
    /// Offloads from now on, if the configuration says so. Nothing goes out or in before [`Self::start_offload`].
    pub(crate) fn open_offload(&mut self, config: &EngineConfig, identity: &Identity) {
        let Some(tier) = config.offload.open() else { return };
        let max_loads = 2 * config.max_running;
        let (offload, worker) =
            Offloader::new(tier, identity.digest(), self.kv.page_bytes(), max_loads, &config.offload);
        self.scheduler.blocks.keep_evicted();
        self.scheduler.offload = Some(offload);
        self.offload_worker = Some(worker);
        self.refresh();
    }

    /// Gives the tier its thread. `wake` makes the step loop look at what it brings.
    ///
    /// # Errors
    /// When the thread cannot start.
    pub(crate) fn start_offload(
        &mut self,
        faults: &FaultSwitch,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let (Some(offload), Some(mut worker)) = (&self.scheduler.offload, self.offload_worker.take()) else {
            return Ok(());
        };
        offload.set_wake(wake);
        worker.set_faults(faults.clone());
        worker.start()
    }

    /// Copies out what was evicted. Before anything is written to a page.
    pub(super) fn save_evicted(&mut self) {
        let Some(offload) = &mut self.scheduler.offload else { return };
        let evicted = self.scheduler.blocks.take_evicted();
        if !evicted.is_empty() {
            offload.save(evicted, &self.kv, self.scheduler.blocks.log());
        }
    }

    /// All writing to pages but the model's own.
    pub(super) fn write_kv(&mut self, page: u32, bytes: &[u8]) -> Result<(), PageError> {
        self.save_evicted();
        self.kv.write_page(page, bytes)
    }

    /// Asks for what admitted sequences want.
    pub(super) fn begin_loads(&mut self, now: Instant) {
        let Some(offload) = &mut self.scheduler.offload else { return };
        for sequence in &mut self.scheduler.running {
            let Some(load) = sequence.load.as_mut().filter(|load| !load.is_begun()) else { continue };
            let from = sequence.committed_pages;
            if !offload.begin(load, &sequence.chain.digests()[from..from + load.pages], now) {
                sequence.load = None;
            }
        }
    }

    /// Takes in what has come. A load that is over, or late, ends: the sequence computes the rest.
    pub(super) fn take_in_loads(&mut self, now: Instant) {
        let Some(offload) = &mut self.scheduler.offload else { return };
        offload.hear(self.scheduler.blocks.log());
        for index in 0..self.scheduler.running.len() {
            let Some(load) = &mut self.scheduler.running[index].load else { continue };
            let (pages, over) = load.take();
            let late = !over && load.is_late(now);
            let first = self.scheduler.running[index].committed_pages;
            for (at, page) in pages.iter().enumerate() {
                let own = self.scheduler.running[index].pages[first + at];
                let written = self.write_kv(own, page.bytes());
                debug_assert_eq!(written, Ok(()), "a page of this store, in a buffer for its pages");
            }
            self.scheduler.commit_loaded(index, pages.len());
            if over || late {
                self.end_load(index, over, now);
            }
        }
    }

    fn end_load(&mut self, index: usize, complete: bool, now: Instant) {
        let page_tokens = self.page_tokens();
        let sequence = &mut self.scheduler.running[index];
        let (Some(load), Some(offload)) = (sequence.load.take(), &mut self.scheduler.offload) else { return };
        offload.count(&load, complete, now);
        if load.is_first {
            let cached = sequence.computed.min(sequence.prompt_len);
            let host = (load.taken * page_tokens).min(cached);
            (sequence.cached_tokens, sequence.host_tokens) = (Some(cached), host);
            sequence.mailbox.post(|update| (update.cached_tokens, update.host_tokens) = (cached, host));
        }
    }

    /// Forgets every cached page that nobody holds, here and in the tier.
    pub(crate) fn flush(&mut self) {
        self.scheduler.blocks.flush();
        if let Some(offload) = &mut self.scheduler.offload {
            offload.clear();
        }
        self.refresh();
    }

    /// The worker of a rank whose tier has no thread.
    #[cfg(test)]
    pub(crate) fn offload_worker(&mut self) -> Option<&mut crate::offload::worker::Worker> {
        self.offload_worker.as_mut()
    }
}
