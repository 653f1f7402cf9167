//! Complaints about what a cache is believed to hold, from `gateways.md` §5 (13, 15-17) and `llmd.md` §5 (22, 23, 25, 27), seen from
//! where they hurt: where requests go.

use crate::fleet::target;
use crate::world::engine::Shape;
use crate::world::{Arrival, World, hit_share, text};
use plimsoll_cache::chain::{NameFormat, Namespace, names};
use plimsoll_cache::view::Prompt;
use plimsoll_core::{InstanceId, Nanos};
use plimsoll_load::SchedulerConfig;

fn world(engines: u32) -> World {
    World::new(SchedulerConfig::default(), 1, engines, Shape::default())
}

/// Tokens of the prompt that are credited to each engine now.
fn credit(world: &World, prompt: &[u32]) -> Vec<(u32, u64)> {
    let view = &world.gateways[0].view;
    let prompt = view.prompt(Namespace::default(), prompt);
    view.hits(world.now, &prompt).into_iter().map(|(target, hit)| (target.instance.0, hit.tokens())).collect()
}

#[test]
fn gateways_13_prompts_are_known_by_their_tokens_and_not_by_their_number() {
    let mut world = world(2);
    let (one, other) = (text(1, 512), text(2, 512));
    let holder = world.serve_one(&one).engine;
    assert_eq!(credit(&world, &one), [(holder, 496)]);
    assert_eq!(credit(&world, &other), []);
    // Token 1234 is not the beginning of token 12345, wherever it stands.
    for (at, format) in [(0, NameFormat::Sglang), (15, NameFormat::VllmCbor), (7, NameFormat::Own)] {
        let with = |token| {
            let mut prompt = text(3, 16);
            prompt[at] = token;
            names(format, 16, Namespace::default(), &prompt)
        };
        assert_ne!(with(1_234), with(12_345));
    }
}

#[test]
fn gateways_15_after_a_hole_there_is_no_credit_until_it_is_learnt_anew() {
    let mut world = world(2);
    let (kept, lost) = (text(1, 1_600), text(2, 1_600));
    let holder = world.serve_one(&kept).engine;
    // A message on its way is lost: what it said of evictions is lost with it.
    world.engine(holder).flush();
    let missed = world.engine(holder).take_events();
    assert!(missed.is_some());
    assert_eq!(credit(&world, &kept), [(holder, 1_584)], "nobody can know yet");
    let next = (0..20).find(|nth| world.serve_one(&text(10 + nth, 160)).engine == holder);
    assert!(next.is_some(), "the next message of the holder shows the hole");
    assert_eq!(credit(&world, &kept), [], "nothing may be credited");
    let gaps: u64 = world.gateways[0].view.publishers(world.now).map(|(_, state)| state.gaps).sum();
    assert_eq!(gaps, 1);
    // No replay comes; it is dropped and learnt anew.
    world.now = world.now + Nanos::from_secs(5);
    let _ = world.gateways[0].view.tick(world.now);
    let (mut learnt, mut nth) = (false, 0);
    while !learnt && nth < 20 {
        let prompt = if nth == 0 { lost.clone() } else { text(100 + nth, 1_600) };
        learnt = world.serve_one(&prompt).engine == holder && credit(&world, &prompt) == [(holder, 1_584)];
        nth += 1;
    }
    assert!(learnt, "what it computes from now on counts");
    assert_eq!(credit(&world, &kept), [], "what was before does not");
}

#[test]
fn gateways_16_affinity_ends_with_the_kv() {
    let mut world = world(2);
    // 100 tokens more than full blocks: the rest cannot be credited.
    let prompt = text(1, 1_600 + 10);
    let holder = world.serve_one(&prompt).engine;
    assert_eq!(credit(&world, &prompt), [(holder, 1_600)]);
    world.now = world.now + Nanos::from_secs(3_600);
    assert_eq!(credit(&world, &prompt), [(holder, 1_600)], "an hour is no reason");
    world.engine(holder).flush();
    world.moved(holder);
    world.serve(Vec::new());
    assert_eq!(credit(&world, &prompt), []);
    // A decision alone counts for two seconds.
    let arrival = Arrival { at: world.now, prompt: text(2, 1_600), output: text(3, 10) };
    let (placed, ..) = world.place(0, 1 << 64, &arrival);
    assert_eq!(credit(&world, &arrival.prompt), [(placed.target.instance.0, 1_584)]);
    world.now = world.now + Nanos::from_secs(2);
    assert_eq!(credit(&world, &arrival.prompt), []);
}

