use super::*;

fn stream_wire(tokens: std::ops::Range<u32>, finish: bool, done: bool) -> Vec<u8> {
    let mut text = String::new();
    for k in tokens.clone() {
        let reason = if finish && k + 1 == tokens.end { "\"stop\"" } else { "null" };
        text.push_str(&format!("data: {{\"delta\":\" tok{k}\",\"finish_reason\":{reason}}}\n\n: keep-alive\n\n"));
    }
    if done {
        text.push_str("data: [DONE]\n\n");
    }
    format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n\r\n", text.len()).into_bytes()
}

fn feed_split(wire: &[u8], at: usize, stream: bool, tokens: u32) -> anyhow::Result<Progress> {
    let mut answer = Answer::new(stream, tokens);
    answer.feed(&wire[..at])?;
    answer.feed(&wire[at..])
}

#[test]
fn a_good_stream_is_complete_at_every_split() {
    let wire = stream_wire(0..12, true, true);
    for at in 0..wire.len() {
        assert_eq!(feed_split(&wire, at, true, 12).unwrap(), Progress::Complete, "split at {at}");
    }
}

#[test]
fn the_first_token_is_what_begins_a_stream() {
    let wire = stream_wire(0..3, true, true);
    let head = wire::head_end(&wire).unwrap().unwrap();
    let mut answer = Answer::new(true, 3);
    assert_eq!(answer.feed(&wire[..head]).unwrap(), Progress::Silent);
    assert_eq!(answer.feed(&wire[head..head + 20]).unwrap(), Progress::Silent);
    assert_eq!(answer.feed(&wire[head + 20..head + 80]).unwrap(), Progress::Begun);
}

#[test]
fn loss_disorder_and_truncation_are_errors() {
    for (what, wire) in [
        ("a token is missing", stream_wire(0..11, true, true)),
        ("the first is missing", stream_wire(1..13, true, true)),
        ("no finish reason", stream_wire(0..12, false, true)),
        ("no [DONE]", stream_wire(0..12, true, false)),
        ("a failure", b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_vec()),
    ] {
        assert!(feed_split(&wire, 0, true, 12).is_err(), "{what} must be noticed");
    }
    let cut = stream_wire(0..12, true, true);
    let mut answer = Answer::new(true, 12);
    assert_eq!(answer.feed(&cut[..cut.len() - 8]).unwrap(), Progress::Begun);
    assert!(answer.closed().is_err());
}

#[test]
fn a_whole_answer_must_hold_the_last_token() {
    let body = "{\"content\":\" tok0 tok1\",\"finish_reason\":\"stop\"}";
    let wire = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for at in 0..wire.len() {
        assert_eq!(feed_split(wire.as_bytes(), at, false, 2).unwrap(), Progress::Complete);
    }
    assert!(feed_split(wire.as_bytes(), 0, false, 3).is_err());
}
