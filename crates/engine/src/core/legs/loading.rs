//! Decode legs and the offload tier: what it has of a prompt need not come from the prefill engine again.
//!
//! Once a leg holds its pages, those that the tier promises are loaded before prefill is told how many it need not send.
//! Prefill waits for that at most as long as a load may take; what has not come by then it sends.

use super::{Arriving, Hold};
use crate::core::Core;
use crate::disagg::leg::Reply;
use crate::offload::load::Load;
use std::time::Instant;

impl Core {
    /// The leg with this index has its pages, of which the cache had the first `have`.
    pub(super) fn hold(&mut self, index: usize, pages: Vec<u32>, have: usize) {
        let load = self.begin_load(index, have);
        let arriving = &mut self.legs.arriving[index];
        arriving.hold = match load {
            Some(load) => Hold::Loading { pages, have, load },
            None => {
                arriving.leg.reply(Reply::Ready { have_pages: have });
                Hold::Pages { pages, have }
            }
        };
    }

    /// Asks for what the tier has of the full pages behind the first `have`.
    fn begin_load(&mut self, index: usize, have: usize) -> Option<Box<Load>> {
        // The tier is to know of what was just evicted for this leg.
        self.save_evicted();
        let page_tokens = self.page_tokens();
        let offload = self.scheduler.offload.as_mut()?;
        let sequence = &self.legs.arriving[index].sequence;
        let digests = sequence.chain.digests();
        let full = (sequence.prompt_len / page_tokens).min(digests.len()).max(have);
        let pages = offload.promises(&digests[have..full]);
        let mut load = Load::wanted(pages, true);
        let begun = pages > 0 && offload.begin(&mut load, &digests[have..have + pages], Instant::now());
        begun.then_some(load)
    }

    /// Takes in what the tier has brought. A load that is over, or late, ends: prefill sends the rest.
    pub(super) fn load_arrivals(&mut self, now: Instant) {
        for index in 0..self.legs.arriving.len() {
            let Hold::Loading { pages, have, load } = &mut self.legs.arriving[index].hold else { continue };
            let (brought, over) = load.take();
            let first = *have + load.taken - brought.len();
            let own = pages[first..first + brought.len()].to_vec();
            for (page, bytes) in own.into_iter().zip(&brought) {
                let written = self.write_kv(page, bytes.bytes());
                debug_assert_eq!(written, Ok(()), "a page of this store, in a buffer for its pages");
            }
            self.end_load_of(index, over, now);
        }
    }

    fn end_load_of(&mut self, index: usize, over: bool, now: Instant) {
        let Arriving { leg, hold, .. } = &mut self.legs.arriving[index];
        let Hold::Loading { pages, have, load } = hold else { return };
        if !over && !load.is_late(now) {
            return;
        }
        if let Some(offload) = &mut self.scheduler.offload {
            offload.count(load, over, now);
        }
        leg.reply(Reply::Ready { have_pages: *have + load.taken });
        // Made findable when the leg lands, with those that prefill sends.
        *hold = Hold::Pages { pages: std::mem::take(pages), have: *have };
    }
}
