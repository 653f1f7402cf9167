//! Who holds which prefix: a compressed radix tree over block hashes, for all holders at once.
//!
//! A router asks one thing: for this prompt's chain of block hashes, how many leading blocks does each instance have? The answer
//! must not cost more with a thousand instances than with one, nor with a long context than with a short one. So blocks that
//! are held together stand in one edge, with the set of those who hold all of it and a cut-off for each who holds only its
//! head; a match walks k edges (binary search inside an edge, since a chained hash that is equal at one depth implies equality
//! above) and intersects sets.
//!
//! Only contiguous prefixes count: a holder that lost a block in the middle matches up to there, whatever it still has
//! behind. What an event says and the tree cannot place (a parent that this holder does not have) is counted, never
//! guessed.
//!
//! Memory: 8 bytes per distinct block in its edge and 12 in the map (at 44 to 87 % load), about 120 per edge; a further holder of the
//! same edge costs 2 bytes, not 2 per block. Everything removed gives its memory back.

mod holders;
mod matched;

pub use holders::{Bits, Holder};
pub use matched::Matched;

use crate::fingerprint_map::FingerprintMap;
use holders::Holders;
use smallvec::SmallVec;

/// The index of one chain family: one model, one hash format, one block size.
#[derive(Clone, Debug, Default)]
pub struct PrefixIndex {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// From a block to its edge; where in it is found by looking, mostly at its end.
    edges: FingerprintMap,
    /// Blocks each holder has been told to hold and can be matched on or not, by holder.
    held: Vec<u64>,
}

const NONE: u32 = u32::MAX;

/// An edge: blocks in a row without a branch.
#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    children: u32,
    /// Never empty while the node lives.
    hashes: Vec<u64>,
    /// Hold all of it.
    full: Holders,
    /// Hold the first `n` blocks, `0 < n < hashes.len()`.
    partial: SmallVec<[(Holder, u32); 2]>,
}

/// What became of a stored run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Blocks that the holder has now and had not before.
    pub new: u64,
    /// Blocks that could not be placed: their parent is not this holder's, or their hash stands elsewhere.
    pub unplaced: u64,
}

