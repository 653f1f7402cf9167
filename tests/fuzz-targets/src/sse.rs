//! Event streams: cutting them elsewhere changes no event, only whole events are handed out, and what is held back stays
//! within the limit.
//!
//! Input: a byte with the number of cuts, that many bytes with the length of each frame, then the stream.

use bytes::Bytes;
use plimsoll_protocol::sse::{SseSplitter, for_each_data};

const MOST_CUTS: usize = 32;

pub fn run(data: &[u8]) {
    let Some((&cuts, rest)) = data.split_first() else { return };
    let (cuts, stream) = rest.split_at((cuts as usize % MOST_CUTS).min(rest.len()));
    let frames = cut(stream, cuts);

    let mut whole = SseSplitter::new(stream.len());
    let at_once = feed(&mut whole, &[Bytes::copy_from_slice(stream)]);
    let mut parts = SseSplitter::new(stream.len());
    let in_frames = feed(&mut parts, &frames);

    assert_eq!([&in_frames[..], parts.unfinished()].concat(), stream, "bytes were lost or added");
    assert_eq!([&at_once[..], whole.unfinished()].concat(), stream, "bytes were lost or added");
    assert_eq!(datas(&in_frames), datas(&at_once), "other events after other cuts");
    assert_eq!(datas(&at_once), slow_datas(&at_once));
    assert_eq!(held(whole.unfinished()), held(parts.unfinished()));

    for limit in [0, 1, 7, 64] {
        within(limit, &frames);
    }
}

fn cut(stream: &[u8], lengths: &[u8]) -> Vec<Bytes> {
    let mut rest = stream;
    let mut frames = Vec::new();
    for &length in lengths {
        let (frame, after) = rest.split_at((length as usize).min(rest.len()));
        frames.push(Bytes::copy_from_slice(frame));
        rest = after;
    }
    frames.push(Bytes::copy_from_slice(rest));
    frames
}

fn feed(splitter: &mut SseSplitter, frames: &[Bytes]) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in frames {
        match splitter.feed(frame) {
            Ok(piece) => {
                ends_an_event(&piece);
                out.extend_from_slice(&piece);
            }
            Err(error) => panic!("{error}, and the whole stream is no longer"),
        }
    }
    out
}

fn ends_an_event(piece: &[u8]) {
    assert!(
        piece.is_empty() || piece.ends_with(b"\n\n") || piece.ends_with(b"\n\r\n"),
        "handed out a part of an event: {:?}",
        String::from_utf8_lossy(piece)
    );
}

fn within(limit: usize, frames: &[Bytes]) {
    let mut splitter = SseSplitter::new(limit);
    for frame in frames {
        let Ok(piece) = splitter.feed(frame) else { return };
        ends_an_event(&piece);
        assert!(splitter.unfinished().len() <= limit, "{} bytes held, {limit} allowed", splitter.unfinished().len());
    }
}

/// A blank line before an event is held back or handed out depending on the cuts; it means nothing.
fn held(rest: &[u8]) -> &[u8] {
    let mut rest = rest;
    while let Some(after) = rest.strip_prefix(b"\n").or_else(|| rest.strip_prefix(b"\r\n")) {
        rest = after;
    }
    rest
}

fn datas(events: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for_each_data(events, |data| all.push(data.into_owned()));
    all
}

/// WHATWG HTML 9.2.6 line by line, for streams without lone CR and without the bare field name `data`.
fn slow_datas(events: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut lines: Vec<&[u8]> = Vec::new();
    for line in events.split(|byte| *byte == b'\n') {
        let line = if line.ends_with(b"\r") { &line[..line.len() - 1] } else { line };
        if !line.is_empty() {
            lines.push(line);
            continue;
        }
        let values: Vec<&[u8]> = std::mem::take(&mut lines)
            .into_iter()
            .filter(|line| line.starts_with(b"data:"))
            .map(|line| if line[5..].starts_with(b" ") { &line[6..] } else { &line[5..] })
            .collect();
        if !values.is_empty() {
            all.push(values.join(&b'\n'));
        }
    }
    all
}
