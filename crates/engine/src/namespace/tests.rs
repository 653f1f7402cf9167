use super::*;

fn space(extra_key: Option<&str>, cache_salt: Option<&str>, lora: Option<&str>) -> Namespace {
    Namespace { extra_key: extra_key.map(Arc::from), cache_salt: cache_salt.map(Arc::from), lora: lora.map(Arc::from) }
}

#[test]
fn every_part_makes_a_chain_of_its_own() {
    let parts = [None, Some("a"), Some("b")];
    let mut seeds = std::collections::HashSet::new();
    for extra in parts {
        for salt in parts {
            for lora in parts {
                seeds.insert(space(extra, salt, lora).seed());
            }
        }
    }
    assert_eq!(seeds.len(), 27);
    assert_eq!(Namespace::default().seed(), None);
    assert!(Namespace::default().is_default() && !space(None, Some("a"), None).is_default());
}

/// Golden vector of SGLang's storage keys.
#[test]
fn a_salted_chain_is_sglangs_storage_chain() {
    let mut chain = plimsoll_cache::Chain::new(16, space(None, Some("tenant-a"), None).seed());
    chain.extend(&(1..=16).collect::<Vec<_>>());
    let hex: String = chain.digests()[0].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "16409a2256898f1dd0e8fd0b8853b95530d3f3065e2d53b28d0449faf5bccc13");
}

#[test]
fn an_adapters_id_ends_the_extra_key() {
    let both = space(Some("team"), None, Some("sql"));
    let key = both.sglang_extra_key().unwrap().into_owned();
    assert_eq!((&key[..4], key.len()), ("team", 36));
    assert_eq!(space(None, None, Some("sql")).sglang_extra_key().unwrap(), key[4..]);
}