impl PrefixIndex {
    /// Distinct blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.edges.len()
    }

    /// Blocks of one holder.
    #[must_use]
    pub fn held_by(&self, holder: Holder) -> u64 {
        self.held.get(usize::from(holder)).copied().unwrap_or(0)
    }

    /// Blocks of all holders, each counted for each.
    #[must_use]
    pub fn block_instances(&self) -> u64 {
        self.held.iter().sum()
    }

    /// Bytes of memory held, allocator's overhead left out.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inside: usize = self
            .nodes
            .iter()
            .map(|node| {
                let partial =
                    if node.partial.spilled() { node.partial.capacity() * size_of::<(Holder, u32)>() } else { 0 };
                node.hashes.capacity() * 8 + node.full.heap_bytes() + partial
            })
            .sum();
        inside
            + self.nodes.capacity() * size_of::<Node>()
            + self.free.capacity() * 4
            + self.edges.bytes()
            + self.held.capacity() * 8
    }

    /// About as much as [`PrefixIndex::bytes`], without looking at every edge: an edge's list is a third larger than what stands in it.
    #[must_use]
    pub fn about_bytes(&self) -> usize {
        self.blocks() * 8 * 4 / 3
            + self.nodes.capacity() * size_of::<Node>()
            + self.edges.bytes()
            + self.held.capacity() * 8
    }

    /// `holder` has `hashes` in a row, behind `parent` (at the root for `None`).
    pub fn store(&mut self, holder: Holder, parent: Option<u64>, hashes: &[u64]) -> Stored {
        let mut stored = Stored::default();
        let Some((mut node, mut at)) = self.behind(holder, parent) else {
            stored.unplaced = hashes.len() as u64;
            return stored;
        };
        let mut rest = hashes;
        while let Some(first) = rest.first() {
            let len = self.nodes.get(node as usize).map_or(0, |node| node.hashes.len());
            if at < len {
                // Along the edge, as far as it agrees.
                let common =
                    self.nodes[node as usize].hashes[at..].iter().zip(rest).take_while(|(a, b)| a == b).count();
                if common == 0 {
                    if self.edges.get(*first).is_some() {
                        break;
                    }
                    node = self.split(node, at);
                    continue;
                }
                stored.new += self.extend_holder(node, holder, at, at + common);
                rest = &rest[common..];
                at += common;
                continue;
            }
            match self.edges.get(*first) {
                Some(child) if self.begins(child, *first, node) => (node, at) = (child, 0),
                // The same hash in another place: a publisher that lies, or a collision.
                Some(_) => break,
                None => {
                    let fresh;
                    (node, fresh) = self.append(node, holder, rest);
                    stored.new += fresh as u64;
                    at = self.nodes[node as usize].hashes.len();
                    rest = &rest[fresh..];
                }
            }
        }
        stored.unplaced = rest.len() as u64;
        self.count(holder, stored.new as i64);
        stored
    }

    /// Where blocks behind `parent` begin: edge and offset. `None` when the holder does not have the parent.
    fn behind(&self, holder: Holder, parent: Option<u64>) -> Option<(u32, usize)> {
        let Some(parent) = parent else { return Some((NONE, 0)) };
        let id = self.edges.get(parent)?;
        let node = &self.nodes[id as usize];
        let cutoff = node.cutoff(holder);
        let offset = node.offset(parent, cutoff)?;
        (cutoff > offset).then_some((id, offset + 1))
    }

    /// Whether an edge begins with this block behind that edge.
    fn begins(&self, id: u32, first: u64, parent: u32) -> bool {
        let node = &self.nodes[id as usize];
        node.parent == parent && node.hashes.first() == Some(&first)
    }

    /// The holder has the blocks `from..to` of an edge whose first `from` it is known to have.
    fn extend_holder(&mut self, id: u32, holder: Holder, from: usize, to: usize) -> u64 {
        let node = &mut self.nodes[id as usize];
        let cutoff = node.cutoff(holder);
        if cutoff >= to || cutoff < from {
            return 0;
        }
        node.set_cutoff(holder, to);
        (to - cutoff) as u64
    }

    /// New blocks behind the end of an edge (of the root for [`NONE`]), up to the first that stands elsewhere. Returns the edge
    /// they stand in, and how many there are: at least one, if the caller has looked the first one up.
    fn append(&mut self, parent: u32, holder: Holder, hashes: &[u64]) -> (u32, usize) {
        // Grown in place where nobody else has all of it: a session is one edge, however many turns it has.
        let grows = self.nodes.get(parent as usize).is_some_and(|node| node.children == 0 && node.full.is_only(holder));
        let id = if grows { parent } else { self.take_free() };
        let fresh = hashes.iter().take_while(|hash| self.edges.insert_new(**hash, id)).count();
        let node = &mut self.nodes[id as usize];
        node.hashes.extend_from_slice(&hashes[..fresh]);
        if !grows {
            (node.parent, node.full) = (parent, Holders::one(holder));
            if parent != NONE {
                self.nodes[parent as usize].children += 1;
            }
        }
        (id, fresh)
    }

    fn take_free(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::empty());
            self.nodes.len() as u32 - 1
        })
    }

    /// Cuts an edge in two before `at` and returns the upper part. The lower part keeps the id where it has children, since they
    /// name it; else the upper part does, and only the blocks below the cut are written into the map again.
    fn split(&mut self, id: u32, at: usize) -> u32 {
        let node = &mut self.nodes[id as usize];
        let tail = node.hashes.split_off(at);
        let mut head = std::mem::replace(&mut node.hashes, tail);
        head.shrink_to_fit();
        let cut = at as u32;
        let mut upper =
            Node { parent: node.parent, children: 1, hashes: head, full: node.full.clone(), partial: SmallVec::new() };
        for (holder, cutoff) in std::mem::take(&mut node.partial) {
            if cutoff < cut {
                upper.partial.push((holder, cutoff));
            } else {
                upper.full.insert(holder);
                if cutoff > cut {
                    node.partial.push((holder, cutoff - cut));
                }
            }
        }
        let new = self.take_free();
        let lower = &mut self.nodes[id as usize];
        if lower.children > 0 {
            lower.parent = new;
            self.nodes[new as usize] = upper;
            self.write_edge(new);
            return new;
        }
        lower.parent = id;
        self.nodes[new as usize] = std::mem::replace(lower, upper);
        self.write_edge(new);
        id
    }

    /// Writes into the map that the blocks of an edge stand in it.
    fn write_edge(&mut self, id: u32) {
        for hash in &self.nodes[id as usize].hashes {
            self.edges.insert(*hash, id);
        }
    }

    /// `holder` is known to have this block.
    #[must_use]
    pub fn holds(&self, holder: Holder, hash: u64) -> bool {
        let Some(id) = self.edges.get(hash) else { return false };
        let node = &self.nodes[id as usize];
        let cutoff = node.cutoff(holder);
        node.offset(hash, cutoff).is_some_and(|offset| offset < cutoff)
    }

    /// `holder` has lost a block. False when it was not known to have it.
    pub fn remove(&mut self, holder: Holder, hash: u64) -> bool {
        let Some(id) = self.edges.get(hash) else { return false };
        let node = &self.nodes[id as usize];
        let cutoff = node.cutoff(holder);
        let Some(offset) = node.offset(hash, cutoff).filter(|offset| *offset < cutoff) else { return false };
        self.cut(holder, id, offset);
        true
    }

    /// Which of these blocks `holder` is known to have. One pass over every edge that they stand in, in whatever order they come.
    #[must_use]
    pub fn holds_each(&self, holder: Holder, hashes: &[u64]) -> Vec<bool> {
        let mut held = vec![false; hashes.len()];
        for (_, places) in self.by_edge(holder, hashes) {
            for (_, at) in places {
                held[at] = true;
            }
        }
        held
    }

    /// `holder` has lost these blocks. Returns which of them it was known to have before any of them went.
    pub fn remove_each(&mut self, holder: Holder, hashes: &[u64]) -> Vec<bool> {
        let mut held = vec![false; hashes.len()];
        for (id, places) in self.by_edge(holder, hashes) {
            let first = places.iter().map(|(offset, _)| *offset).min();
            for (_, at) in places {
                held[at] = true;
            }
            if let Some(first) = first {
                self.cut(holder, id, first);
            }
        }
        held
    }

    /// Blocks that a holder has, by edge: offset in it, and place in the list.
    fn by_edge(&self, holder: Holder, hashes: &[u64]) -> Vec<(u32, Vec<(usize, usize)>)> {
        let known = hashes.iter().enumerate().filter_map(|(at, hash)| Some((self.edges.get(*hash)?, *hash, at)));
        let mut known: Vec<(u32, u64, usize)> = known.collect();
        known.sort_unstable();
        let mut found = Vec::new();
        for group in known.chunk_by(|one, other| one.0 == other.0) {
            let id = group[0].0;
            let node = &self.nodes[id as usize];
            let cutoff = node.cutoff(holder);
            let mut places: Vec<(usize, usize)> = Vec::with_capacity(group.len());
            if let [(_, hash, at)] = group {
                places.extend(node.offset(*hash, cutoff).filter(|offset| *offset < cutoff).map(|offset| (offset, *at)));
            } else {
                for (offset, held) in node.hashes[..cutoff].iter().enumerate() {
                    let from = group.partition_point(|(_, hash, _)| hash < held);
                    let same = group[from..].iter().take_while(|(_, hash, _)| hash == held);
                    places.extend(same.map(|(.., at)| (offset, *at)));
                }
            }
            found.push((id, places));
        }
        found
    }

    /// `holder` has only the first `to` blocks of an edge.
    fn cut(&mut self, holder: Holder, id: u32, to: usize) {
        // What was cut before may have taken the last edge with it.
        let Some(node) = self.nodes.get_mut(id as usize) else { return };
        let cutoff = node.cutoff(holder);
        if to < cutoff {
            node.set_cutoff(holder, to);
            self.count(holder, -((cutoff - to) as i64));
            self.trim(id);
        }
    }

    /// `holder` has nothing any more.
    pub fn clear(&mut self, holder: Holder) {
        for id in 0..self.nodes.len() as u32 {
            // Once nothing is left there are no edges either.
            let Some(node) = self.nodes.get_mut(id as usize) else { break };
            if !node.hashes.is_empty() && node.cutoff(holder) > 0 {
                node.set_cutoff(holder, 0);
                self.trim(id);
            }
        }
        if let Some(held) = self.held.get_mut(usize::from(holder)) {
            *held = 0;
        }
    }

    /// Drops what nobody holds from the end of an edge without children, and of those above it that lose their last.
    fn trim(&mut self, mut id: u32) {
        loop {
            let node = &mut self.nodes[id as usize];
            if node.children > 0 || !node.full.is_empty() {
                return;
            }
            let longest = node.partial.iter().map(|(_, cutoff)| *cutoff as usize).max().unwrap_or(0);
            for hash in node.hashes.drain(longest..) {
                self.edges.remove(hash);
            }
            if longest > 0 {
                if node.hashes.capacity() > 2 * longest + 8 {
                    node.hashes.shrink_to_fit();
                }
                let (whole, part): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
                    std::mem::take(&mut node.partial).into_iter().partition(|(_, cutoff)| *cutoff as usize == longest);
                node.partial = part;
                for (holder, _) in whole {
                    node.full.insert(holder);
                }
                return;
            }
            let parent = node.parent;
            *node = Node::empty();
            self.free.push(id);
            if parent == NONE {
                if self.edges.is_empty() {
                    (self.nodes, self.free) = (Vec::new(), Vec::new());
                }
                return;
            }
            self.nodes[parent as usize].children -= 1;
            id = parent;
        }
    }

    fn count(&mut self, holder: Holder, change: i64) {
        let at = usize::from(holder);
        if self.held.len() <= at {
            self.held.resize(at + 1, 0);
        }
        self.held[at] = self.held[at].saturating_add_signed(change);
    }

    /// Its own invariants.
    ///
    /// # Errors
    /// Says which one is broken.
    pub fn check(&self) -> Result<(), String> {
        let mut children = vec![0u32; self.nodes.len()];
        let mut blocks = 0;
        let mut held = vec![0u64; self.held.len()];
        for (id, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.hashes.is_empty()) {
            blocks += node.hashes.len();
            if node.parent != NONE {
                children[node.parent as usize] += 1;
            }
            for (offset, hash) in node.hashes.iter().enumerate() {
                if self.edges.get(*hash) != Some(id as u32) {
                    return Err(format!("block {offset} of edge {id} is not where the map says"));
                }
            }
            for holder in node.full.bits().iter() {
                held[usize::from(holder)] += node.hashes.len() as u64;
            }
            for (holder, cutoff) in &node.partial {
                held[usize::from(*holder)] += u64::from(*cutoff);
                if *cutoff == 0 || *cutoff as usize >= node.hashes.len() || node.full.contains(*holder) {
                    return Err(format!("holder {holder} of edge {id} has a cut-off of {cutoff}"));
                }
            }
        }
        if blocks != self.edges.len() || held != self.held {
            return Err(format!(
                "{blocks} blocks in edges, {} in the map; {held:?} held, {:?} counted",
                self.edges.len(),
                self.held
            ));
        }
        for (id, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.hashes.is_empty()) {
            if node.children != children[id] {
                return Err(format!("edge {id} counts {} children, has {}", node.children, children[id]));
            }
            if node.children == 0 && node.full.is_empty() {
                return Err(format!("edge {id} ends in blocks that nobody holds"));
            }
        }
        Ok(())
    }
}

impl Node {
    fn empty() -> Self {
        Node { parent: NONE, children: 0, hashes: Vec::new(), full: Holders::default(), partial: SmallVec::new() }
    }

    /// Where a block stands. Engines add to and take from the end of what they have: looked at first.
    fn offset(&self, hash: u64, cutoff: usize) -> Option<usize> {
        let last = cutoff.checked_sub(1);
        last.filter(|at| self.hashes[*at] == hash).or_else(|| self.hashes.iter().position(|held| *held == hash))
    }

    /// Leading blocks that a holder has.
    fn cutoff(&self, holder: Holder) -> usize {
        if self.full.contains(holder) {
            return self.hashes.len();
        }
        self.partial.iter().find(|(held, _)| *held == holder).map_or(0, |(_, cutoff)| *cutoff as usize)
    }

    fn set_cutoff(&mut self, holder: Holder, cutoff: usize) {
        self.full.remove(holder);
        self.partial.retain(|(held, _)| *held != holder);
        if cutoff == self.hashes.len() {
            self.full.insert(holder);
        } else if cutoff > 0 {
            self.partial.push((holder, cutoff as u32));
        }
    }
}

#[cfg(test)]
mod tests;
