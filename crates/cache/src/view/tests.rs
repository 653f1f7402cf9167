use super::*;
use crate::stream::Trust;
use plimsoll_core::{InstanceId, Rank, StoredBlocks};

mod bounds;
mod tiers;

const BLOCK: u32 = 16;

fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}

fn tokens(from: u32, blocks: u32) -> Vec<u32> {
    (from..from + blocks * BLOCK).collect()
}

/// What an engine with these names says when it has computed a prompt.
fn stored(format: NameFormat, prompt: &[u32], from_block: usize) -> KvEvent {
    let names = match format {
        NameFormat::Own => prompt.chunks(BLOCK as usize).map(|block| u64::from(block[0]) << 20 | 0xabc).collect(),
        format => names(format, BLOCK, Namespace::default(), prompt).unwrap(),
    };
    KvEvent::Stored(StoredBlocks {
        parent: from_block.checked_sub(1).map(|at| names[at]),
        names: names[from_block..].to_vec(),
        tokens: prompt[from_block * BLOCK as usize..].to_vec(),
        block_tokens: BLOCK,
        ..StoredBlocks::default()
    })
}

fn batch(seq: u64, events: Vec<KvEvent>) -> KvBatch {
    KvBatch { at_unix_s: 1_000.0 + seq as f64, events, rank: None, skipped: 0 }
}

fn hit(view: &FleetView, now: Nanos, target: Target, prompt: &[u32]) -> Hit {
    let prompt = view.prompt(Namespace::default(), prompt);
    view.hits(now, &prompt).get(&target).copied().unwrap_or_default()
}

#[test]
fn hits_follow_events_in_every_format() {
    let kinds = [
        (EngineKind::Sglang, NameFormat::Sglang),
        (EngineKind::Vllm, NameFormat::VllmCbor),
        (EngineKind::Vllm, NameFormat::Own),
    ];
    for (kind, format) in kinds {
        let mut view = FleetView::default();
        view.add(target(1), kind, None);
        view.add(target(2), kind, None);
        let prompt = tokens(0, 6);
        assert!(view.live(Nanos(1), target(1), 0, batch(0, vec![stored(format, &prompt[..64], 0)])).is_empty());
        view.live(Nanos(1), target(1), 1, batch(1, vec![stored(format, &prompt, 4)]));
        view.live(Nanos(1), target(2), 0, batch(0, vec![stored(format, &prompt[..32], 0)]));
        // The last token is never a hit: the sixth block is computed again.
        assert_eq!(hit(&view, Nanos(1), target(1), &prompt).device_tokens, 80, "{format:?}");
        assert_eq!(hit(&view, Nanos(1), target(2), &prompt).device_tokens, 32, "{format:?}");
        let KvEvent::Stored(last) = stored(format, &prompt, 4) else { unreachable!() };
        let removed = KvEvent::Removed { names: last.names, medium: Medium::Device };
        view.live(Nanos(1), target(1), 2, batch(2, vec![removed]));
        assert_eq!(hit(&view, Nanos(1), target(1), &prompt).device_tokens, 64, "{format:?}");
        view.live(Nanos(1), target(1), 3, batch(3, vec![KvEvent::Cleared]));
        assert_eq!(hit(&view, Nanos(1), target(1), &prompt), Hit::default());
        view.remove(target(2));
        assert_eq!(view.blocks(), 0, "{format:?}");
    }
}

#[test]
fn tiers_follow_each_other() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, None);
    let prompt = tokens(0, 6);
    let on_host = |event| match event {
        KvEvent::Stored(blocks) => KvEvent::Stored(StoredBlocks { medium: Medium::Host, ..blocks }),
        other => other,
    };
    let events =
        vec![stored(NameFormat::Sglang, &prompt[..32], 0), on_host(stored(NameFormat::Sglang, &prompt[..64], 0))];
    view.live(Nanos(1), target(1), 0, batch(0, events));
    let found = hit(&view, Nanos(1), target(1), &prompt);
    assert_eq!((found.device_tokens, found.host_tokens), (32, 32));
}

#[test]
fn a_hole_takes_the_credit_until_it_is_filled() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, None);
    let prompt = tokens(0, 6);
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &prompt[..64], 0)]));
    let wants = view.live(Nanos(1), target(1), 2, batch(2, vec![]));
    assert_eq!(wants, [Want::Replay { target: target(1), from: 1 }]);
    assert_eq!(hit(&view, Nanos(1), target(1), &prompt), Hit::default());
    let KvEvent::Stored(all) = stored(NameFormat::Sglang, &prompt[..64], 0) else { unreachable!() };
    let lost = KvEvent::Removed { names: vec![all.names[3]], medium: Medium::Device };
    view.replayed(Nanos(1), target(1), 1, batch(1, vec![lost]));
    assert_eq!(hit(&view, Nanos(1), target(1), &prompt).device_tokens, 48);
    // A restart: nothing of the old life counts.
    let fresh = KvBatch { at_unix_s: 9_000.0, ..batch(0, vec![]) };
    view.live(Nanos(1), target(1), 0, fresh);
    assert_eq!((hit(&view, Nanos(1), target(1), &prompt), view.blocks()), (Hit::default(), 0));
}

