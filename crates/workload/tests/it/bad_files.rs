//! A broken trace is refused with file, line, column and what was expected.

use plimsoll_workload::traces::{Format, Trace};
use std::io::Write;
use std::path::PathBuf;

const ROW: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;

fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("plimsoll-workload-{}-{name}", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(content).unwrap();
    path
}

/// The complaint about a file of this content.
fn complaint(name: &str, content: &[u8]) -> String {
    let path = file(name, content);
    let error = Trace::survey(&path, None).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    error[path.display().to_string().len()..].trim_start().to_owned()
}

#[test]
fn each_complaint_names_its_place() {
    let second = |line: &str| format!("{ROW}\n{line}\n").into_bytes();
    let cases: [(&str, Vec<u8>, &str); 9] = [
        ("empty", vec![], "line 1 column 1: the file is empty"),
        ("csv", b"TIMESTAMP,ContextTokens\n".to_vec(), "line 1 column 1: not JSON; expected"),
        ("other", b"{\"prompt\":\"hello\"}\n".to_vec(), "line 1 column 1: expected a JSON object with `hash_ids`"),
        ("raw", b"{\"id\":\"x\",\"requests\":[]}\n".to_vec(), "line 1 column 1: this is the raw agentic trace"),
        ("cut", second(&ROW[..40]), "line 2 column 40: EOF while parsing"),
        ("type", second(&ROW.replace("600", "\"x\"")), "line 2 column 36: invalid type: string \"x\", expected u64"),
        (
            "count",
            second(&ROW.replace("[0, 1]", "[0]")),
            "line 2 column 59: 1 hash_ids for input_length 600; expected 2",
        ),
        ("utf8", [ROW.as_bytes(), b"\n\xff\xfe\n"].concat(), "line 2 column 1: not UTF-8"),
        ("missing", second(r#"{"timestamp": 0}"#), "line 2 column 16: missing field `input_length`"),
    ];
    for (name, content, wanted) in cases {
        let got = complaint(name, &content);
        assert!(got.starts_with(wanted), "{name}: {got:?} does not start with {wanted:?}");
    }
}

#[test]
fn an_agentic_call_must_add_up() {
    let session = r#"{"id":"a","block_size":64,"tool_tokens":64,"system_tokens":64,"reqs":[[0.0,1.0,0.0,200,5,"x","n",null,0,[[1,3]]],[1.0,1.0,0.0,264,5,"x","n",null,9,[[4,1]]]]}"#;
    let got = complaint("agentic", session.as_bytes());
    assert!(got.starts_with("line 1 column 1: call 1 lists 10 blocks of which 9 are kept; expected 4"), "{got}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_compressed_file_cut_short_is_an_error_and_not_an_end() {
    let rows = format!("{ROW}\n").repeat(50_000);
    for packed in [zstd::encode_all(rows.as_bytes(), 1).unwrap(), gzip(rows.as_bytes())] {
        // Without its last bytes all rows may be there, but nobody knows.
        for length in [packed.len() / 2, packed.len() - 3] {
            let got = complaint("short", &packed[..length]);
            assert!(got.contains("reading stopped") && got.contains("cut short"), "{got}");
        }
    }
    let mut broken = gzip(rows.as_bytes());
    let at = broken.len() - 6;
    broken[at] ^= 1;
    assert!(complaint("broken", &broken).contains("reading stopped"));
}

#[test]
fn compression_and_format_are_told_by_content() {
    let rows = format!("{ROW}\n\n{ROW}\n");
    let members = [gzip(format!("{ROW}\n").as_bytes()), gzip(format!("\n{ROW}\n").as_bytes())].concat();
    for (name, content) in [
        ("plain.zst", rows.clone().into_bytes()),
        ("packed", zstd::encode_all(rows.as_bytes(), 1).unwrap()),
        ("plain.gz", rows.clone().into_bytes()),
        ("zipped", gzip(rows.as_bytes())),
        ("members", members),
    ] {
        let path = file(name, &content);
        let trace = Trace::open(&path).unwrap();
        assert_eq!(trace.format(), Format::Mooncake);
        assert_eq!(trace.map(Result::unwrap).count(), 2);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Trace::open(&PathBuf::from("no/such/trace.jsonl")).err().unwrap().to_string();
    assert!(error.starts_with("no/such/trace.jsonl: cannot be read"), "{error}");
}
