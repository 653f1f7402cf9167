//! Random life of many sequences over a small pool returns to the start.

use super::*;
use crate::kv_events::names::{Names, Scheme};
use crate::kv_events::tests::Mirror;
use crate::kv_events::{KvEvent, Owner};
use crate::namespace::Namespace;
use plimsoll_cache::Chain;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

mod million;

/// A sequence as the scheduler would keep it: pages, and how many of them are committed.
struct Holder {
    tokens: Vec<u32>,
    chain: Chain,
    names: Names,
    pages: Vec<u32>,
}

const PAGE: usize = 2;

fn holders_of(manager: &BlockManager, held: &[Holder]) -> Vec<u32> {
    let mut counts = vec![0; manager.total()];
    for page in held.iter().flat_map(|holder| &holder.pages) {
        counts[*page as usize] += 1;
    }
    counts
}

/// One random operation. Few distinct tokens, so that prefixes collide often.
fn operate(rng: &mut ChaCha8Rng, manager: &mut BlockManager, held: &mut Vec<Holder>) {
    match rng.random_range(0..4u32) {
        // A new prompt: take the cached start, allocate the rest, commit all.
        0 | 1 => {
            let tokens: Vec<u32> = (0..rng.random_range(1..14)).map(|_| rng.random_range(0..2u32)).collect();
            // In SGLang's default format these two publish the same names for different pages.
            let extra_key = rng.random_bool(0.3).then(|| Arc::from("b"));
            let owner = Owner { namespace: Namespace { extra_key, ..Namespace::default() }, session_id: None };
            let mut chain = Chain::new(PAGE, owner.namespace.seed());
            chain.extend(&tokens);
            let pages = manager.lookup(chain.digests());
            manager.take(&pages);
            let names = Names::new(Scheme::Sglang, Arc::new(owner), PAGE);
            let mut holder = Holder { tokens, chain, names, pages };
            if grow(manager, &mut holder, 0) {
                held.push(holder);
            } else {
                manager.release(&holder.pages);
            }
        }
        2 if !held.is_empty() => {
            let at = rng.random_range(0..held.len());
            let token = rng.random_range(0..2u32);
            let holder = &mut held[at];
            let committed = holder.chain.digests().len();
            holder.tokens.push(token);
            holder.chain.extend(&holder.tokens);
            if !grow(manager, holder, committed) {
                let gone = held.swap_remove(at);
                manager.release(&gone.pages);
            }
        }
        _ if !held.is_empty() => {
            let gone = held.swap_remove(rng.random_range(0..held.len()));
            manager.release(&gone.pages);
        }
        _ => {}
    }
}

fn grow(manager: &mut BlockManager, holder: &mut Holder, committed: usize) -> bool {
    while holder.pages.len() * PAGE < holder.tokens.len() {
        let Some(page) = manager.allocate() else { return false };
        holder.pages.push(page);
    }
    holder.names.extend(&holder.chain, &holder.tokens);
    for (index, digest) in holder.chain.digests().iter().enumerate().skip(committed) {
        let parent = index.checked_sub(1).map(|above| holder.pages[above]);
        let label = || holder.names.label(index, &holder.tokens);
        holder.pages[index] = manager.commit(holder.pages[index], *digest, parent, label);
    }
    true
}

fn ends_empty(manager: &mut BlockManager, held: Vec<Holder>) {
    for holder in held {
        manager.release(&holder.pages);
    }
    manager.check(&vec![0; manager.total()]).unwrap();
    assert_eq!(manager.available(), manager.total());
    manager.flush();
    manager.check(&vec![0; manager.total()]).unwrap();
    assert_eq!((manager.free.len(), manager.idle.len(), manager.by_digest.len()), (manager.total(), 0, 0));
}

#[test]
fn leaves_go_first_and_the_oldest_of_them() {
    let mut manager = BlockManager::new(4);
    let mut chain = Chain::new(PAGE, None);
    chain.extend(&[1, 1, 2, 2, 3, 3]);
    let digests = chain.digests().to_vec();
    let mut pages = Vec::new();
    for digest in &digests {
        let page = manager.allocate().unwrap();
        pages.push(manager.commit(page, *digest, pages.last().copied(), Label::default));
    }
    manager.release(&pages);
    let mut other = Chain::new(PAGE, None);
    other.extend(&[9, 9]);
    let page = manager.allocate().unwrap();
    let page = manager.commit(page, other.digests()[0], None, Label::default);
    manager.release(&[page]);
    // Two leaves: the end of the first chain is older than the other chain.
    assert_eq!(manager.lookup(&digests).len(), 3);
    let taken = manager.allocate().unwrap();
    assert_eq!(taken, pages[2]);
    assert_eq!(manager.lookup(&digests), pages[..2]);
    assert_eq!(manager.lookup(other.digests()).len(), 1);
    manager.release(&[taken]);
}

