use super::*;
use proptest::prelude::*;

fn head(params: SamplingParams) -> Note {
    Note::Head(Box::new(Head {
        migration: "m".into(),
        key: "k".into(),
        rid: "r".into(),
        prompt_tokens: 7,
        params,
        owner: OwnerNote::of(&Owner { session_id: Some("s".into()), ..Owner::default() }),
        first_page: 3,
        cached_tokens: None,
        retractions: 1,
        age_ms: 12,
        priority: Some(-3),
        tpot_us: Some(20_000),
    }))
}

proptest! {
    /// A parameter that changed by one bit could change a token.
    #[test]
    fn parameters_arrive_bit_for_bit(
        floats in prop::collection::vec(prop_oneof![0f32..2.0, 0f32..=1.0, -100f32..100.0, any::<u32>().prop_map(|bits| f32::from_bits(bits & 0xff7f_ffff))], 6),
        seed in prop::option::of(any::<u64>()),
        stop in prop::collection::vec(".{0,5}", 0..3),
    ) {
        prop_assume!(floats.iter().all(|float| float.is_finite()));
        let params = SamplingParams {
            temperature: floats[0],
            top_p: floats[1],
            min_p: floats[2],
            presence_penalty: floats[3],
            repetition_penalty: floats[4],
            logit_bias: vec![(300, floats[5])],
            seed,
            stop,
            ..SamplingParams::default()
        };
        let note = head(params);
        prop_assert_eq!(Note::decode(&note.encode()), Some(note));
    }

    #[test]
    fn anything_else_is_no_note(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Some(note) = Note::decode(&bytes) {
            prop_assert_eq!(Note::decode(&note.encode()), Some(note));
        }
    }
}

#[test]
fn ids_and_digests_round_trip() {
    let ids: Vec<u32> = (0..IDS as u32 + 5).collect();
    let notes: Vec<Note> = Note::tokens(&ids).collect();
    assert_eq!(notes.len(), 2);
    let back = notes.iter().map(|note| Note::decode(&note.encode()));
    let back: Vec<u32> =
        back.flat_map(|note| if let Some(Note::Tokens(ids)) = note { ids } else { Vec::new() }).collect();
    assert_eq!(back, ids);
    assert_eq!(Note::decode(b"T123"), None);
    assert_eq!(fence_of(&fence_text(Fence(77))), Some(Fence(77)));
    assert_eq!(fence_of("77"), None);
    assert_eq!(digest_of(&digest_text(&[0xab; 32])), Some([0xab; 32]));
    assert_eq!(digest_of("zz"), None);
}
