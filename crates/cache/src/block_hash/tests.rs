//! Golden vectors taken from SGLang 0.5.23's own code.

use super::*;

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn page_chain_matches_sglang() {
    let mut chain = Chain::new(4, None);
    chain.extend(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let digests: Vec<String> = chain.digests().iter().map(hex).collect();
    assert_eq!(
        digests,
        [
            "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
            "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6",
        ]
    );
    let events: Vec<EventHash> = chain.digests().iter().map(event_hash).collect();
    assert_eq!(events, [-3_488_128_144_981_237_669, 5_674_439_469_042_975_057]);
}

#[test]
fn salted_event_hashes_match_sglang() {
    let mut chain = Chain::new(4, Some(salt_seed("tenant-a")));
    chain.extend(&[1, 2, 3, 4]);
    let plain = event_hash(&chain.digests()[0]);
    assert_eq!(plain, 3_718_046_898_735_569_995);
    assert_eq!(dynamo_event_hash(plain, None, Some("tenant-a")), 8_062_630_728_818_998_546);
    assert_eq!(dynamo_event_hash(plain, None, None), plain);
}

/// Pinned in SGLang's own tests, and in its Rust copy of the rule.
#[test]
fn namespaced_event_hashes_match_sglang() {
    assert_eq!(dynamo_event_hash(123, Some("lora-a"), None), 9_220_659_119_954_863_560);
    assert_eq!(dynamo_event_hash(-5, Some("lora-a"), None), -1_810_974_732_006_142_875);
}

#[test]
fn storage_keys_match_sglang() {
    let seed = namespace_seed(None, Some("tenant-a"));
    assert_eq!(
        seed.as_ref().map(hex).as_deref(),
        Some("9d303df3761a7561353e2ae7459eb4ab12a08abb37951b696aa4f0c059c7caaa")
    );
    let key = page_digest(seed.as_ref(), &[1, 2, 3, 4]);
    assert_eq!(hex(&key), "2fd053693d7ef6aeb2f9315a5ca100dfe4b99434c563241ee3243a9163846222");
    assert_eq!(namespace_seed(None, None), None);
}

#[test]
fn a_chain_grown_in_pieces_equals_one_made_at_once() {
    let tokens: Vec<u32> = (0..103).map(|i| i * 7 % 31).collect();
    let mut whole = Chain::new(16, None);
    whole.extend(&tokens);
    assert_eq!(whole.digests().len(), 6);
    for step in [1, 5, 16, 40] {
        let mut pieces = Chain::new(16, None);
        for end in (0..=tokens.len()).step_by(step) {
            pieces.extend(&tokens[..end]);
        }
        pieces.extend(&tokens);
        assert_eq!(pieces, whole, "grown by {step}");
    }
}

#[test]
fn a_changed_token_renames_its_page_and_all_after_it() {
    let tokens: Vec<u32> = (0..64).collect();
    let mut changed = tokens.clone();
    changed[20] += 1;
    let (mut a, mut b) = (Chain::new(16, None), Chain::new(16, None));
    a.extend(&tokens);
    b.extend(&changed);
    let same: Vec<bool> = a.digests().iter().zip(b.digests()).map(|(x, y)| x == y).collect();
    assert_eq!(same, [true, false, false, false]);
}
