use super::super::tier::checksum;
use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// Nodes of a tree of prompts: node `n` continues node `(n - 1) / 2`.
const NODES: usize = 63;
const PAGE: usize = 64;

fn key(node: usize) -> PageKey {
    let mut chain = [0; 32];
    chain[0] = node as u8;
    PageKey { model: [7; 32], chain }
}

fn page(node: usize) -> [u8; PAGE] {
    [node as u8 ^ 0x5a; PAGE]
}

/// From the root to the node.
fn path(node: usize) -> Vec<usize> {
    let mut path: Vec<usize> = std::iter::successors(Some(node), |node| node.checked_sub(1).map(|n| n / 2)).collect();
    path.reverse();
    path
}

fn put(tier: &MemoryTier, node: usize, gone: &mut Vec<PageKey>) -> bool {
    tier.put(&key(node), &page(node), checksum(&key(node), &page(node)), gone)
}

fn get(tier: &MemoryTier, nodes: &[usize]) -> usize {
    let keys: Vec<PageKey> = nodes.iter().map(|node| key(*node)).collect();
    let mut bytes = vec![[0u8; PAGE]; nodes.len()];
    let mut slots: Vec<PageSlot<'_>> = bytes.iter_mut().map(|bytes| PageSlot { bytes, crc: 0 }).collect();
    let read = tier.get(&keys, &mut slots);
    let crcs: Vec<u32> = slots.iter().map(|slot| slot.crc).collect();
    for (at, node) in nodes.iter().enumerate().take(read) {
        assert_eq!((bytes[at], crcs[at]), (page(*node), checksum(&key(*node), &page(*node))));
    }
    read
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A prompt is evicted, leaf first.
    Evict(usize),
    /// A prompt is wanted.
    Want(usize),
    Corrupt(usize),
    Clear,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..NODES).prop_map(Act::Evict),
        4 => (0..NODES).prop_map(Act::Want),
        1 => (0..NODES).prop_map(Act::Corrupt),
        1 => Just(Act::Clear),
    ]
}

proptest! {
    /// Never above its bytes, all that leaves is told, what is read is what was put, and no page is kept whose start was
    /// dropped for want of room.
    #[test]
    fn it_stays_within_its_bytes_and_drops_leaves_first(acts in prop::collection::vec(act(), 1..200), room in 0usize..30) {
        let tier = MemoryTier::new(room * (PAGE + PER_PAGE_BYTES) + PER_PAGE_BYTES);
        let mut held: HashSet<usize> = HashSet::new();
        let mut torn = false;
        for act in acts {
            match act {
                Act::Evict(node) => {
                    for node in path(node).into_iter().rev() {
                        let mut gone = Vec::new();
                        let kept = put(&tier, node, &mut gone);
                        prop_assert_eq!(kept, room > 0);
                        for key in gone {
                            prop_assert!(held.remove(&(key.chain[0] as usize)), "told of what was not there");
                        }
                        if kept {
                            held.insert(node);
                        }
                    }
                }
                Act::Want(node) => {
                    let path = path(node);
                    let there = path.iter().take_while(|node| held.contains(*node)).count();
                    let keys: Vec<PageKey> = path.iter().map(|node| key(*node)).collect();
                    prop_assert_eq!(tier.exists_prefix(&keys), there);
                    prop_assert_eq!(get(&tier, &path), there);
                }
                Act::Corrupt(node) => {
                    tier.remove(&key(node));
                    // What hangs on it is out of reach from now on; it ages away.
                    torn |= held.remove(&node);
                }
                Act::Clear => {
                    tier.clear();
                    held.clear();
                }
            }
            let usage = tier.usage();
            prop_assert_eq!(usage.pages, held.len());
            prop_assert_eq!(usage.bytes, held.len() * (PAGE + PER_PAGE_BYTES));
            prop_assert!(held.len() <= room && Some(usage.bytes) <= usage.capacity_bytes);
            if !torn {
                for node in &held {
                    prop_assert!(path(*node).iter().all(|above| held.contains(above)), "{node} has lost its start");
                }
            }
        }
    }
}

#[test]
fn another_model_and_another_size_find_nothing() {
    let tier = MemoryTier::new(1 << 20);
    assert!(put(&tier, 1, &mut Vec::new()));
    let other = PageKey { model: [8; 32], ..key(1) };
    assert_eq!(tier.exists_prefix(&[other]), 0);
    let mut bytes = [0; PAGE * 2];
    assert_eq!(tier.get(&[key(1)], &mut [PageSlot { bytes: &mut bytes, crc: 0 }]), 0);
    assert_ne!(checksum(&other, &page(1)), checksum(&key(1), &page(1)));
    assert_ne!(checksum(&key(2), &page(1)), checksum(&key(1), &page(1)));
}
