//! Bytes to frames: whole, split anywhere, damaged, made up.

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Hello(Hello),
    Proof(Digest),
    Note(Vec<u8>),
    Page(u32, Digest, Vec<u8>),
    End(u32),
    Abort(String),
    Beat,
}

impl Owned {
    fn of(frame: &Frame<'_>) -> Self {
        match frame {
            Frame::Hello(hello) => Owned::Hello(*hello),
            Frame::Proof(proof) => Owned::Proof(*proof),
            Frame::Note(note) => Owned::Note(note.to_vec()),
            Frame::Page { index, digest, bytes } => Owned::Page(*index, *digest, bytes.to_vec()),
            Frame::End { pages } => Owned::End(*pages),
            Frame::Abort(reason) => Owned::Abort((*reason).to_owned()),
            Frame::Beat => Owned::Beat,
        }
    }

    fn frame(&self) -> Frame<'_> {
        match self {
            Owned::Hello(hello) => Frame::Hello(*hello),
            Owned::Proof(proof) => Frame::Proof(*proof),
            Owned::Note(note) => Frame::Note(note),
            Owned::Page(index, digest, bytes) => Frame::Page { index: *index, digest: *digest, bytes },
            Owned::End(pages) => Frame::End { pages: *pages },
            Owned::Abort(reason) => Frame::Abort(reason),
            Owned::Beat => Frame::Beat,
        }
    }
}

fn frames() -> impl Strategy<Value = Vec<Owned>> {
    let hello = (any::<[u8; 32]>(), any::<u32>(), any::<u32>(), any::<bool>(), any::<[u8; 16]>()).prop_map(
        |(model, page_tokens, page_bytes, secret, nonce)| {
            Owned::Hello(Hello { identity: Identity { model, page_tokens, page_bytes }, secret, nonce })
        },
    );
    let page = (any::<u32>(), any::<[u8; 32]>(), prop::collection::vec(any::<u8>(), PAGE_BYTES))
        .prop_map(|(index, digest, bytes)| Owned::Page(index, digest, bytes));
    let frame = prop_oneof![
        1 => hello,
        1 => any::<[u8; 32]>().prop_map(Owned::Proof),
        2 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Owned::Note),
        4 => page,
        1 => any::<u32>().prop_map(Owned::End),
        1 => ".{0,40}".prop_map(Owned::Abort),
        1 => Just(Owned::Beat),
    ];
    prop::collection::vec(frame, 1..8)
}

fn wire(frames: &[Owned]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.iter().for_each(|frame| frame::write(&mut out, &frame.frame()));
    out
}

/// All frames of a stream that ends after `bytes`, and whether it ended between two.
fn read_all(mut bytes: &[u8]) -> Result<(Vec<Owned>, bool), TransferError> {
    let mut found = Vec::new();
    loop {
        match frame::parse(bytes, PAGE_BYTES)? {
            Parsed::Frame(frame, length) => {
                found.push(Owned::of(&frame));
                bytes = &bytes[length..];
            }
            Parsed::Needs(total) => {
                assert!(total > bytes.len());
                return Ok((found, bytes.is_empty()));
            }
        }
    }
}

