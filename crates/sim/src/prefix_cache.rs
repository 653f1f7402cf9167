//! The prefix cache of one engine rank: which blocks lie in its memory, who holds them, which go first.
//!
//! Blocks are named by a chain ([`crate::names`]), so equal names are equal prefixes. Runs of blocks without a branch lie in
//! one edge: a 200,000-token context is dozens of edges, and a request costs what it has edges, not what it has blocks. Eviction is
//! that of SGLang and vLLM: the least recently used leaf first, block by block from its end, never what a running request
//! holds. A request lets go of its path from the end to the root, so an ancestor is always younger than what hangs
//! on it and the order is that of a plain LRU list of blocks.

use plimsoll_core::BlockName;
use std::collections::{BTreeSet, HashMap};

#[cfg(test)]
mod tests;

/// An edge, by number. Valid while somebody holds it.
pub type Edge = u32;

/// Nothing: the root.
pub const ROOT: Edge = u32::MAX;

#[derive(Debug, Default)]
struct Node {
    parent: Edge,
    children: u32,
    names: Vec<BlockName>,
    /// Running requests whose path goes through here.
    pins: u32,
    /// When it was let go of, on the cache's own clock.
    used: u64,
}

/// Blocks that one rank has.
#[derive(Debug, Default)]
pub struct PrefixCache {
    nodes: Vec<Node>,
    free: Vec<Edge>,
    /// Edge by its first block. Never iterated over.
    first: HashMap<BlockName, Edge, Mixed>,
    /// Nobody holds them and nothing hangs on them, oldest first.
    leaves: BTreeSet<(u64, Edge)>,
    blocks: u64,
    pinned: u64,
    clock: u64,
}

/// Names are hashes already.
#[derive(Clone, Debug, Default)]
pub struct Mixed(u64);

impl std::hash::Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl std::hash::BuildHasher for Mixed {
    type Hasher = Mixed;
    fn build_hasher(&self) -> Mixed {
        Mixed(0)
    }
}

/// How much of a chain is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    pub blocks: u64,
    /// Of them, those that nobody holds now.
    pub idle_blocks: u64,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where the path ends now.
    pub end: Edge,
    /// Blocks that were not there before.
    pub new_blocks: u64,
}

impl PrefixCache {
    /// Blocks in memory.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that could go.
    #[must_use]
    pub fn idle_blocks(&self) -> u64 {
        self.blocks - self.pinned
    }

    /// Leading blocks of a chain that are there.
    #[must_use]
    pub fn probe(&self, chain: &[BlockName]) -> Probe {
        let mut probe = Probe::default();
        let mut above = ROOT;
        while let Some(edge) = self.child(above, &chain[probe.blocks as usize..]) {
            let node = &self.nodes[edge as usize];
            let common = common(&node.names, &chain[probe.blocks as usize..]) as u64;
            probe.blocks += common;
            if node.pins == 0 {
                probe.idle_blocks += common;
            }
            if common < node.names.len() as u64 {
                break;
            }
            above = edge;
        }
        probe
    }

    /// Holds the first `blocks` of a chain, which must be there. Returns where they end.
    pub fn pin(&mut self, chain: &[BlockName], blocks: u64) -> Edge {
        let chain = &chain[..blocks as usize];
        let (mut above, mut at) = (ROOT, 0);
        while at < chain.len() {
            let Some(edge) = self.child(above, &chain[at..]) else { break };
            let common = common(&self.nodes[edge as usize].names, &chain[at..]);
            above = self.upper(edge, common);
            at += common;
            self.hold(above);
        }
        debug_assert_eq!(at, chain.len());
        above
    }

    /// The blocks `chain[from..]` are computed, behind a path that ends at `end` and is held. Holds them too.
    pub fn commit(&mut self, end: Edge, chain: &[BlockName], from: usize) -> Committed {
        let mut committed = Committed { end, new_blocks: 0 };
        let mut at = from;
        while at < chain.len() {
            if let Some(edge) = self.child(committed.end, &chain[at..]) {
                let common = common(&self.nodes[edge as usize].names, &chain[at..]);
                committed.end = self.upper(edge, common);
                self.hold(committed.end);
                at += common;
                continue;
            }
            let fresh = &chain[at..];
            committed.new_blocks += fresh.len() as u64;
            committed.end = self.append(committed.end, fresh);
            break;
        }
        committed
    }

    /// Lets go of a path.
    pub fn release(&mut self, end: Edge) {
        let mut edge = end;
        while edge != ROOT {
            self.clock += 1;
            let clock = self.clock;
            let node = &mut self.nodes[edge as usize];
            node.pins -= 1;
            node.used = clock;
            if node.pins == 0 {
                self.pinned -= node.names.len() as u64;
                if node.children == 0 {
                    self.leaves.insert((clock, edge));
                }
            }
            edge = node.parent;
        }
    }

