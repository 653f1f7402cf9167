use super::*;
use proptest::prelude::*;

fn cache(bytes: u64) -> SegmentCache {
    SegmentCache::new(bytes, [7; 32])
}

fn walk(shard: &Shard) -> Vec<SegmentKey> {
    let mut keys = Vec::new();
    let (mut at, mut newer) = (shard.newest, NONE);
    while at != NONE {
        let slot = &shard.slots[at as usize];
        assert_eq!(slot.newer, newer);
        keys.push(slot.key);
        (newer, at) = (at, slot.older);
    }
    assert_eq!(shard.oldest, newer);
    keys
}

#[test]
fn what_separates_two_texts_separates_their_keys() {
    let cache = cache(1 << 20);
    let keyer = cache.keyer(&[1; 32], "ann");
    let key = keyer.key(0, b"text");
    assert_eq!(key, cache.keyer(&[1; 32], "ann").key(0, b"text"));
    for other in [
        keyer.key(1, b"text"),
        keyer.key(0, b"text "),
        cache.keyer(&[1; 32], "bob").key(0, b"text"),
        cache.keyer(&[2; 32], "ann").key(0, b"text"),
        SegmentCache::new(1 << 20, [8; 32]).keyer(&[1; 32], "ann").key(0, b"text"),
    ] {
        assert_ne!(key, other);
    }
}

#[test]
fn nothing_is_kept_without_room_and_nothing_that_is_too_large() {
    let none = cache(0);
    let key = none.keyer(&[0; 32], "").key(0, b"a");
    none.put(key, &[1]);
    assert_eq!((none.get(key), none.size()), (None, SegmentCacheSize::default()));
    let small = cache(16 * 1024);
    small.put(key, &[1; 1000]);
    assert_eq!((small.get(key), small.counts()), (None, (0, 1)));
    small.put(key, &[1; 100]);
    assert_eq!(small.get(key).as_deref(), Some(&[1; 100][..]));
    assert_eq!(
        (small.size(), small.counts()),
        (SegmentCacheSize { bytes: 400 + ENTRY_BYTES as u64, entries: 1 }, (1, 1))
    );
    small.set_capacity(0);
    assert_eq!(small.size(), SegmentCacheSize::default());
}

proptest! {
    /// Against a list in order of use.
    #[test]
    fn the_least_recently_used_go_first(steps in prop::collection::vec((0u128..12, prop::option::of(0usize..60)), 1..200)) {
        let mut shard = Shard::new(1500);
        let mut model: Vec<(SegmentKey, usize)> = Vec::new();
        for (key, put) in steps {
            let key = SegmentKey(key);
            let known = model.iter().position(|(other, _)| *other == key);
            match put {
                Some(length) => {
                    shard.put(key, vec![key.0 as u32; length].into());
                    if known.is_none() {
                        model.insert(0, (key, length));
                    }
                }
                None => {
                    let found = shard.get(key);
                    prop_assert_eq!(found.as_ref().map(|ids| ids.len()), known.map(|at| model[at].1));
                    prop_assert!(found.iter().flat_map(|ids| ids.iter()).all(|id| *id == key.0 as u32));
                    if let Some(at) = known {
                        let entry = model.remove(at);
                        model.insert(0, entry);
                    }
                }
            }
            let bytes = |model: &[(SegmentKey, usize)]| model.iter().map(|(_, length)| 4 * length + ENTRY_BYTES).sum::<usize>();
            while bytes(&model) > shard.capacity_bytes {
                model.pop();
            }
            prop_assert_eq!(walk(&shard), model.iter().map(|(key, _)| *key).collect::<Vec<_>>());
            prop_assert_eq!((shard.bytes, shard.map.len()), (bytes(&model), model.len()));
            prop_assert!(shard.slots.len() <= 12);
        }
    }
}