proptest! {
    #[test]
    fn frames_come_back_as_they_went(frames in frames()) {
        prop_assert_eq!(read_all(&wire(&frames)), Ok((frames, true)));
    }

    /// What is cut off is never an error and never a frame: it may still come.
    #[test]
    fn a_start_of_a_stream_is_its_first_frames(frames in frames(), keep in any::<prop::sample::Index>()) {
        let bytes = wire(&frames);
        let keep = keep.index(bytes.len());
        let (found, whole) = read_all(&bytes[..keep]).unwrap();
        prop_assert_eq!(&found, &frames[..found.len()]);
        prop_assert!(found.len() < frames.len());
        prop_assert_eq!(whole, wire(&found).len() == keep);
    }

    /// Every flipped bit is noticed: nothing is read that was not sent.
    #[test]
    fn a_flipped_bit_makes_no_frame(frames in frames(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = wire(&frames);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        match read_all(&bytes) {
            Ok((found, _)) => prop_assert_eq!(&found, &frames[..found.len()]),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let untouched = frames.iter().scan(0, |end, frame| {
            *end += wire(std::slice::from_ref(frame)).len();
            Some(*end)
        }).take_while(|end| *end <= at).count();
        let (found, _) = read_all(&bytes[..wire(&frames[..untouched]).len()]).unwrap();
        prop_assert_eq!(found.len(), untouched);
        let rest = &bytes[wire(&frames[..untouched]).len()..];
        prop_assert!(!matches!(frame::parse(rest, PAGE_BYTES), Ok(Parsed::Frame(..))), "the damaged frame was read");
    }

    #[test]
    fn garbage_is_refused_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok((found, _)) = read_all(&bytes) {
            prop_assert!(found.is_empty(), "a checksum fitted by chance");
        }
    }

    /// Garbage behind an honest head and with an honest checksum: only the fields can be wrong.
    #[test]
    fn made_up_frames_are_refused_without_harm(kind in 0u8..10, payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = ((payload.len() + 5) as u32).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(&payload);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        match frame::parse(&bytes, PAGE_BYTES) {
            Ok(Parsed::Frame(frame, length)) => {
                prop_assert_eq!(length, bytes.len());
                prop_assert_eq!(wire(&[Owned::of(&frame)]), bytes);
            }
            Ok(Parsed::Needs(_)) => prop_assert!(false, "it was whole"),
            Err(_) => {}
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let page = Owned::Page(3, digest(3), vec![9; PAGE_BYTES]);
    let good = wire(std::slice::from_ref(&page));
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        read_all(&bytes).unwrap_err()
    };
    assert_eq!(changed(4, 99), TransferError::Kind(99));
    assert!(matches!(changed(3, 0xff), TransferError::Oversized { .. }));
    assert_eq!(changed(0, good[0] - 1), TransferError::Malformed("too short for its kind"));
    assert_eq!(changed(60, 0), TransferError::Checksum);
    // A page of another size has another length.
    let mut other = Vec::new();
    frame::write(&mut other, &Frame::Page { index: 0, digest: digest(0), bytes: &[0; PAGE_BYTES + 1] });
    assert!(matches!(read_all(&other), Err(TransferError::Oversized { .. })));
    // A later version greets at more length: its version is what is wrong with it.
    let mut later = frame_with(1, b"PLKV\x02\x00and more that only it understands, as long as it likes to be, or so");
    assert_eq!(read_all(&later), Err(TransferError::Version { theirs: 2 }));
    later = frame_with(1, b"HTTP\x01\x00");
    assert_eq!(read_all(&later), Err(TransferError::Stranger));
    later = frame_with(6, &[0xff, 0xfe]);
    assert_eq!(read_all(&later), Err(TransferError::Malformed("a reason that is no text")));
}

fn frame_with(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((payload.len() + 5) as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(payload);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

#[test]
fn a_long_reason_is_cut_at_a_character() {
    let bytes = wire(&[Owned::Abort("ä".repeat(MAX_REASON_BYTES))]);
    let (found, _) = read_all(&bytes).unwrap();
    assert_eq!(found, [Owned::Abort("ä".repeat(MAX_REASON_BYTES / 2))]);
}

#[test]
fn pages_are_due_in_order_and_of_their_chain() {
    let tokens: Vec<u32> = (0..40).collect();
    let mut chain = Chain::new(16, None);
    chain.extend(&tokens);
    let digests = with_tail(&chain, &tokens, None);
    assert_eq!(digests.len(), 3, "two full pages and a tail of 8");
    assert_eq!(&digests[..2], chain.digests());
    // With a seed every digest is another, that of the tail too, even when it is the first page.
    let salt = [1; 32];
    let short = [5, 6, 7];
    assert_ne!(
        with_tail(&Chain::new(16, None), &short, None),
        with_tail(&Chain::new(16, Some(salt)), &short, Some(&salt))
    );

    let page = |index: u32, digest: Digest| Page { index, digest, bytes: &[] };
    let mut due = Expected::new(digests.clone(), 1);
    assert_eq!(due.due(), 2);
    assert_eq!(due.take(&page(0, digests[0])), Err(TransferError::Order { index: 0, expected: 1 }));
    assert_eq!(due.take(&page(1, digests[2])), Err(TransferError::Chain { index: 1 }));
    assert_eq!(due.take(&page(1, digests[1])), Ok(()));
    assert_eq!(due.finish(1), Err(TransferError::Count { got: 1, expected: 2 }));
    assert_eq!(due.take(&page(2, digests[2])), Ok(()));
    assert_eq!(due.take(&page(3, digests[2])), Err(TransferError::Order { index: 3, expected: 3 }));
    assert_eq!(due.finish(1), Err(TransferError::Count { got: 1, expected: 2 }));
    assert_eq!(due.finish(2), Ok(()));
}