    /// Gives up to `blocks` idle ones away, oldest first, and returns how many. Names go to `gone`, deepest first.
    pub fn evict(&mut self, blocks: u64, mut gone: Option<&mut Vec<BlockName>>) -> u64 {
        let mut left = blocks;
        while left > 0 {
            let Some((used, edge)) = self.leaves.first().copied() else { break };
            let node = &mut self.nodes[edge as usize];
            let keep = (node.names.len() as u64).saturating_sub(left) as usize;
            let cut = (node.names.len() - keep) as u64;
            if let Some(gone) = gone.as_deref_mut() {
                gone.extend(node.names[keep..].iter().rev());
            }
            if keep > 0 {
                node.names.truncate(keep);
            } else {
                self.leaves.remove(&(used, edge));
                self.drop_edge(edge);
            }
            self.blocks -= cut;
            left -= cut;
        }
        blocks - left
    }

    /// The end of what a path holds, deepest block last, for the parent of an event.
    #[must_use]
    pub fn last_name(&self, end: Edge) -> Option<BlockName> {
        self.nodes.get(end as usize).and_then(|node| node.names.last().copied())
    }

    fn child(&self, above: Edge, chain: &[BlockName]) -> Option<Edge> {
        let edge = *self.first.get(chain.first()?)?;
        (self.nodes[edge as usize].parent == above).then_some(edge)
    }

    fn hold(&mut self, edge: Edge) {
        let node = &mut self.nodes[edge as usize];
        if node.pins == 0 {
            self.pinned += node.names.len() as u64;
            if node.children == 0 {
                self.leaves.remove(&(node.used, edge));
            }
        }
        node.pins += 1;
    }

    /// New blocks behind an edge that only the caller may grow in place.
    fn append(&mut self, end: Edge, names: &[BlockName]) -> Edge {
        self.blocks += names.len() as u64;
        self.pinned += names.len() as u64;
        if let Some(node) = self.nodes.get_mut(end as usize)
            && node.pins == 1
            && node.children == 0
        {
            node.names.extend_from_slice(names);
            return end;
        }
        let node = Node { parent: end, children: 0, names: names.to_vec(), pins: 1, used: 0 };
        let edge = match self.free.pop() {
            Some(edge) => {
                self.nodes[edge as usize] = node;
                edge
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as Edge - 1
            }
        };
        self.first.insert(names[0], edge);
        if let Some(parent) = self.nodes.get_mut(end as usize) {
            parent.children += 1;
        }
        edge
    }

    /// The edge that ends after the first `blocks` of this one; cuts it where it is longer. The lower part keeps the number,
    /// since holders know it.
    fn upper(&mut self, edge: Edge, blocks: usize) -> Edge {
        let node = &mut self.nodes[edge as usize];
        if blocks == node.names.len() {
            return edge;
        }
        let lower = node.names.split_off(blocks);
        let head = std::mem::replace(&mut node.names, lower);
        let upper = Node { parent: node.parent, children: 1, names: head, pins: node.pins, used: node.used };
        let (first_upper, first_lower) = (upper.names[0], node.names[0]);
        let new = match self.free.pop() {
            Some(new) => {
                self.nodes[new as usize] = upper;
                new
            }
            None => {
                self.nodes.push(upper);
                self.nodes.len() as Edge - 1
            }
        };
        self.nodes[edge as usize].parent = new;
        self.first.insert(first_upper, new);
        self.first.insert(first_lower, edge);
        new
    }

    fn drop_edge(&mut self, edge: Edge) {
        let node = std::mem::take(&mut self.nodes[edge as usize]);
        self.first.remove(&node.names[0]);
        self.free.push(edge);
        if let Some(parent) = self.nodes.get_mut(node.parent as usize) {
            parent.children -= 1;
            if parent.children == 0 && parent.pins == 0 {
                self.leaves.insert((parent.used, node.parent));
            }
        }
    }

    /// Its own invariants.
    ///
    /// # Errors
    /// Says which one is broken.
    pub fn check(&self) -> Result<(), String> {
        let live = || self.nodes.iter().enumerate().filter(|(_, node)| !node.names.is_empty());
        let blocks: u64 = live().map(|(_, node)| node.names.len() as u64).sum();
        let pinned: u64 = live().filter(|(_, node)| node.pins > 0).map(|(_, node)| node.names.len() as u64).sum();
        if (blocks, pinned) != (self.blocks, self.pinned) {
            return Err(format!("{blocks} blocks, {pinned} held; counted {} and {}", self.blocks, self.pinned));
        }
        for (edge, node) in live() {
            let leaf = node.pins == 0 && node.children == 0;
            if leaf != self.leaves.contains(&(node.used, edge as Edge)) {
                return Err(format!("edge {edge} is a leaf: {leaf}, and is listed otherwise"));
            }
            if let Some(parent) = self.nodes.get(node.parent as usize)
                && (parent.pins < node.pins
                    || parent.children == 0
                    || (node.pins == 0 && parent.used < node.used && parent.pins == 0))
            {
                return Err(format!("edge {edge} is held or younger than what it hangs on"));
            }
        }
        Ok(())
    }
}

/// Equal leading names; chained, so equal at one depth means equal above.
fn common(edge: &[BlockName], chain: &[BlockName]) -> usize {
    let most = edge.len().min(chain.len());
    if most > 0 && edge[most - 1] == chain[most - 1] {
        return most;
    }
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = usize::midpoint(low, high);
        if edge[middle] == chain[middle] { low = middle + 1 } else { high = middle }
    }
    low
}
