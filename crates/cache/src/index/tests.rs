use super::{Holder, PrefixIndex, Stored};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn chain(ids: &[u64]) -> Vec<u64> {
    let mut hash = 7;
    ids.iter()
        .map(|id| {
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&id.to_le_bytes(), hash);
            hash
        })
        .collect()
}

/// What every holder has, as sets: matches are found by looking at one block after the other.
#[derive(Default)]
struct Plain(BTreeMap<Holder, BTreeSet<u64>>);

impl Plain {
    fn depth(&self, holder: Holder, chain: &[u64]) -> u32 {
        let Some(held) = self.0.get(&holder) else { return 0 };
        chain.iter().take_while(|hash| held.contains(hash)).count() as u32
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Store a prompt's blocks from `from` on.
    Store {
        holder: Holder,
        prompt: Vec<u64>,
        from: usize,
    },
    /// The engine drops the last `blocks` of a prompt, leaf first.
    Evict {
        holder: Holder,
        prompt: Vec<u64>,
        blocks: usize,
    },
    Clear {
        holder: Holder,
    },
}

fn prompt() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(0u64..3, 1..10)
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0u16..12, prompt(), 0usize..4).prop_map(|(holder, prompt, from)| Op::Store { holder, prompt, from }),
        4 => (0u16..12, prompt(), 1usize..10).prop_map(|(holder, prompt, blocks)| Op::Evict { holder, prompt, blocks }),
        1 => (0u16..12).prop_map(|holder| Op::Clear { holder }),
    ];
    proptest::collection::vec(op, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Engines that evict leaves first, as SGLang and vLLM do: the index says exactly what each has.
    #[test]
    fn it_says_what_every_engine_has(ops in ops(), asked in proptest::collection::vec(prompt(), 1..6)) {
        let (mut index, mut plain) = (PrefixIndex::default(), Plain::default());
        for op in ops {
            match op {
                Op::Store { holder, prompt, from } => {
                    let path = chain(&prompt);
                    let held = plain.0.entry(holder).or_default();
                    let from = from.min(path.len() - 1).min(path.iter().take_while(|hash| held.contains(hash)).count());
                    let new = path[from..].iter().filter(|hash| held.insert(**hash)).count() as u64;
                    let parent = from.checked_sub(1).map(|at| path[at]);
                    prop_assert_eq!(index.store(holder, parent, &path[from..]), Stored { new, unplaced: 0 });
                }
                Op::Evict { holder, prompt, blocks } => {
                    let path = chain(&prompt);
                    let held = plain.0.entry(holder).or_default();
                    // A real engine evicts a block only when nothing it holds lies behind it.
                    for at in (path.len().saturating_sub(blocks)..path.len()).rev() {
                        let behind = (0..3u64).any(|id| {
                            let mut longer = prompt[..=at].to_vec();
                            longer.push(id);
                            held.contains(chain(&longer).last().unwrap())
                        });
                        if !behind {
                            prop_assert_eq!(index.remove(holder, path[at]), held.remove(&path[at]));
                        }
                    }
                }
                Op::Clear { holder } => {
                    index.clear(holder);
                    plain.0.remove(&holder);
                }
            }
            prop_assert_eq!(index.check(), Ok(()));
        }
        for prompt in asked {
            let path = chain(&prompt);
            let matched = index.matched(&path);
            for holder in 0..12 {
                prop_assert_eq!(matched.depth(holder), plain.depth(holder, &path), "holder {}", holder);
            }
            let listed: Vec<(Holder, u32)> = matched.iter().collect();
            prop_assert!(listed.windows(2).all(|pair| pair[0].1 <= pair[1].1));
            prop_assert!(listed.iter().all(|(holder, depth)| matched.depth(*holder) == *depth && *depth > 0));
        }
        for (holder, held) in &plain.0 {
            prop_assert_eq!(index.held_by(*holder), held.len() as u64);
        }
        for holder in 0..12 {
            index.clear(holder);
        }
        prop_assert_eq!((index.blocks(), index.block_instances(), index.check()), (0, 0, Ok(())));
    }

    /// Whatever is removed in whatever order, a match is never longer than what is contiguously there.
    #[test]
    fn only_contiguous_prefixes_count(
        prompts in proptest::collection::vec(prompt(), 1..8),
        removed in proptest::collection::vec((0usize..8, 0usize..10), 0..20),
    ) {
        let (mut index, mut plain) = (PrefixIndex::default(), Plain::default());
        for prompt in &prompts {
            let path = chain(prompt);
            index.store(0, None, &path);
            plain.0.entry(0).or_default().extend(&path);
        }
        for (prompt, at) in removed {
            let path = chain(&prompts[prompt % prompts.len()]);
            let hash = path[at % path.len()];
            index.remove(0, hash);
            plain.0.entry(0).or_default().remove(&hash);
            prop_assert_eq!(index.check(), Ok(()));
        }
        for prompt in &prompts {
            let path = chain(prompt);
            prop_assert_eq!(index.matched(&path).depth(0), plain.depth(0, &path));
        }
    }
}

