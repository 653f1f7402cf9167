//! Against a plain list of blocks.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The same cache, block by block: name to when it was let go of and by how many it is held.
#[derive(Default)]
struct Plain {
    blocks: BTreeMap<u64, (u64, u32)>,
    clock: u64,
}

impl Plain {
    fn probe(&self, chain: &[u64]) -> u64 {
        chain.iter().take_while(|name| self.blocks.contains_key(*name)).count() as u64
    }

    fn hold(&mut self, chain: &[u64]) {
        for name in chain {
            self.blocks.entry(*name).or_insert((0, 0)).1 += 1;
        }
    }

    fn release(&mut self, chain: &[u64]) {
        for name in chain.iter().rev() {
            self.clock += 1;
            let block = self.blocks.get_mut(name).unwrap();
            (block.0, block.1) = (self.clock, block.1 - 1);
        }
    }

    fn evict(&mut self, count: u64) -> Vec<u64> {
        let mut idle: Vec<(u64, u64)> =
            self.blocks.iter().filter(|(_, (_, pins))| *pins == 0).map(|(name, (used, _))| (*used, *name)).collect();
        idle.sort_unstable();
        let gone: Vec<u64> = idle.into_iter().take(count as usize).map(|(_, name)| name).collect();
        self.blocks.retain(|name, _| !gone.contains(name));
        gone
    }
}

/// A path in a small tree of prefixes.
fn chain(seed: &[u8]) -> Vec<u64> {
    let mut previous = 0;
    seed.iter()
        .map(|id| {
            previous = crate::names::name(previous, u64::from(*id));
            previous
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Act {
    Begin(Vec<u8>),
    End(usize),
    Evict(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => prop::collection::vec(0u8..2, 0..12).prop_map(Act::Begin),
        3 => (0usize..8).prop_map(Act::End),
        1 => (0u64..10).prop_map(Act::Evict),
    ]
}

proptest! {
    /// What is there, what is held and what goes first are those of a list of blocks.
    #[test]
    fn it_is_an_lru_list_of_blocks(acts in prop::collection::vec(act(), 1..80)) {
        let (mut cache, mut plain) = (PrefixCache::default(), Plain::default());
        let mut held: Vec<(Edge, Vec<u64>)> = Vec::new();
        for act in acts {
            match act {
                Act::Begin(seed) => {
                    let chain = chain(&seed);
                    let probe = cache.probe(&chain);
                    prop_assert_eq!(probe.blocks, plain.probe(&chain));
                    let end = cache.pin(&chain, probe.blocks);
                    let committed = cache.commit(end, &chain, probe.blocks as usize);
                    prop_assert_eq!(committed.new_blocks, chain.len() as u64 - probe.blocks);
                    plain.hold(&chain);
                    held.push((committed.end, chain));
                }
                Act::End(nth) if nth < held.len() => {
                    let (end, chain) = held.remove(nth);
                    cache.release(end);
                    plain.release(&chain);
                }
                Act::End(_) => {}
                Act::Evict(count) => {
                    let mut gone = Vec::new();
                    let evicted = cache.evict(count, Some(&mut gone));
                    prop_assert_eq!(evicted, gone.len() as u64);
                    prop_assert_eq!(gone, plain.evict(count));
                }
            }
            cache.check().unwrap();
            prop_assert_eq!(cache.blocks(), plain.blocks.len() as u64);
            let idle = plain.blocks.values().filter(|(_, pins)| *pins == 0).count() as u64;
            prop_assert_eq!(cache.idle_blocks(), idle);
        }
    }
}
