use super::*;
use crate::wire::{Body, Chunked};

#[test]
fn knobs_survive_the_query_string() {
    let knobs = Knobs { stream: true, tokens: 7, pad_bytes: 9, ttft_us: 20_000, itl_us: 2_000 };
    assert_eq!(Knobs::from_query(&knobs.to_query()).unwrap(), knobs);
    assert!(Knobs::from_query("speed=1").is_err());
}

#[test]
fn a_stream_holds_every_token_once_and_ends_with_done() {
    let answer = Answer::new(Knobs { stream: true, tokens: 3, ..Knobs::default() });
    let mut wire: Vec<u8> = (0..3).flat_map(|k| answer.event(k).to_vec()).collect();
    wire.extend(&answer.done);
    let mut text = Vec::new();
    let (taken, done) = Body::Chunked(Chunked::default()).feed(&wire, |d| text.extend_from_slice(d)).unwrap();
    assert!(done && taken == wire.len());
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.matches("data: ").count(), 4);
    assert_eq!(text.matches("\"stop\"").count(), 1);
    assert!(text.contains(" tok0\"") && text.contains(" tok2\"") && text.ends_with("data: [DONE]\n\n"));
}

#[test]
fn long_streams_repeat_their_events_but_end_with_stop() {
    let answer = Answer::new(Knobs { stream: true, tokens: 5000, ..Knobs::default() });
    assert_eq!(answer.event(1024), answer.event(0));
    let last = String::from_utf8(answer.event(4999).to_vec()).unwrap();
    assert!(last.contains("tok4999\"") && last.contains("\"stop\""));
}
