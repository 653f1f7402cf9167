//! The LRU stack of prefix caching, exact, at a cost that does not grow with the context.
//!
//! Two facts (`docs/operating/cache.md` has the argument in short):
//! - *closure*: where a request looks up its whole path first and then touches it from the leaf to the root, a block is
//!   never older than its descendants. What plain LRU keeps is closed upwards, so prefix caching *is* plain LRU, and a path's
//!   hits at capacity C are its leading blocks at stack distance at most C (Mattson et al. 1970).
//! - *runs*: the blocks last touched by one request are a contiguous piece at the end of that request's path. So the stack is a list
//!   of runs, one per request: a new request takes the heads off k older runs (k = branch points, rarely above 6) and
//!   pushes one of its own.
//!
//! A Fenwick tree over runs in order of time holds how many blocks each has left; a compressed radix tree over block
//! fingerprints finds the k runs, by binary search inside an edge, since a chained fingerprint that is equal at one depth
//! implies equality above. O(k log n) per request.
//!
//! Memory: 8 bytes per distinct block, about 100 per node (1 to 2 nodes per request that brings something new). Bounded: the
//! oldest blocks leave first, which is exactly what an LRU cache of that size would do; so the same structure with a
//! bound *is* the cache of one instance. A second bound, on nodes, is for streams that branch at every block.

use super::fenwick::Fenwick;
use crate::fingerprint_map::FingerprintMap;
use plimsoll_core::Nanos;
use smallvec::SmallVec;

/// Consecutive blocks of a path that one earlier request touched last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Distinct blocks used more recently than the first of these; the stack distances are `above + 1 ..= above + blocks`.
    pub above: u64,
    pub blocks: u64,
    /// When they were touched last.
    pub touched: Nanos,
}

/// What a path met.
pub type Pieces = SmallVec<[Piece; 8]>;

/// The stack.
#[derive(Clone, Debug)]
pub struct RunStack {
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    /// From the first fingerprint of an edge to its node.
    by_first: FingerprintMap,
    runs: Vec<Run>,
    free_runs: Vec<u32>,
    /// Runs in order of time; [`NONE`] where one has ended.
    order: Vec<u32>,
    left: Fenwick,
    /// No run lives before this place in `order`.
    oldest: usize,
    max_blocks: u64,
    max_nodes: usize,
    dropped_blocks: u64,
    /// Names of what has left, where somebody wants to know.
    dropped: Option<Vec<u64>>,
}

#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    children: u32,
    run: u32,
    /// Never empty while the node lives.
    fingerprints: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// Its place in `order`.
    place: u32,
    left: u64,
    /// Its deepest node.
    bottom: u32,
    touched: Nanos,
}

const NONE: u32 = u32::MAX;

/// Where a path leaves the tree.
struct Walk {
    /// Nodes that lie on the path with all of their edge.
    whole: SmallVec<[u32; 16]>,
    /// The node the path leaves in the middle, and how much of it is shared.
    part: Option<(u32, usize)>,
    depth: usize,
}

impl RunStack {
    /// Holds at most `max_blocks` distinct blocks; beyond, the least recently used leave, leaves first.
    #[must_use]
    pub fn new(max_blocks: u64) -> Self {
        RunStack {
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            by_first: FingerprintMap::default(),
            runs: Vec::new(),
            free_runs: Vec::new(),
            order: Vec::new(),
            left: Fenwick::default(),
            oldest: 0,
            max_blocks,
            max_nodes: usize::MAX,
            dropped_blocks: 0,
            dropped: None,
        }
    }

    /// From here on the names of blocks that leave are kept until [`RunStack::take_dropped`].
    #[must_use]
    pub fn telling(mut self) -> Self {
        self.dropped = Some(Vec::new());
        self
    }

