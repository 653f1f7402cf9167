//! Events and answers of engines: the scan that looks at a few keys says what a whole JSON tree says.
//!
//! Compared are the input itself, where its keys are written plainly and once (the scan looks at bytes, and no engine
//! escapes a key or repeats it), and the same JSON written anew with and without white space.

mod reference;

use crate::json;
use plimsoll_pools::chunk::{
    AnswerError, AnswerFacts, ChunkFacts, ChunkKind, FinishCounter, StreamDialect, inspect_error_body,
};
use reference::Reading;
use serde_json::Value;

const DIALECTS: [StreamDialect; 2] = [StreamDialect::Openai, StreamDialect::SglangNative];

pub fn run(data: &[u8]) {
    error_body(data);
    let tree = json::tree(data);
    for dialect in DIALECTS {
        let facts = dialect.inspect(data);
        counted(&facts);
        let answer = dialect.inspect_answer(data);
        if let Err(error) = &answer {
            assert!(!error.to_string().is_empty());
        }
        match &tree {
            Ok(Some(tree)) => {
                if plainly_written(data, tree) {
                    compare(dialect, tree, &facts, answer);
                }
                anew(dialect, tree);
            }
            Ok(None) => {}
            Err(_) => {
                assert!(facts.finishes.is_empty() && facts.error.is_none() && facts.abort.is_none(), "read in garbage");
                assert!(answer.is_err(), "an answer that is not JSON: {answer:?}");
            }
        }
    }
}

fn error_body(data: &[u8]) {
    let error = inspect_error_body(data);
    assert!(!error.message.is_empty(), "an error without a message");
    assert!(error.message.len() <= 2048, "an error message of {} bytes", error.message.len());
    assert!(error.status.is_none_or(|status| (400..600).contains(&status)));
}

/// Whatever an engine says, the count of finished choices stays sane and cheap.
fn counted(facts: &ChunkFacts) {
    let mut counter = FinishCounter::new(2);
    counter.observe(facts);
    counter.observe(facts);
    assert!(counter.finished() as usize <= facts.finishes.len());
}

fn plainly_written(data: &[u8], tree: &Value) -> bool {
    !data.windows(2).any(|pair| pair == b"\\u") && !json::repeats_a_key(data, tree)
}

fn anew(dialect: StreamDialect, tree: &Value) {
    for text in [serde_json::to_vec(tree), serde_json::to_vec_pretty(tree)] {
        let Ok(text) = text else { panic!("a tree that cannot be written") };
        // Control characters are written as \u; in a key they make none of ours.
        compare(dialect, tree, &dialect.inspect(&text), dialect.inspect_answer(&text));
    }
}

fn compare(dialect: StreamDialect, tree: &Value, facts: &ChunkFacts, answer: Result<AnswerFacts, AnswerError>) {
    let is_object = tree.is_object();
    assert_eq!(facts.kind == ChunkKind::Event, is_object, "{tree}");
    if is_object {
        chunk(dialect, tree, facts);
    }
    match (Reading::of_answer(dialect, tree), answer) {
        (Some(wanted), Ok(got)) => {
            assert_eq!(wanted.finishes, reference::plain(&got.finishes), "{tree}");
            assert_eq!(wanted.usage, got.usage, "{tree}");
            assert_eq!(wanted.error_status, got.error.map(|error| error.status), "{tree}");
            assert_eq!(wanted.abort_status, got.abort.map(|abort| abort.status_code), "{tree}");
        }
        (None, Err(AnswerError::Shape)) => {}
        (wanted, got) => panic!("wanted {wanted:?}, got {got:?} for {tree}"),
    }
}

fn chunk(dialect: StreamDialect, tree: &Value, got: &ChunkFacts) {
    let wanted = Reading::of_chunk(dialect, tree);
    assert_eq!(wanted.finishes, reference::plain(&got.finishes), "{tree}");
    assert_eq!(wanted.error_status, got.error.as_ref().map(|error| error.status), "{tree}");
    assert_eq!(wanted.abort_status, got.abort.as_ref().map(|abort| abort.status_code), "{tree}");
    if reference::counts_in_place(dialect, tree) {
        assert_eq!(wanted.usage, got.usage, "{tree}");
    }
    // Output that is not noticed would be sent twice by a retry.
    assert!(got.tokens || !wanted.output, "output not seen in {tree}");
}
