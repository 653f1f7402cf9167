//! Golden vectors taken from vLLM 0.32 itself, and what it published.

use super::*;

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tokens(range: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    range.collect()
}

#[test]
fn digests_match_vllm() {
    let none = none_digest(NONE_SEED);
    assert_eq!(hex(&none), "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
    let first = block_digest(&none, &tokens(1..=16), &[]);
    assert_eq!(hex(&first), "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682");
    let second = block_digest(&first, &tokens(17..=32), &[]);
    assert_eq!(hex(&second), "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf");
    let salted = block_digest(&none, &tokens(1..=16), &[ExtraKey::CacheSalt("tenant-a")]);
    assert_eq!(hex(&salted), "d4fdd9f3dab139eafd01550f43781481256e9531b59b55ea4656df8f49124fcf");
}

/// Recorded events of a running vLLM 0.32 (block size 32): tokens 1000 to 1095, without and with a salt.
#[test]
fn event_hashes_match_a_recording() {
    let names = |salt: Option<&str>| {
        let mut digest = none_digest(NONE_SEED);
        (0..3u32)
            .map(|block| {
                let extra: Vec<_> = salt.filter(|_| block == 0).map(ExtraKey::CacheSalt).into_iter().collect();
                digest = block_digest(&digest, &tokens(1000 + block * 32..=1031 + block * 32), &extra);
                event_hash(&digest)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(names(None), [6_522_045_006_455_570_523, 9_939_604_838_047_613_594, 3_508_337_578_527_034_563]);
    assert_eq!(
        names(Some("tenant-a")),
        [158_587_027_064_618_347, 1_527_173_126_770_996_547, 11_159_346_658_673_430_708]
    );
}

#[test]
fn long_ids_and_texts_are_encoded_canonically() {
    let mut out = Vec::new();
    for number in [0, 23, 24, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32] {
        head(&mut out, UNSIGNED, number);
    }
    assert_eq!(
        out,
        [
            &[0x00, 0x17, 0x18, 24, 0x18, 255][..],
            &[0x19, 1, 0, 0x19, 255, 255],
            &[0x1a, 0, 1, 0, 0, 0x1a, 255, 255, 255, 255],
            &[0x1b, 0, 0, 0, 1, 0, 0, 0, 0],
        ]
        .concat()
    );
}