    /// Blocks that have left since the last call, each behind what stood on it.
    pub fn take_dropped(&mut self) -> Vec<u64> {
        self.dropped.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Changes the bounds; what does not fit any more leaves. The nodes' bound makes memory certain, where a stream branches at every
    /// block; when it bites, less is held than an LRU cache of `max_blocks` would.
    pub fn limit(&mut self, max_blocks: u64, max_nodes: usize) {
        (self.max_blocks, self.max_nodes) = (max_blocks, max_nodes.max(1));
        self.shrink();
    }

    /// The most distinct blocks it holds.
    #[must_use]
    pub fn max_blocks(&self) -> u64 {
        self.max_blocks
    }

    /// Pieces of the tree.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.by_first.len()
    }

    /// The bound on nodes is reached.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.nodes() >= self.max_nodes
    }

    fn shrink(&mut self) {
        while self.blocks() > self.max_blocks {
            self.drop_oldest(self.blocks() - self.max_blocks);
        }
        while self.nodes() > self.max_nodes {
            self.drop_oldest(u64::MAX);
        }
    }

    /// Distinct blocks held.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.left.total()
    }

    /// Blocks that have left for want of room, or of age.
    #[must_use]
    pub fn dropped_blocks(&self) -> u64 {
        self.dropped_blocks
    }

    /// When the block that would leave next was touched last.
    #[must_use]
    pub fn oldest_touch(&self) -> Option<Nanos> {
        let run = self.order[self.oldest.min(self.order.len())..].iter().find(|run| **run != NONE)?;
        Some(self.runs[*run as usize].touched)
    }

    /// Bytes of memory held, allocator's overhead left out.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let edges: usize = self.nodes.iter().map(|node| node.fingerprints.capacity() * 8).sum();
        edges
            + self.nodes.capacity() * size_of::<Node>()
            + self.runs.capacity() * size_of::<Run>()
            + (self.order.capacity() + self.free_nodes.capacity() + self.free_runs.capacity()) * 4
            + self.by_first.bytes()
            + self.left.bytes()
    }

    /// Leading blocks of a path that are held. Touches nothing.
    #[must_use]
    pub fn matched(&self, path: &[u64]) -> u64 {
        self.walk(path).depth as u64
    }

    /// Looks a path of chained block fingerprints up, then touches all of it. Returns what was held, root first; the sum of
    /// its blocks is the matched depth.
    pub fn touch(&mut self, path: &[u64], now: Nanos) -> Pieces {
        if path.is_empty() {
            return Pieces::new();
        }
        let walk = self.walk(path);
        let pieces = self.take(&walk);
        if self.order.len() == self.left.len() {
            self.renumber();
        }
        let place = self.order.len() as u32;
        let run = Run { place, left: path.len() as u64, bottom: NONE, touched: now };
        let id = self.free_runs.pop().unwrap_or(self.runs.len() as u32);
        match self.runs.get_mut(id as usize) {
            Some(free) => *free = run,
            None => self.runs.push(run),
        }
        self.order.push(id);
        self.left.add(place as usize, path.len() as u64);
        let bottom = self.grow(&walk, path, id);
        self.runs[id as usize].bottom = bottom;
        self.shrink();
        pieces
    }

    /// The request that touched `path[..from]` last has since made `path[from..]`: its answer. They lie below its prompt, as
    /// old as that. Only where the prompt is held whole and nothing stands on it yet; else nothing happens, and false is returned.
    pub fn extend(&mut self, path: &[u64], from: usize) -> bool {
        let Some(more) = path.get(from..).filter(|more| !more.is_empty() && from > 0) else { return false };
        let walk = self.walk(&path[..from]);
        let Some(&leaf) = walk.whole.last().filter(|_| walk.part.is_none() && walk.depth == from) else { return false };
        let node = &mut self.nodes[leaf as usize];
        if node.children > 0 {
            return false;
        }
        node.fingerprints.extend_from_slice(more);
        let run = &mut self.runs[node.run as usize];
        run.left += more.len() as u64;
        self.left.add(run.place as usize, more.len() as u64);
        self.shrink();
        true
    }

    /// Forgets what was touched last before `horizon`.
    pub fn expire(&mut self, horizon: Nanos) {
        self.pass_ended();
        while self.oldest_touch().is_some_and(|touched| touched < horizon) {
            self.drop_oldest(u64::MAX);
        }
    }

    /// Runs that have ended are never looked at again.
    fn pass_ended(&mut self) {
        while self.order.get(self.oldest).is_some_and(|run| *run == NONE) {
            self.oldest += 1;
        }
    }

    fn walk(&self, path: &[u64]) -> Walk {
        let mut walk = Walk { whole: SmallVec::new(), part: None, depth: 0 };
        let mut above = NONE;
        while let Some(first) = path.get(walk.depth) {
            let Some(id) = self.by_first.get(*first) else { break };
            let node = &self.nodes[id as usize];
            if node.parent != above {
                // Equal fingerprints under different parents: a collision, or a caller that does not chain.
                break;
            }
            let rest = &path[walk.depth..];
            let common = common(&node.fingerprints, rest);
            walk.depth += common;
            if common < node.fingerprints.len() {
                walk.part = Some((id, common));
                break;
            }
            walk.whole.push(id);
            above = id;
        }
        walk
    }

    /// Takes the shared blocks from the runs that had them.
    fn take(&mut self, walk: &Walk) -> Pieces {
        let mut shared: SmallVec<[(u32, u64); 8]> = SmallVec::new();
        let whole = walk.whole.iter().map(|id| (*id, self.nodes[*id as usize].fingerprints.len()));
        for (id, blocks) in whole.chain(walk.part) {
            let run = self.nodes[id as usize].run;
            match shared.last_mut() {
                Some((last, sum)) if *last == run => *sum += blocks as u64,
                _ => shared.push((run, blocks as u64)),
            }
        }
        // All distances are those before the request: first read, then take.
        let pieces = shared.iter().map(|(run, blocks)| {
            let run = self.runs[*run as usize];
            Piece { above: self.left.after(run.place as usize), blocks: *blocks, touched: run.touched }
        });
        let pieces = pieces.collect();
        for (id, blocks) in shared {
            self.shorten(id, blocks);
        }
        pieces
    }

    /// A run loses blocks; one without any ends.
    fn shorten(&mut self, id: u32, blocks: u64) {
        let run = &mut self.runs[id as usize];
        run.left -= blocks;
        self.left.subtract(run.place as usize, blocks);
        if run.left == 0 {
            self.order[run.place as usize] = NONE;
            self.free_runs.push(id);
        }
    }

    /// Makes the path a path of the tree, all of it in `run`. Returns its deepest node.
    fn grow(&mut self, walk: &Walk, path: &[u64], run: u32) -> u32 {
        for id in &walk.whole {
            self.nodes[*id as usize].run = run;
        }
        let mut last = walk.whole.last().copied().unwrap_or(NONE);
        if let Some((lower, common)) = walk.part
            && common > 0
        {
            last = self.split(lower, common, run);
        }
        let rest = &path[walk.depth..];
        if rest.is_empty() {
            return last;
        }
        // A leaf that the path goes on from just gets longer: a session is one node, however many turns it has.
        if last != NONE && self.nodes[last as usize].children == 0 {
            self.nodes[last as usize].fingerprints.extend_from_slice(rest);
            return last;
        }
        self.add_node(Node { parent: last, children: 0, run, fingerprints: rest.to_vec() })
    }

    /// Cuts the first `common` blocks of an edge off into a node above it.
    fn split(&mut self, lower: u32, common: usize, run: u32) -> u32 {
        let node = &mut self.nodes[lower as usize];
        let parent = node.parent;
        let tail = node.fingerprints.split_off(common);
        let mut head = std::mem::replace(&mut node.fingerprints, tail);
        head.shrink_to_fit();
        let first_of_tail = node.fingerprints[0];
        // It replaces `lower` below its parent: no child more, no child less.
        if parent != NONE {
            self.nodes[parent as usize].children -= 1;
        }
        let upper = self.add_node(Node { parent, children: 1, run, fingerprints: head });
        self.nodes[lower as usize].parent = upper;
        self.by_first.insert(first_of_tail, lower);
        upper
    }

    fn add_node(&mut self, node: Node) -> u32 {
        let (first, parent) = (node.fingerprints[0], node.parent);
        let id = self.free_nodes.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(id as usize) {
            Some(free) => *free = node,
            None => self.nodes.push(node),
        }
        if parent != NONE {
            self.nodes[parent as usize].children += 1;
        }
        self.by_first.insert(first, id);
        id
    }

    /// Takes blocks off the oldest run's leaf, at most one node's worth.
    fn drop_oldest(&mut self, at_most: u64) {
        self.pass_ended();
        let Some(id) = self.order.get(self.oldest).copied() else { return };
        let bottom = self.runs[id as usize].bottom;
        let node = &mut self.nodes[bottom as usize];
        debug_assert!(node.children == 0 && node.run == id, "the oldest run ends in a leaf");
        let blocks = at_most.min(node.fingerprints.len() as u64);
        let keep = node.fingerprints.len() - blocks as usize;
        if let Some(dropped) = &mut self.dropped {
            dropped.extend(node.fingerprints[keep..].iter().rev());
        }
        if keep > 0 {
            node.fingerprints.truncate(keep);
            if node.fingerprints.capacity() > 4 * keep {
                node.fingerprints.shrink_to_fit();
            }
        } else {
            let (first, parent) = (node.fingerprints[0], node.parent);
            node.fingerprints = Vec::new();
            self.by_first.remove(first);
            if parent != NONE {
                self.nodes[parent as usize].children -= 1;
            }
            self.free_nodes.push(bottom);
            self.runs[id as usize].bottom = parent;
        }
        self.dropped_blocks += blocks;
        self.shorten(id, blocks);
    }

    /// Gives the living runs new places, and the tree room for as many again.
    fn renumber(&mut self) {
        self.order.retain(|run| *run != NONE);
        self.oldest = 0;
        let mut values: Vec<u64> = Vec::with_capacity((2 * self.order.len()).max(64));
        for (place, run) in self.order.iter().enumerate() {
            let run = &mut self.runs[*run as usize];
            run.place = place as u32;
            values.push(run.left);
        }
        values.resize(values.capacity(), 0);
        self.left = Fenwick::from_values(values);
        self.order.reserve_exact(self.left.len() - self.order.len());
    }

    /// Its own invariants.
    ///
    /// # Errors
    /// Says which one is broken.
    pub fn check(&self) -> Result<(), String> {
        let mut left = vec![0u64; self.runs.len()];
        let mut children = vec![0u32; self.nodes.len()];
        let living = |node: &&Node| !node.fingerprints.is_empty();
        for node in self.nodes.iter().filter(living) {
            left[node.run as usize] += node.fingerprints.len() as u64;
            if node.parent != NONE {
                children[node.parent as usize] += 1;
                let above = &self.nodes[node.parent as usize];
                if self.runs[above.run as usize].place < self.runs[node.run as usize].place {
                    return Err("a block is younger than its parent".to_owned());
                }
            }
            if self.by_first.get(node.fingerprints[0]).is_none() {
                return Err("a node cannot be found".to_owned());
            }
        }
        if self.nodes.iter().filter(living).count() != self.by_first.len() {
            return Err("the map names nodes that are gone".to_owned());
        }
        for (id, node) in self.nodes.iter().enumerate().filter(|(_, node)| living(node)) {
            if node.children != children[id] {
                return Err(format!("node {id} counts {} children, has {}", node.children, children[id]));
            }
        }
        for (place, id) in self.order.iter().enumerate().filter(|(_, id)| **id != NONE) {
            let run = self.runs[*id as usize];
            if run.place as usize != place || run.left != left[*id as usize] || run.left == 0 {
                return Err(format!("run {id} says {} blocks, its nodes {}", run.left, left[*id as usize]));
            }
            if self.nodes[run.bottom as usize].run != *id {
                return Err(format!("run {id} ends in a node of another"));
            }
        }
        Ok(())
    }
}

/// Equal leading fingerprints of an edge and a path. Chained: equal at one depth means equal above.
fn common(edge: &[u64], path: &[u64]) -> usize {
    let (mut low, mut high) = (0, edge.len().min(path.len()));
    if high > 0 && edge[high - 1] == path[high - 1] {
        return high;
    }
    while low < high {
        let middle = usize::midpoint(low, high);
        if edge[middle] == path[middle] { low = middle + 1 } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests;