#[test]
fn gateways_17_more_gateways_do_not_cost_hits() {
    let share = |gateways: usize| {
        let mut world =
            World::new(SchedulerConfig::default(), gateways, 4, Shape { blocks: 8_000, ..Shape::default() });
        let mut histories: Vec<Vec<u32>> = (0..32).map(|nth| text(nth, 800)).collect();
        let mut follow_up = Vec::new();
        for turn in 0..6_u64 {
            let mut arrivals = Vec::new();
            for (nth, history) in histories.iter_mut().enumerate() {
                history.extend(text(1 << 40 | (nth as u64) << 20 | turn, 200));
                // A session's turns come through any gateway.
                let at = world.now + Nanos::from_millis(600 + 45 * ((nth as u64 * 5 + turn * 3) % 32));
                arrivals.push(Arrival { at, prompt: history.clone(), output: text(1 << 41 | nth as u64, 50) });
            }
            let served = world.serve(arrivals);
            if turn > 0 {
                follow_up.extend(served);
            }
        }
        hit_share(&follow_up)
    };
    let alone = share(1);
    assert!(alone > 0.75, "{alone}");
    for gateways in [2, 4, 8] {
        let share = share(gateways);
        assert!(share > alone - 0.03, "{gateways} gateways: {share}, one: {alone}");
    }
}

#[test]
fn llmd_22_a_restarted_or_removed_engine_attracts_nobody() {
    let mut world = world(3);
    let prompt = text(1, 3_200);
    let holder = world.serve_one(&prompt).engine;
    world.engine(holder).restart();
    // Its publisher counts from the start again with the first thing it says.
    let said = (0..30).find(|nth| world.serve_one(&text(10 + nth, 160)).engine == holder);
    assert!(said.is_some());
    assert_eq!(credit(&world, &prompt), []);
    let holder = world.serve_one(&prompt).engine;
    assert_eq!(credit(&world, &prompt), [(holder, 3_184)]);
    world.gateways[0].scheduler.remove_instance(InstanceId(holder));
    world.gateways[0].view.remove(target(holder));
    assert_eq!(credit(&world, &prompt), []);
    world.engines.remove(&holder);
    assert_ne!(world.serve_one(&prompt).engine, holder);
}

#[test]
fn llmd_23_only_what_is_contiguous_counts() {
    let mut world = world(2);
    let prompt = text(1, 1_600);
    let holder = world.serve_one(&prompt).engine;
    // The decision itself counts for two seconds, whatever events say.
    world.now = world.now + Nanos::from_secs(2);
    let chain = names(NameFormat::Own, 16, Namespace::default(), &prompt).unwrap();
    let hole = plimsoll_core::KvEvent::Removed { names: vec![chain[40]], medium: plimsoll_core::Medium::Device };
    let next = world.engine(holder).take_events();
    assert!(next.is_none());
    let batch = plimsoll_core::KvBatch { at_unix_s: 2_000.0, events: vec![hole], rank: None, skipped: 0 };
    let seq = world.engine(holder).skip_seq();
    let _ = world.gateways[0].view.live(world.now, target(holder), seq, batch);
    assert_eq!(credit(&world, &prompt), [(holder, 640)]);
}

#[test]
fn llmd_25_salts_and_adapters_share_nothing() {
    let mut world = world(2);
    let prompt = text(1, 1_600);
    world.serve_one(&prompt);
    let view = &world.gateways[0].view;
    for namespace in [
        Namespace { cache_salt: Some("tenant-a"), ..Namespace::default() },
        Namespace { lora: Some("adapter"), ..Namespace::default() },
        Namespace { extra_key: Some("key"), ..Namespace::default() },
    ] {
        let named = Prompt::new(&view.families(), namespace, &prompt);
        assert!(view.hits(world.now, &named).is_empty(), "{namespace:?}");
    }
    assert_eq!(credit(&world, &prompt).len(), 1);
}

#[test]
fn llmd_27_a_flush_takes_all_credit_and_a_lost_message_is_noticed() {
    let mut world = world(2);
    let prompt = text(1, 1_600);
    let holder = world.serve_one(&prompt).engine;
    world.now = world.now + Nanos::from_secs(2);
    let seq = world.engine(holder).skip_seq();
    let cleared = |at_unix_s| plimsoll_core::KvBatch {
        at_unix_s,
        events: vec![plimsoll_core::KvEvent::Cleared],
        rank: None,
        skipped: 0,
    };
    let view = &mut world.gateways[0].view;
    assert_eq!(view.live(world.now, target(holder), seq, cleared(2_000.0)), []);
    assert_eq!(credit(&world, &prompt), []);
    let view = &mut world.gateways[0].view;
    let wants = view.live(world.now, target(holder), seq + 2, cleared(2_001.0));
    assert_eq!(wants.len(), 1, "what is missing is asked for: {wants:?}");
}
