//! What publishers can do to a view that trusts nobody: flood it, contradict themselves, never run what was sent to them.

use super::{BLOCK, batch, hit, stored, target, tokens};
use crate::chain::{NameFormat, Namespace};
use crate::view::{FleetView, Hit, ViewConfig};
use plimsoll_core::{EngineKind, KvEvent, Medium, Nanos, StoredBlocks};
use proptest::prelude::*;

fn small(max_blocks: usize) -> FleetView {
    FleetView::new(ViewConfig { max_blocks, ..ViewConfig::default() })
}

/// Names that mean nothing here are kept beside the index: they go with it.
#[test]
fn a_flood_of_names_of_its_own_leaves_nothing_behind() {
    let mut view = small(100);
    view.add(target(1), EngineKind::Vllm, None);
    let empty = view.bytes();
    for seq in 0..200 {
        let flood = stored(NameFormat::Own, &tokens(seq as u32 * 1_000, 20), 0);
        view.live(Nanos(1), target(1), seq, batch(seq, vec![flood]));
        assert!(view.blocks() <= 100 && view.publishers[&target(1)].names.len() <= 100, "message {seq}");
    }
    assert!(view.overflows() > 0);
    view.live(Nanos(1), target(1), 200, batch(200, vec![KvEvent::Cleared]));
    assert!(view.bytes() < empty + 4_096, "{} of {empty}", view.bytes());
    // What cannot be placed is not kept either.
    let orphans = KvEvent::Stored(StoredBlocks {
        parent: Some(7),
        names: vec![1, 2, 3],
        tokens: tokens(0, 3),
        block_tokens: BLOCK,
        ..StoredBlocks::default()
    });
    view.live(Nanos(1), target(1), 201, batch(201, vec![orphans]));
    assert_eq!(view.publishers[&target(1)].names.len(), 0);
}

/// Whoever has most gives way, and not whoever came last.
#[test]
fn the_largest_gives_way() {
    let mut view = small(100);
    for at in [1, 2] {
        view.add(target(at), EngineKind::Sglang, None);
    }
    view.live(Nanos(1), target(2), 0, batch(0, vec![stored(NameFormat::Sglang, &tokens(50_000, 98), 0)]));
    let good = tokens(0, 6);
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &good, 0)]));
    assert_eq!((view.overflows(), view.blocks()), (1, 6));
    assert_eq!(hit(&view, Nanos(2), target(1), &good).device_tokens, 80);
    let credited = |at| view.publishers(Nanos(2)).find(|(one, _)| *one == target(at)).unwrap().1.credited;
    assert_eq!((credited(1), credited(2)), (true, false));
}

/// A steady error is seen after the credit was taken for it.
#[test]
fn the_error_that_took_the_credit_stays_visible() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, None);
    let prompt = tokens(0, 10);
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &prompt, 0)]));
    let named = view.prompt(Namespace::default(), &prompt);
    let believed = hit(&view, Nanos(1), target(1), &prompt);
    for _ in 0..40 {
        view.reported(Nanos(1), target(1), &named, believed, believed.tokens() - 48);
    }
    let (_, state) = view.publishers(Nanos(1)).next().unwrap();
    assert!(!state.credited && (0.25..0.31).contains(&state.belief.error), "{state:?}");
}

/// A refused request leaves an assumed cache as it was: nothing is there of it, and nothing has left for it.
#[test]
fn what_did_not_run_is_not_assumed() {
    let mut view = FleetView::default();
    view.add_approximate(target(1), EngineKind::Vllm, Some(BLOCK), 8 * u64::from(BLOCK));
    let (kept, refused) = (tokens(0, 7), tokens(5_000, 7));
    let [kept_named, refused_named] = [&kept, &refused].map(|prompt| view.prompt(Namespace::default(), prompt));
    view.routed(Nanos(1), target(1), &kept_named);
    view.ran(Nanos(1), Nanos(2), target(1), &kept_named);
    view.routed(Nanos(3), target(1), &refused_named);
    assert_eq!(hit(&view, Nanos(3), target(1), &refused).speculative_tokens, 96, "it is on its way");
    view.withdrawn(Nanos(3), target(1), &refused_named);
    assert_eq!(hit(&view, Nanos(4), target(1), &refused), Hit::default());
    assert_eq!(hit(&view, Nanos(4), target(1), &kept).device_tokens, 96);
}

