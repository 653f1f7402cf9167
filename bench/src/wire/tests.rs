use super::*;

fn take_all(mut body: Body, pieces: &[&[u8]]) -> anyhow::Result<(Vec<u8>, usize, bool)> {
    let (mut out, mut taken) = (Vec::new(), 0);
    for piece in pieces {
        let (n, done) = body.feed(piece, |data| out.extend_from_slice(data))?;
        taken += n;
        if done {
            return Ok((out, taken, true));
        }
    }
    Ok((out, taken, false))
}

#[test]
fn chunked_body_is_the_same_at_every_split() {
    let wire = b"4;ext=1\r\nwiki\r\nA\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\nNEXT";
    let complete = wire.len() - "NEXT".len();
    for first in 0..wire.len() {
        for second in first..wire.len() {
            let pieces = [&wire[..first], &wire[first..second], &wire[second..]];
            let (out, taken, done) = take_all(Body::Chunked(Chunked::default()), &pieces).unwrap();
            assert_eq!(out, b"wiki0123456789", "splits {first} and {second}");
            assert!(done && taken == complete, "splits {first} and {second}: took {taken}");
        }
    }
}

#[test]
fn chunked_body_without_its_end_is_not_complete() {
    let (out, _, done) = take_all(Body::Chunked(Chunked::default()), &[b"4\r\nwiki\r\n0\r\n"]).unwrap();
    assert_eq!(out, b"wiki");
    assert!(!done);
}

#[test]
fn broken_chunk_sizes_are_refused() {
    for wire in ["xyz\r\n", "2\r\nabc\r\n", "ffffffffffffffffff\r\n"] {
        assert!(take_all(Body::Chunked(Chunked::default()), &[wire.as_bytes()]).is_err(), "{wire:?}");
    }
}

#[test]
fn length_body_leaves_the_next_message_alone() {
    let (out, taken, done) = take_all(Body::Length(5), &[b"he", b"lloHTTP/1.1"]).unwrap();
    assert_eq!((out.as_slice(), taken, done), (b"hello".as_slice(), 5, true));
}

#[test]
fn headers_are_found_whatever_their_case() {
    let head = b"HTTP/1.1 200 OK\r\nContent-LENGTH:  12 \r\nX: y\r\n\r\n";
    assert_eq!(header(head, "content-length"), Some(b"12".as_slice()));
    assert!(matches!(framing(head).unwrap(), Some(Body::Length(12))));
    assert!(framing(b"HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n").is_err());
    assert!(framing(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n").unwrap().is_none());
}
