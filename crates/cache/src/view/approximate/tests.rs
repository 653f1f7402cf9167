use crate::chain::Namespace;
use crate::view::{FleetView, ViewConfig};
use plimsoll_core::{EngineKind, InstanceId, Nanos, Rank, Target};
use proptest::prelude::*;

const BLOCK: u32 = 16;

fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}

/// A prompt of so many blocks, one for each id, and some tokens more.
fn tokens(blocks: &[u32], more: usize) -> Vec<u32> {
    let block = |id: &u32| (0..BLOCK).map(|at| id * 1_000 + at).collect::<Vec<_>>();
    blocks.iter().flat_map(block).chain((0..more as u32).map(|at| 99_000 + at)).collect()
}

fn view(capacities: &[u64]) -> FleetView {
    let mut view = FleetView::new(ViewConfig::default());
    for (at, blocks) in capacities.iter().enumerate() {
        view.add_approximate(target(at as u32), EngineKind::Vllm, Some(BLOCK), blocks * u64::from(BLOCK));
    }
    view
}

fn credited(view: &FleetView, now: Nanos) -> bool {
    view.publishers(now).next().is_some_and(|(_, state)| state.credited)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_a_silent_target_is_believed_to_hold_is_what_an_lru_cache_of_its_size_would(
        capacities in proptest::collection::vec(1u64..12, 1..4),
        steps in proptest::collection::vec((0u32..4, proptest::collection::vec(0u32..3, 0..9), 0usize..16), 1..60),
    ) {
        let mut view = view(&capacities);
        let mut plain: Vec<Vec<Vec<u32>>> = vec![Vec::new(); capacities.len()];
        for (now, (to, blocks, more)) in steps.into_iter().enumerate() {
            let now = Nanos(now as u64);
            let to = to as usize % capacities.len();
            let tokens = tokens(&blocks, more);
            let prompt = view.prompt(Namespace::default(), &tokens);
            let hits = view.hits(now, &prompt);
            let most = tokens.len().saturating_sub(1) / BLOCK as usize;
            let paths: Vec<Vec<u32>> = (1..=blocks.len()).map(|depth| blocks[..depth].to_vec()).collect();
            for (at, held) in plain.iter().enumerate() {
                let depth = paths.iter().take_while(|path| held.contains(path)).count().min(most);
                let found = hits.get(&target(at as u32)).map_or(0, |hit| hit.tokens());
                prop_assert_eq!(found, depth as u64 * u64::from(BLOCK));
            }
            let believed = view.routed(now, target(to as u32), &prompt);
            view.ran(now, now, target(to as u32), &prompt);
            prop_assert_eq!(believed, hits.get(&target(to as u32)).copied().unwrap_or_default());
            for path in paths.iter().rev() {
                plain[to].retain(|held| held != path);
                plain[to].insert(0, path.clone());
            }
            plain[to].truncate(capacities[to] as usize);
            let held: u64 = view.publishers(now).map(|(_, state)| state.device_blocks).sum();
            prop_assert_eq!(held, plain.iter().map(|held| held.len() as u64).sum::<u64>());
            for (_, state) in view.publishers(now) {
                prop_assert_eq!((state.unplaced, state.unknown_removals), (0, 0));
            }
        }
        for at in 0..capacities.len() {
            view.remove(target(at as u32));
        }
        prop_assert_eq!(view.blocks(), 0);
    }
}

/// A request that finds `cached` of what it was believed to find.
fn report(view: &mut FleetView, now: Nanos, cached: u64) {
    let tokens = tokens(&[1, 2, 3, 4, 5, 6, 7, 8], 1);
    let prompt = view.prompt(Namespace::default(), &tokens);
    let believed = view.routed(now, target(0), &prompt);
    view.ran(now, now, target(0), &prompt);
    view.reported(now, target(0), &prompt, believed, cached);
}

#[test]
fn a_wrong_guess_loses_its_credit_for_longer_each_time_and_a_right_one_wins_it_back() {
    let mut view = view(&[100]);
    let mut now = Nanos::ZERO;
    assert!(credited(&view, now));
    let mut waits = Vec::new();
    for _ in 0..4 {
        let mut reports = 0;
        while credited(&view, now) {
            report(&mut view, now, 0);
            reports += 1;
            assert!(reports < 100, "it never loses its credit");
        }
        let began = now;
        while !credited(&view, now) {
            now = now + Nanos::from_secs(1);
        }
        waits.push(now.since(began).0 / 1_000_000_000);
    }
    assert_eq!(waits, [30, 60, 120, 240]);
    // Wrong without credit too: it stays without.
    for _ in 0..20 {
        report(&mut view, now, 0);
    }
    assert!(!credited(&view, now));
    now = now + Nanos::from_secs(10_000);
    for _ in 0..300 {
        report(&mut view, now, 128);
    }
    let (_, state) = view.publishers(now).next().expect("it is there");
    assert!(state.approximate && state.credited && state.belief.deviation < 0.01, "{state:?}");
    while credited(&view, now) {
        report(&mut view, now, 0);
    }
    assert!(!credited(&view, now + Nanos::from_secs(29)) && credited(&view, now + Nanos::from_secs(30)));
}

#[test]
fn a_restart_empties_it_and_the_same_engine_again_changes_nothing() {
    let mut view = view(&[100]);
    report(&mut view, Nanos::ZERO, 0);
    assert_eq!(view.blocks(), 8);
    view.add_approximate(target(0), EngineKind::Vllm, Some(BLOCK), 1_600);
    assert_eq!(view.blocks(), 8);
    view.lost(target(0));
    assert_eq!(view.blocks(), 0);
    report(&mut view, Nanos::ZERO, 0);
    assert_eq!(view.blocks(), 8);
    view.add_approximate(target(0), EngineKind::Vllm, Some(BLOCK), 3_200);
    assert_eq!(view.blocks(), 0, "another size is another engine");
}

#[test]
fn small_pages_are_taken_together() {
    let mut view = FleetView::new(ViewConfig::default());
    view.add_approximate(target(0), EngineKind::Sglang, Some(1), 1_600);
    view.add_approximate(target(1), EngineKind::Sglang, Some(48), 1_600);
    view.add_approximate(target(2), EngineKind::Openai, None, 1_600);
    let sizes: Vec<u32> = view.families().iter().map(|family| family.block_tokens).collect();
    assert_eq!(sizes, [16, 48]);
}