/// One of two requests with the same document gives up; the other one still brings it.
#[test]
fn a_request_withdraws_only_its_own_word() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, Some(BLOCK));
    view.live(Nanos(1), target(1), 0, batch(0, vec![]));
    let prompt = tokens(0, 6);
    let named = view.prompt(Namespace::default(), &prompt);
    view.routed(Nanos(10), target(1), &named);
    view.routed(Nanos(20), target(1), &named);
    view.withdrawn(Nanos(10), target(1), &named);
    assert_eq!(hit(&view, Nanos(30), target(1), &prompt).speculative_tokens, 80);
    view.withdrawn(Nanos(20), target(1), &named);
    assert_eq!(hit(&view, Nanos(30), target(1), &prompt), Hit::default());
}

/// With pages of a token a decision is written down for every sixteenth, and still says how far it goes.
#[test]
fn small_pages_are_speculated_on_in_strides() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, Some(1));
    view.live(Nanos(1), target(1), 0, batch(0, vec![]));
    let prompt = tokens(0, 7);
    view.routed(Nanos(1), target(1), &view.prompt(Namespace::default(), &prompt));
    assert_eq!(hit(&view, Nanos(2), target(1), &prompt).speculative_tokens, 111, "all but the last token");
    assert_eq!(hit(&view, Nanos(2), target(1), &prompt[..40]).speculative_tokens, 32);
}

/// Two sessions on one engine begin alike: the third needs no room for what they have in common, for as long as one of them runs.
#[test]
fn what_runs_already_is_shared_until_the_last_one_leaves() {
    let mut view = FleetView::default();
    view.add(target(1), EngineKind::Sglang, Some(BLOCK));
    view.live(Nanos(1), target(1), 0, batch(0, vec![stored(NameFormat::Sglang, &tokens(0, 64), 0)]));
    let shared = |view: &FleetView, tokens: &[u32]| hit(view, Nanos(1), target(1), tokens).shared_tokens;
    let prompt = tokens(0, 64);
    let named: Vec<_> = [40, 64].map(|blocks| view.prompt(Namespace::default(), &tokens(0, blocks))).into();
    assert_eq!((hit(&view, Nanos(1), target(1), &prompt).device_tokens, shared(&view, &prompt)), (1_008, 0));
    view.routed(Nanos(1), target(1), &named[0]);
    assert_eq!(shared(&view, &prompt), 512, "in steps of 256 tokens");
    view.routed(Nanos(1), target(1), &named[1]);
    view.routed(Nanos(1), target(1), &named[0]);
    assert_eq!(shared(&view, &prompt), 1_008, "no more than it hits");
    view.left(target(1), &named[1]);
    assert_eq!(shared(&view, &prompt), 512);
    view.left(target(1), &named[0]);
    assert_eq!(shared(&view, &prompt), 512);
    view.left(target(1), &named[0]);
    assert_eq!(shared(&view, &prompt), 0);
    assert!(view.in_flight.is_empty());
}

fn event() -> impl Strategy<Value = KvEvent> {
    let names = || proptest::collection::vec(0u64..24, 0..12);
    let medium = || prop_oneof![Just(Medium::Device), Just(Medium::Host), Just(Medium::Storage)];
    let sizes = prop_oneof![Just(0u32), Just(1), Just(2), Just(4)];
    let stored = (proptest::option::of(0u64..24), names(), 0usize..40, sizes, medium()).prop_map(
        |(parent, names, tokens, block_tokens, medium)| {
            let tokens = (0..tokens as u32).map(|at| at % 5).collect();
            KvEvent::Stored(StoredBlocks { parent, names, tokens, block_tokens, medium, ..StoredBlocks::default() })
        },
    );
    prop_oneof![
        6 => stored,
        3 => (names(), medium()).prop_map(|(names, medium)| KvEvent::Removed { names, medium }),
        1 => Just(KvEvent::Cleared),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is said, the indexes stay whole and within their bound, and what leaves takes everything along.
    #[test]
    fn no_events_break_a_view(
        messages in proptest::collection::vec((0u32..3, 0u64..40, proptest::collection::vec(event(), 0..6)), 0..40),
    ) {
        let mut view = small(40);
        for (at, kind) in [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Openai].into_iter().enumerate() {
            view.add(target(at as u32), kind, None);
        }
        for (at, (to, seq, events)) in messages.into_iter().enumerate() {
            let now = Nanos::from_secs(at as u64);
            view.live(now, target(to), seq, batch(seq + at as u64, events));
            view.tick(now);
            let prompt = view.prompt(Namespace::default(), &[0, 1, 2, 3, 4, 0, 1, 2, 3]);
            view.routed(now, target(to), &prompt);
            let _ = view.hits(now, &prompt);
            prop_assert!(view.blocks() <= 40);
            for index in view.families.values() {
                prop_assert_eq!(index.check(), Ok(()));
            }
        }
        for at in 0..3 {
            view.remove(target(at));
        }
        prop_assert_eq!(view.blocks(), 0);
    }
}
