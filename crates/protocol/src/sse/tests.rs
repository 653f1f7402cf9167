use super::*;

fn split_all(frames: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let mut splitter = SseSplitter::new(1 << 20);
    let mut out = Vec::new();
    for frame in frames {
        out.extend_from_slice(&splitter.feed(&Bytes::copy_from_slice(frame)).unwrap());
    }
    (out, splitter.unfinished().to_vec())
}

fn datas(events: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for_each_data(events, |d| all.push(d.into_owned()));
    all
}

#[test]
fn whole_events_pass_without_a_copy() {
    let frame = Bytes::from_static(b"data: {\"a\":1}\n\ndata: [DONE]\n\n");
    let mut splitter = SseSplitter::new(100);
    let out = splitter.feed(&frame).unwrap();
    assert_eq!(out.as_ptr(), frame.as_ptr());
    assert_eq!(out, frame);
}

/// However the bytes are cut, the same events come out, and never a part of one.
#[test]
fn cutting_anywhere_changes_nothing() {
    for text in [
        &b"data: one\n\ndata: two\n\ndata: [DONE]\n\n"[..],
        b"data: one\r\n\r\ndata: two\r\n\r\n",
        b": comment\n\nevent: x\ndata: a\ndata: b\n\ndata:c\n\n",
        "data: \u{e9}\u{1F600}\n\ndata: tail without end".as_bytes(),
    ] {
        let whole = split_all(&[text]);
        for a in 0..text.len() {
            for b in a..text.len() {
                let mut splitter = SseSplitter::new(1 << 20);
                let mut out = Vec::new();
                for part in [&text[..a], &text[a..b], &text[b..]] {
                    let piece = splitter.feed(&Bytes::copy_from_slice(part)).unwrap();
                    // What is forwarded ends at an event's end; a CRLF pair may be completed by the next piece.
                    assert!(
                        piece.is_empty() || matches!(piece.last(), Some(b'\n' | b'\r')),
                        "{piece:?} cut at {a},{b}"
                    );
                    out.extend_from_slice(&piece);
                }
                assert_eq!(datas(&out), datas(&whole.0), "cut at {a},{b} of {text:?}");
            }
        }
    }
}

#[test]
fn an_unfinished_event_is_held_back() {
    let (out, rest) = split_all(&[b"data: one\n\ndata: {\"half\":"]);
    assert_eq!(out, b"data: one\n\n");
    assert_eq!(rest, b"data: {\"half\":");
}

#[test]
fn an_endless_event_is_an_error_and_not_memory() {
    let mut splitter = SseSplitter::new(1000);
    let mut fed = 0;
    let error = loop {
        fed += 100;
        assert!(fed <= 1200, "the limit did not hold");
        if let Err(e) = splitter.feed(&Bytes::from(vec![b'x'; 100])) {
            break e;
        }
    };
    assert_eq!(error, EventTooLong(1000));
}

#[test]
fn data_lines_are_joined_and_comments_skipped() {
    assert_eq!(datas(b": hi\n\ndata: a\ndata: b\nid: 4\n\ndata:c\r\n\r\n"), vec![b"a\nb".to_vec(), b"c".to_vec()]);
}
