//! Metric scrapes: a line is a sample or is passed over, and what an exporter escaped comes back as it was.

use plimsoll_pools::prometheus::{Sample, parse_line, samples};

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines = text.split('\n').count();
    let mut read = 0;
    for sample in samples(&text) {
        read += 1;
        assert!(!sample.name.is_empty());
        again(&sample);
    }
    assert!(read <= lines);
    round_trip(&text);
}

/// A sample written anew from what was read says the same.
fn again(sample: &Sample<'_>) {
    let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let mut written = Vec::new();
    for (name, raw) in sample.labels() {
        if !plain(name) {
            return;
        }
        written.push(format!("{name}=\"{raw}\""));
    }
    let line = format!("{}{{{}}} {}", sample.name, written.join(","), sample.value);
    let Some(read) = parse_line(&line) else { panic!("no longer a sample: {line}") };
    assert_eq!(read.name, sample.name);
    assert_eq!(read.labels().collect::<Vec<_>>(), sample.labels().collect::<Vec<_>>());
    assert!(read.value == sample.value || read.value.is_nan() && sample.value.is_nan());
    assert_eq!(read.count(), sample.count());
    for (name, _) in sample.labels() {
        assert_eq!(read.label(name), sample.label(name));
    }
}

/// Any text can be a label's value.
fn round_trip(text: &str) {
    let half = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (a, b) = text.split_at(half);
    let line = format!("vllm:m_total{{a=\"{}\",b=\"{}\",}} 7 1700000000", escape(a), escape(b));
    let Some(sample) = parse_line(&line) else { panic!("no sample: {line:?}") };
    assert_eq!((sample.name, sample.value, sample.count()), ("vllm:m_total", 7.0, Some(7)));
    assert_eq!(sample.label("a").as_deref(), Some(a));
    assert_eq!(sample.label("b").as_deref(), Some(b));
    assert_eq!(sample.label("c"), None);
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