#[test]
fn use_makes_a_page_new_again() {
    let mut manager = BlockManager::new(3);
    let digests: Vec<Digest> = (0..3u8).map(|name| [name; 32]).collect();
    for digest in &digests {
        let page = manager.allocate().unwrap();
        let page = manager.commit(page, *digest, None, Label::default);
        manager.release(&[page]);
    }
    let again = manager.lookup(&digests[..1]);
    manager.take(&again);
    manager.release(&again);
    let cached = |manager: &BlockManager| digests.iter().map(|digest| manager.is_cached(digest)).collect::<Vec<_>>();
    let _ = manager.allocate().unwrap();
    assert_eq!(cached(&manager), [true, false, true]);
    let _ = manager.allocate().unwrap();
    assert_eq!(cached(&manager), [true, false, false]);
}

#[test]
fn twins_end_up_sharing_one_page() {
    let mut manager = BlockManager::new(4);
    let mut chain = Chain::new(PAGE, None);
    chain.extend(&[1, 1]);
    let (a, b) = (manager.allocate().unwrap(), manager.allocate().unwrap());
    assert_eq!(manager.commit(a, chain.digests()[0], None, Label::default), a);
    assert_eq!(manager.commit(b, chain.digests()[0], None, Label::default), a);
    assert_eq!((manager.held(), manager.available()), (1, 3));
    manager.release(&[a]);
    manager.release(&[a]);
    assert_eq!(manager.available(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn invariants_hold_after_every_operation(seed in any::<u64>(), pages in 1usize..24, steps in 1usize..300) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut manager = BlockManager::new(pages);
        let mut held = Vec::new();
        for _ in 0..steps {
            operate(&mut rng, &mut manager, &mut held);
            prop_assert_eq!(manager.check(&holders_of(&manager, &held)), Ok(()));
        }
        ends_empty(&mut manager, held);
    }

    /// Under pressure pages are only kept away, never lost, and sequences keep theirs.
    #[test]
    fn pressure_takes_no_page_from_a_sequence(seed in any::<u64>(), pages in 1usize..24, shares in prop::collection::vec(0usize..30, 1..40)) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut manager = BlockManager::new(pages);
        let mut held = Vec::new();
        for share in shares {
            operate(&mut rng, &mut manager, &mut held);
            let before = holders_of(&manager, &held);
            manager.press(share);
            prop_assert_eq!(manager.check(&before), Ok(()));
            prop_assert!(manager.away.len() == share || manager.available() == 0);
        }
        manager.press(0);
        ends_empty(&mut manager, held);
    }

    /// A subscriber who applies every event holds exactly the names that are cached, after every single operation.
    #[test]
    fn events_mirror_the_cache(seed in any::<u64>(), pages in 1usize..24, steps in 1usize..300) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut manager = BlockManager::new(pages);
        manager.keep_log();
        let (mut held, mut mirror) = (Vec::new(), Mirror::default());
        for _ in 0..steps {
            operate(&mut rng, &mut manager, &mut held);
            mirror.apply(&manager.log().unwrap().take());
            prop_assert_eq!(mirror.on(Medium::Gpu), cached_names(&manager));
        }
        for holder in held {
            manager.release(&holder.pages);
        }
        manager.flush();
        let last = manager.log().unwrap().take();
        prop_assert_eq!(last.last(), Some(&KvEvent::Cleared));
        mirror.apply(&last);
        prop_assert_eq!(mirror.on(Medium::Gpu), Vec::<i64>::new());
    }
}

fn cached_names(manager: &BlockManager) -> Vec<i64> {
    let labels = manager.pages.iter().filter_map(|page| page.cached.as_ref()?.label.as_deref());
    let names: std::collections::BTreeSet<i64> = labels.map(|label| label.name).collect();
    names.into_iter().collect()
}