#[test]
fn a_decision_counts_until_its_time_is_over_or_an_event_confirms_it() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, None);
    let prompt = tokens(0, 6);
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &prompt[..32], 0)]));
    let named = view.prompt(Namespace::default(), &prompt);
    view.routed(Nanos(1), target(1), &named);
    let found = hit(&view, Nanos(2), target(1), &prompt);
    assert_eq!((found.device_tokens, found.speculative_tokens), (80, 48));
    let later = Nanos::from_secs(3);
    view.tick(later);
    assert_eq!(hit(&view, later, target(1), &prompt).device_tokens, 32);
    view.routed(later, target(1), &named);
    assert_eq!(hit(&view, later, target(1), &prompt).device_tokens, 80);
    view.withdrawn(later, target(1), &named);
    assert_eq!(hit(&view, later, target(1), &prompt).device_tokens, 32, "it did not run there");
    view.routed(later, target(1), &named);
    view.remove(target(1));
    assert_eq!(hit(&view, later, target(1), &prompt), Hit::default());
}

/// What came and went within the time of a decision was believed for the rest of it.
#[test]
fn a_removal_ends_a_speculation() {
    for format in [NameFormat::Sglang, NameFormat::Own] {
        let mut view = FleetView::default();
        view.add(target(1), if format == NameFormat::Own { EngineKind::Vllm } else { EngineKind::Sglang }, Some(16));
        let prompt = tokens(0, 6);
        let store = stored(format, &prompt, 0);
        let KvEvent::Stored(blocks) = &store else { unreachable!() };
        let removed = KvEvent::Removed { names: blocks.names[3..].to_vec(), medium: Medium::Device };
        view.live(Nanos(1), target(1), 0, batch(0, vec![]));
        view.routed(Nanos(1), target(1), &view.prompt(Namespace::default(), &prompt));
        assert_eq!(hit(&view, Nanos(2), target(1), &prompt).speculative_tokens, 80, "{format:?}");
        view.live(Nanos(2), target(1), 1, batch(1, vec![store, removed]));
        let found = hit(&view, Nanos(3), target(1), &prompt);
        assert_eq!((found.device_tokens, found.speculative_tokens), (48, 0), "{format:?}");
        view.routed(Nanos(3), target(1), &view.prompt(Namespace::default(), &prompt));
        view.live(Nanos(4), target(1), 2, batch(2, vec![KvEvent::Cleared]));
        assert_eq!(hit(&view, Nanos(5), target(1), &prompt), Hit::default(), "{format:?}");
    }
}

#[test]
fn a_publisher_whose_names_do_not_fit_its_tokens_is_not_believed() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, None);
    let prompt = tokens(0, 6);
    // Names of another prompt.
    let KvEvent::Stored(other) = stored(NameFormat::Sglang, &tokens(500, 6), 0) else { unreachable!() };
    let lie = KvEvent::Stored(StoredBlocks { tokens: prompt.clone(), ..other });
    view.live(Nanos(1), target(1), 0, batch(0, vec![lie]));
    let (_, state) = view.publishers(Nanos(2)).next().unwrap();
    assert_eq!((state.misnamed, state.credited, state.trust), (1, false, Trust::Whole));
    assert_eq!(hit(&view, Nanos(2), target(1), &prompt), Hit::default());
}

#[test]
fn reports_that_contradict_the_belief_end_it() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, None);
    let prompt = tokens(0, 6);
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &prompt, 0)]));
    let named = view.prompt(Namespace::default(), &prompt);
    let believed = hit(&view, Nanos(1), target(1), &prompt);
    view.reported(Nanos(1), target(1), &named, believed, believed.device_tokens);
    assert_eq!(hit(&view, Nanos(1), target(1), &prompt), believed, "a report that agrees changes nothing");
    view.reported(Nanos(1), target(1), &named, believed, 32);
    assert_eq!(hit(&view, Nanos(1), target(1), &prompt), believed, "it has been computed since, or never was there");
    for _ in 0..20 {
        view.reported(Nanos(1), target(1), &named, believed, 0);
    }
    assert!(!view.publishers(Nanos(2)).next().unwrap().1.credited);
    let later = Nanos::from_secs(60);
    assert!(view.publishers(later).next().unwrap().1.credited, "it is tried again");
}

#[test]
fn one_that_floods_the_index_is_forgotten() {
    let mut view = FleetView::new(ViewConfig { max_blocks: 100, ..ViewConfig::default() });
    view.add(target(1), EngineKind::Sglang, None);
    view.add(target(2), EngineKind::Sglang, None);
    let good = tokens(0, 6);
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &good, 0)]));
    for seq in 0..50 {
        let flood = stored(NameFormat::Sglang, &tokens(10_000 + seq as u32 * 1_000, 20), 0);
        view.live(Nanos(1), target(2), seq, batch(seq, vec![flood]));
        assert!(view.blocks() <= 100);
    }
    assert!(view.overflows() > 0);
    assert_eq!(hit(&view, Nanos(2), target(1), &good).device_tokens, 80);
}

/// SGLang 0.5.23 names the blocks of one eviction from the front; with the first all behind it are gone here.
#[test]
fn blocks_given_up_from_the_front_were_known() {
    for format in [NameFormat::Sglang, NameFormat::Own] {
        let mut view = FleetView::default();
        let kind = if format == NameFormat::Own { EngineKind::Vllm } else { EngineKind::Sglang };
        view.add(target(1), kind, None);
        let prompt = tokens(0, 6);
        let all = stored(format, &prompt, 0);
        let KvEvent::Stored(StoredBlocks { mut names, .. }) = all.clone() else { unreachable!() };
        names.push(7);
        let removed = KvEvent::Removed { names, medium: Medium::Device };
        view.live(Nanos(1), target(1), 0, batch(0, vec![all, removed]));
        let (_, state) = view.publishers(Nanos(1)).next().unwrap();
        assert_eq!((state.unknown_removals, view.blocks()), (1, 0), "{format:?}");
    }
}
