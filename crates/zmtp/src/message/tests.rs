use super::*;

fn read(limit: usize, bytes: &[u8]) -> Result<Vec<Incoming>, ProtocolError> {
    let mut decoder = Decoder::new(limit);
    let mut input = BytesMut::from(bytes);
    let mut all = Vec::new();
    while let Some(one) = decoder.next(&mut input)? {
        all.push(one);
    }
    Ok(all)
}

fn message(frames: &[&[u8]]) -> Incoming {
    Incoming::Message(frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect())
}

#[test]
fn what_is_written_is_read_however_it_arrives() {
    let long = vec![7u8; 300];
    let messages: [&[&[u8]]; 3] = [&[b"topic", b"\0\0\0\0\0\0\0\x01", &long], &[b""], &[b"", b"x"]];
    let bytes: Vec<u8> = messages.iter().flat_map(|frames| encode(frames)).collect();
    assert_eq!(read(1 << 10, &bytes).unwrap(), messages.map(message));
    // Byte by byte.
    let mut decoder = Decoder::new(1 << 10);
    let mut input = BytesMut::new();
    let mut all = Vec::new();
    for byte in &bytes {
        input.put_u8(*byte);
        while let Some(one) = decoder.next(&mut input).unwrap() {
            all.push(one);
        }
    }
    assert_eq!(all, messages.map(message));
}

/// As libzmq writes them.
#[test]
fn frames_have_the_bytes_of_rfc_23() {
    assert_eq!(&encode(&[&b"ab"[..], b"c"])[..], b"\x01\x02ab\x00\x01c");
    assert_eq!(&encode(&[vec![0; 256]])[..9], b"\x02\0\0\0\0\0\0\x01\0");
    assert_eq!(&encode_command("READY", b"x")[..], b"\x04\x07\x05READYx");
    let ready = read(100, b"\x04\x07\x05READYx").unwrap();
    assert_eq!(ready, [Incoming::Command { name: Bytes::from("READY"), body: Bytes::from("x") }]);
}

#[test]
fn a_length_is_judged_before_its_bytes() {
    // One head of nine bytes that promises 64 TiB.
    let mut head = vec![LONG];
    head.extend_from_slice(&(1u64 << 46).to_be_bytes());
    assert!(matches!(read(1 << 20, &head), Err(ProtocolError::TooLong { limit: 1_048_576, .. })));
    head[1..].copy_from_slice(&u64::MAX.to_be_bytes());
    assert!(matches!(read(1 << 20, &head), Err(ProtocolError::TooLong { .. })));
    // The limit is for all frames together, and there is one for their number.
    let parts = encode(&[vec![0; 60], vec![0; 60]]);
    assert!(matches!(read(100, &parts), Err(ProtocolError::TooLong { bytes: 120, .. })));
    assert!(read(120, &parts).is_ok());
    let crowd = encode(&vec![b""; 65]);
    assert!(matches!(read(100, &crowd), Err(ProtocolError::TooManyFrames)));
}

#[test]
fn broken_frames_are_refused() {
    for (bytes, what) in [
        (&b"\x08\x00"[..], "unknown flag"),
        (b"\x05\x02\x01A", "command with more to come"),
        (b"\x01\x00\x04\x02\x01A", "command inside a message"),
        (b"\x04\x00", "command without a name"),
        (b"\x04\x02\x05A", "name longer than the command"),
    ] {
        assert!(read(100, bytes).is_err(), "{what}");
    }
}
