use super::{Pieces, RunStack};
use plimsoll_core::Nanos;
use proptest::prelude::*;

/// LRU over blocks, as slow and obvious as can be: youngest first.
#[derive(Default)]
struct Plain {
    stack: Vec<u64>,
}

impl Plain {
    /// Stack distances of the leading blocks that are held; then touches the path from leaf to root.
    fn touch(&mut self, path: &[u64], capacity: usize) -> Vec<u64> {
        let distances = path
            .iter()
            .map_while(|block| self.stack.iter().position(|held| held == block))
            .map(|at| at as u64 + 1)
            .collect();
        for block in path.iter().rev() {
            self.stack.retain(|held| held != block);
            self.stack.insert(0, *block);
        }
        self.stack.truncate(capacity);
        distances
    }
}

fn distances(pieces: &Pieces) -> Vec<u64> {
    pieces.iter().flat_map(|piece| piece.above + 1..=piece.above + piece.blocks).collect()
}

fn chained(ids: &[u64]) -> Vec<u64> {
    let mut hash = 7;
    ids.iter()
        .map(|id| {
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&id.to_le_bytes(), hash);
            hash
        })
        .collect()
}

/// Prompts over a tiny alphabet: they branch everywhere.
fn prompts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    proptest::collection::vec(proptest::collection::vec(0u64..3, 0..9), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn distances_are_those_of_a_plain_stack(prompts in prompts()) {
        let (mut runs, mut plain) = (RunStack::new(u64::MAX), Plain::default());
        for (at, prompt) in prompts.iter().enumerate() {
            let path = chained(prompt);
            prop_assert_eq!(distances(&runs.touch(&path, Nanos(at as u64))), plain.touch(&path, usize::MAX));
            prop_assert_eq!(runs.check(), Ok(()));
        }
        prop_assert_eq!(runs.blocks(), plain.stack.len() as u64);
    }

    #[test]
    fn bounded_it_is_an_lru_cache_of_that_size(prompts in prompts(), capacity in 1usize..14) {
        let (mut runs, mut plain) = (RunStack::new(capacity as u64).telling(), Plain::default());
        for (at, prompt) in prompts.iter().enumerate() {
            let path = chained(prompt);
            let before = plain.stack.clone();
            let expected = path.iter().take_while(|block| before.contains(block)).count() as u64;
            prop_assert_eq!(runs.matched(&path), expected);
            prop_assert_eq!(distances(&runs.touch(&path, Nanos(at as u64))), plain.touch(&path, capacity));
            prop_assert_eq!(runs.check(), Ok(()));
            prop_assert_eq!(runs.blocks(), plain.stack.len() as u64);
            // What has left is told, once and leaf first.
            let dropped = runs.take_dropped();
            let mut expected: Vec<u64> = before.iter().chain(&path).copied().collect();
            expected.retain(|block| !plain.stack.contains(block));
            expected.sort_unstable();
            expected.dedup();
            let mut told = dropped.clone();
            told.sort_unstable();
            prop_assert_eq!(&told, &expected);
            for pair in path.windows(2) {
                let place = |block: &u64| dropped.iter().position(|dropped| dropped == block);
                prop_assert!(place(&pair[0]).is_none_or(|above| place(&pair[1]).is_some_and(|below| below < above)));
            }
        }
    }
}

#[test]
fn what_is_older_than_the_horizon_is_forgotten() {
    let mut runs = RunStack::new(u64::MAX);
    runs.touch(&chained(&[1, 2, 3, 4]), Nanos(10));
    runs.touch(&chained(&[1, 2, 9]), Nanos(20));
    runs.expire(Nanos(15));
    assert_eq!((runs.matched(&chained(&[1, 2, 3, 4])), runs.matched(&chained(&[1, 2, 9]))), (2, 3));
    assert_eq!((runs.blocks(), runs.dropped_blocks(), runs.oldest_touch()), (3, 2, Some(Nanos(20))));
    runs.expire(Nanos::MAX);
    assert_eq!((runs.blocks(), runs.oldest_touch()), (0, None));
    assert_eq!(runs.check(), Ok(()));
}

#[test]
fn churn_gives_memory_back_and_a_session_is_one_node() {
    let mut runs = RunStack::new(1_000);
    for session in 0..20_000u64 {
        let ids: Vec<u64> = (0..100).map(|block| session * 1_000 + block).collect();
        runs.touch(&chained(&ids), Nanos(session));
    }
    assert_eq!(runs.blocks(), 1_000);
    assert!(runs.bytes() < 100_000, "{} bytes for 1,000 blocks", runs.bytes());
    let mut one = RunStack::new(u64::MAX);
    let ids: Vec<u64> = (0..5_000).collect();
    for turn in 1..500 {
        one.touch(&chained(&ids[..turn * 10]), Nanos(turn as u64));
    }
    assert_eq!(one.by_first.len(), 1);
}
