//! `plimsoll-cache`.

use crate::measure::{Index, cpu_s};
use crate::work::{Block, Stored};
use plimsoll_cache::index::PrefixIndex;

pub struct Ours(PrefixIndex);

/// Engine, parent, names: as a decoded event carries them.
type Told = (u16, Option<u64>, Vec<u64>);

impl Index for Ours {
    type Asked = Vec<u64>;

    fn new() -> Self {
        Ours(PrefixIndex::default())
    }

    fn apply(&mut self, events: Vec<Stored>) -> f64 {
        let names = |blocks: &[Block]| blocks.iter().map(|block| block.chained).collect();
        let told: Vec<Told> = events.iter().map(|event| (event.engine, event.parent, names(&event.blocks))).collect();
        drop(events);
        let began = cpu_s();
        for (engine, parent, names) in told {
            let stored = self.0.store(engine, parent, &names);
            assert_eq!(stored.unplaced, 0);
        }
        cpu_s() - began
    }

    fn remove(&mut self, events: &[Stored]) {
        for event in events.iter().rev() {
            for block in event.blocks.iter().rev() {
                // A block that two events stored is there once.
                let _ = self.0.remove(event.engine, block.chained);
            }
        }
    }

    fn asked(blocks: &[Block]) -> Vec<u64> {
        blocks.iter().map(|block| block.chained).collect()
    }

    fn matched(&self, asked: &Vec<u64>) -> u64 {
        self.0.matched(asked).iter().map(|(_, depth)| u64::from(depth)).sum()
    }
}
