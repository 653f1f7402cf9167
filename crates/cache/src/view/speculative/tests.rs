//! Against a plain table of pairs.

use super::*;
use plimsoll_core::{InstanceId, Rank};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Act {
    Add(u32, u64, u64),
    Gone(u32, u64),
    Forget(u32),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0u32..3, 0u64..2, 1u64..6).prop_map(|(target, family, len)| Act::Add(target, family, len)),
        1 => (0u32..3, 0u64..12).prop_map(|(target, block)| Act::Gone(target, block)),
        1 => (0u32..3).prop_map(Act::Forget),
        2 => (0u64..8).prop_map(Act::Pass),
    ]
}

fn target(id: u32) -> Target {
    Target { instance: InstanceId(id), rank: Rank(0) }
}

fn chain(family: u64, len: u64) -> Vec<u64> {
    (0..len).map(|depth| family * 6 + depth).collect()
}

proptest! {
    #[test]
    fn it_is_a_table_of_pairs(acts in prop::collection::vec(act(), 1..60)) {
        let mut speculative = Speculative::default();
        let mut table: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let mut now = 0;
        for act in acts {
            match act {
                Act::Add(id, family, len) => {
                    speculative.add(Nanos(now + 10), target(id), &chain(family, len));
                    table.extend(chain(family, len).into_iter().map(|block| ((id, block), now + 10)));
                }
                Act::Gone(id, block) => {
                    speculative.gone(target(id), block);
                    table.remove(&(id, block));
                }
                Act::Forget(id) => {
                    speculative.forget(target(id));
                    table.retain(|(held, _), _| *held != id);
                }
                Act::Pass(time) => {
                    now += time;
                    speculative.expire(Nanos(now));
                    table.retain(|_, until| *until > now);
                }
            }
            prop_assert_eq!(speculative.noted, table.len());
            for (family, id) in [(0, 0), (0, 1), (1, 1), (1, 2)] {
                let chain = chain(family, 6);
                let begins = speculative.beginning(&chain).any(|held| held == target(id));
                prop_assert_eq!(begins, table.contains_key(&(id, chain[0])));
                // A block may be gone from the middle; depth is that of halving then, never beyond a hole before it began.
                let deep = chain.iter().take_while(|block| table.contains_key(&(id, **block))).count();
                let found = speculative.depth(Nanos(now), target(id), &chain, 0);
                prop_assert!(found >= deep.min(1) && (deep > 0 || found == 0));
            }
        }
        speculative.expire(Nanos(now + 11));
        prop_assert!(speculative.notes.is_empty() && speculative.order.is_empty());
    }
}