#[test]
fn a_hole_ends_the_match_and_a_refill_mends_it() {
    let path = chain(&[1, 2, 3, 4, 5, 6]);
    let mut index = PrefixIndex::default();
    index.store(3, None, &path);
    assert!(index.remove(3, path[2]));
    assert_eq!(index.matched(&path).depth(3), 2);
    assert_eq!(index.store(3, Some(path[1]), &path[2..]), Stored { new: 4, unplaced: 0 });
    assert_eq!(index.matched(&path).depth(3), 6);
}

#[test]
fn blocks_without_their_parent_are_counted_and_not_believed() {
    let path = chain(&[1, 2, 3, 4]);
    let mut index = PrefixIndex::default();
    assert_eq!(index.store(0, Some(path[1]), &path[2..]), Stored { new: 0, unplaced: 2 });
    index.store(1, None, &path);
    assert_eq!(index.store(0, Some(path[1]), &path[2..]), Stored { new: 0, unplaced: 2 }, "the parent is another's");
    assert_eq!(index.matched(&path).depth(0), 0);
    assert_eq!((index.blocks(), index.check()), (4, Ok(())));
}

#[test]
fn memory_is_bounded_per_block_and_comes_back() {
    let mut index = PrefixIndex::default();
    let empty = index.bytes();
    for session in 0..2_000u64 {
        let ids: Vec<u64> = (0..200).map(|block| if block < 20 { block } else { session * 1_000 + block }).collect();
        for holder in 0..=(session % 2) as Holder {
            index.store(holder, None, &chain(&ids));
        }
    }
    let per_block = index.bytes() as f64 / index.block_instances() as f64;
    assert!(per_block <= 40.0, "{per_block} bytes per block and holder");
    index.clear(0);
    index.clear(1);
    assert_eq!(index.blocks(), 0);
    // What is left is the table of edges, to be used again.
    assert!(index.bytes() < empty + 4_096 * 200, "{} bytes when empty", index.bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Taking many at once is taking one after the other, but for who was there before any of them went.
    #[test]
    fn removing_many_is_removing_each(
        prompts in proptest::collection::vec((0u16..3, prompt()), 1..8),
        removed in proptest::collection::vec((0usize..8, 0usize..10), 0..20),
    ) {
        let (mut at_once, mut one_by_one) = (PrefixIndex::default(), PrefixIndex::default());
        for (holder, prompt) in &prompts {
            for index in [&mut at_once, &mut one_by_one] {
                index.store(*holder, None, &chain(prompt));
            }
        }
        let mut names: Vec<u64> = removed.iter().map(|(of, at)| {
            let path = chain(&prompts[of % prompts.len()].1);
            path[at % path.len()]
        }).collect();
        names.push(1);
        let before: Vec<bool> = names.iter().map(|name| one_by_one.holds(0, *name)).collect();
        prop_assert_eq!(&at_once.holds_each(0, &names), &before);
        for name in &names {
            one_by_one.remove(0, *name);
        }
        prop_assert_eq!(at_once.remove_each(0, &names), before);
        prop_assert_eq!(at_once.check(), Ok(()));
        for (_, prompt) in &prompts {
            let path = chain(prompt);
            for holder in 0..3 {
                prop_assert_eq!(at_once.matched(&path).depth(holder), one_by_one.matched(&path).depth(holder));
            }
        }
        prop_assert_eq!(at_once.blocks(), one_by_one.blocks());
    }
}
