//! A million random operations. In place of SHA-256 a cheap hash names the pages, or naming them would take all the time.

use super::super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

struct Holder {
    tokens: Vec<u32>,
    digests: Vec<Digest>,
    pages: Vec<u32>,
}

/// A pool and who holds what of it.
struct Life {
    manager: BlockManager,
    page_tokens: usize,
    held: Vec<Holder>,
    /// By page, kept up with every operation.
    holders: Vec<u32>,
    /// Evicted pages that were handed out for offloading.
    taken: u64,
}

impl Life {
    fn new(pages: usize, page_tokens: usize) -> Life {
        let mut manager = BlockManager::new(pages);
        manager.keep_evicted();
        Life { manager, page_tokens, held: Vec::new(), holders: vec![0; pages], taken: 0 }
    }

    /// Few distinct tokens, so that prefixes collide often.
    fn operate(&mut self, rng: &mut ChaCha8Rng) {
        match rng.random_range(0..4u32) {
            0 | 1 => {
                let length = rng.random_range(1..7 * self.page_tokens);
                let tokens: Vec<u32> = (0..length).map(|_| rng.random_range(0..2u32)).collect();
                let mut holder = Holder { tokens, digests: Vec::new(), pages: Vec::new() };
                self.name(&mut holder);
                holder.pages = self.manager.lookup(&holder.digests);
                self.manager.take(&holder.pages);
                self.count(&holder.pages, 1);
                self.grow(holder, 0);
            }
            2 if !self.held.is_empty() => {
                let mut holder = self.held.swap_remove(rng.random_range(0..self.held.len()));
                let committed = holder.digests.len();
                holder.tokens.push(rng.random_range(0..2u32));
                self.name(&mut holder);
                self.grow(holder, committed);
            }
            3 if rng.random_bool(0.5) => self.offload(),
            3 if rng.random_bool(0.1) => {
                let pages = rng.random_range(0..=self.manager.total() / 2);
                self.manager.press(pages);
                self.manager.press(0);
            }
            _ if !self.held.is_empty() => {
                let gone = self.held.swap_remove(rng.random_range(0..self.held.len()));
                self.let_go(&gone);
            }
            _ => {}
        }
    }

    /// What the engine does before it writes to a page. Nothing was committed to any since they were evicted, so each is there
    /// once.
    fn offload(&mut self) {
        let evicted = self.manager.take_evicted();
        self.taken += evicted.len() as u64;
        let pages: std::collections::HashSet<u32> = evicted.iter().map(|evicted| evicted.page).collect();
        assert_eq!(pages.len(), evicted.len(), "a page was evicted twice");
    }

    fn name(&self, holder: &mut Holder) {
        for page in holder.tokens.chunks_exact(self.page_tokens).skip(holder.digests.len()) {
            let mut hash =
                holder.digests.last().map_or(7, |digest| u64::from_le_bytes(digest[..8].try_into().unwrap()));
            for token in page {
                hash = (hash ^ u64::from(token + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&hash.to_le_bytes());
            holder.digests.push(digest);
        }
    }

    /// Allocates what its tokens need and commits what is full; without room for it the holder goes.
    fn grow(&mut self, mut holder: Holder, committed: usize) {
        while holder.pages.len() * self.page_tokens < holder.tokens.len() {
            let Some(page) = self.manager.allocate() else { return self.let_go(&holder) };
            self.count(&[page], 1);
            holder.pages.push(page);
        }
        // Committing is after computing, and that writes.
        self.offload();
        for index in committed..holder.digests.len() {
            let parent = index.checked_sub(1).map(|above| holder.pages[above]);
            let own = holder.pages[index];
            let page = self.manager.commit(own, holder.digests[index], parent, Label::default);
            self.count(&[own], -1);
            self.count(&[page], 1);
            holder.pages[index] = page;
        }
        self.held.push(holder);
    }

    fn let_go(&mut self, holder: &Holder) {
        self.count(&holder.pages, -1);
        self.manager.release(&holder.pages);
    }

    fn count(&mut self, pages: &[u32], by: i32) {
        for page in pages {
            let holders = &mut self.holders[*page as usize];
            *holders = holders.checked_add_signed(by).unwrap();
        }
    }
}

/// The whole structure is checked every so often; after every operation, that as many pages are held as somebody holds.
fn live(seed: u64, pages: usize, page_tokens: usize, steps: usize) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut life = Life::new(pages, page_tokens);
    for step in 0..steps {
        life.operate(&mut rng);
        let held = life.holders.iter().filter(|holders| **holders > 0).count();
        assert_eq!(life.manager.held(), held, "step {step} of seed {seed}");
        if step % 5_000 == 0 {
            life.manager.check(&life.holders).unwrap_or_else(|what| panic!("step {step} of seed {seed}: {what}"));
        }
    }
    for holder in std::mem::take(&mut life.held) {
        life.let_go(&holder);
    }
    let manager = &mut life.manager;
    manager.check(&vec![0; pages]).unwrap();
    assert_eq!(manager.available(), pages);
    let taken = life.taken + manager.take_evicted().len() as u64;
    assert_eq!(taken, manager.evicted_pages(), "every evicted page was handed out, once");
    manager.flush();
    manager.check(&vec![0; pages]).unwrap();
    assert_eq!((manager.free.len(), manager.idle.len(), manager.by_digest.len()), (pages, 0, 0));
    manager.evicted_pages()
}

#[test]
fn a_million_operations_return_to_the_start() {
    // From pools where everything collides to one where little is evicted; pages of one token to four.
    for (seed, pages, page_tokens, steps) in
        [(7, 40, 2, 400_000), (8, 9, 1, 200_000), (9, 300, 4, 200_000), (10, 120, 3, 200_000)]
    {
        assert!(live(seed, pages, page_tokens, steps) > 1_000);
    }
}
