use super::FingerprintMap;
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    /// Few keys in a small space, so that probes collide and removals shift.
    #[test]
    fn it_is_a_map(steps in proptest::collection::vec((0u64..96, 0u32..1000, any::<bool>()), 0..600)) {
        let (mut map, mut model) = (FingerprintMap::default(), BTreeMap::new());
        for (key, value, add) in steps {
            // Half of the keys differ in high bits only: all of them begin at few homes.
            let key = if key % 2 == 0 { key } else { key << 57 };
            if add {
                prop_assert_eq!(map.insert(key, value), model.insert(key, value));
            } else {
                prop_assert_eq!(map.remove(key), model.remove(&key));
            }
            prop_assert_eq!(map.len(), model.len());
        }
        for key in (0..96u64).flat_map(|key| [key, key << 57]) {
            prop_assert_eq!(map.get(key), model.get(&key).copied());
        }
    }
}

#[test]
fn memory_comes_back_when_it_empties() {
    let mut map = FingerprintMap::default();
    let before = map.bytes();
    for key in 0..100_000u64 {
        map.insert(key, 1);
    }
    assert!(map.bytes() <= 100_000 * 12 * 3, "{} bytes", map.bytes());
    for key in 0..100_000u64 {
        assert_eq!(map.remove(key), Some(1));
    }
    assert_eq!((map.len(), map.bytes()), (0, before));
}
