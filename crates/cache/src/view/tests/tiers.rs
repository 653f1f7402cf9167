//! Pages that move to the host as they are evicted, leaf first, and come back: what hangs on the device's pages counts.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Blocks of a tree of prompts: block `n` continues block `(n - 1) / 2`.
const NODES: usize = 15;

fn above(node: usize) -> Option<usize> {
    node.checked_sub(1).map(|node| node / 2)
}

fn path(node: usize) -> Vec<usize> {
    let mut path: Vec<usize> = std::iter::successors(Some(node), |node| above(*node)).collect();
    path.reverse();
    path
}

/// The prompt that ends with this block.
fn prompt_of(node: usize) -> Vec<u32> {
    path(node).into_iter().flat_map(|node| tokens(node as u32 * 100, 1)).collect()
}

fn stored_on(format: NameFormat, node: usize, from_block: usize, medium: Medium) -> KvEvent {
    let KvEvent::Stored(blocks) = stored(format, &prompt_of(node), from_block) else { unreachable!() };
    KvEvent::Stored(StoredBlocks { medium, ..blocks })
}

fn name_of(format: NameFormat, node: usize) -> u64 {
    let KvEvent::Stored(blocks) = stored(format, &prompt_of(node), 0) else { unreachable!() };
    blocks.names[path(node).len() - 1]
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A prompt is computed, or loaded back.
    Compute(usize),
    /// One of the leaves on the device goes to the host, or is lost.
    Evict(usize, bool),
    /// One that nothing hangs on leaves the host.
    Drop(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..NODES).prop_map(Act::Compute),
        (0usize..100, prop::bool::weighted(0.9)).prop_map(|(at, kept)| Act::Evict(at, kept)),
        (0usize..100).prop_map(Act::Drop),
    ]
}

/// Of these blocks those that nothing in `all` hangs on.
fn leaves(of: &BTreeSet<usize>, all: &BTreeSet<usize>) -> Vec<usize> {
    of.iter().copied().filter(|node| !all.iter().any(|other| above(*other) == Some(*node))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn belief_is_what_is_there(acts in prop::collection::vec(act(), 1..120), own in any::<bool>()) {
        let (kind, format) =
            if own { (EngineKind::Vllm, NameFormat::Own) } else { (EngineKind::Sglang, NameFormat::Sglang) };
        let mut view = FleetView::default();
        view.add(target(1), kind, None);
        let (mut device, mut host) = (BTreeSet::<usize>::new(), BTreeSet::<usize>::new());
        for (seq, act) in acts.into_iter().enumerate() {
            let either: BTreeSet<usize> = device.union(&host).copied().collect();
            let mut events = Vec::new();
            match act {
                Act::Compute(node) => {
                    let path = path(node);
                    let have = path.iter().take_while(|node| device.contains(*node)).count();
                    if have < path.len() {
                        events.push(stored_on(format, node, have, Medium::Device));
                        device.extend(&path);
                    }
                }
                Act::Evict(at, kept) => {
                    // Who is lost must not have anything on the host that hangs on it: that would be out of reach.
                    let leaves = if kept { leaves(&device, &device) } else { leaves(&device, &either) };
                    if let Some(node) = leaves.get(at % leaves.len().max(1)) {
                        if kept && host.insert(*node) {
                            events.push(stored_on(format, *node, path(*node).len() - 1, Medium::Host));
                        }
                        let names = vec![name_of(format, *node)];
                        events.push(KvEvent::Removed { names, medium: Medium::Device });
                        device.remove(node);
                    }
                }
                Act::Drop(at) => {
                    let leaves = leaves(&host, &either);
                    if let Some(node) = leaves.get(at % leaves.len().max(1)) {
                        let names = vec![name_of(format, *node)];
                        events.push(KvEvent::Removed { names, medium: Medium::Host });
                        host.remove(node);
                    }
                }
            }
            view.live(Nanos(1), target(1), seq as u64, batch(seq as u64, events));
            for node in 0..NODES {
                // One more block, since the last token is never a hit.
                let mut prompt = prompt_of(node);
                prompt.extend(tokens(50_000, 1));
                let path = path(node);
                let on_device = path.iter().take_while(|node| device.contains(*node)).count() as u64;
                let anywhere = path.iter().take_while(|node| device.contains(*node) || host.contains(*node)).count() as u64;
                let found = hit(&view, Nanos(1), target(1), &prompt);
                let block = u64::from(BLOCK);
                prop_assert_eq!((found.device_tokens, found.host_tokens), (on_device * block, (anywhere - on_device) * block));
            }
            let (_, state) = view.publishers(Nanos(1)).next().unwrap();
            prop_assert_eq!((state.unplaced, state.unknown_removals), (0, 0));
            prop_assert_eq!((state.device_blocks, state.host_blocks), (device.len() as u64, host.len() as u64));
        }
        view.remove(target(1));
        prop_assert_eq!(view.blocks(), 0);
    }
}
