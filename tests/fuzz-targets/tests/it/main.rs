//! The committed corpus and seeded mutations of it, on stable Rust.
//!
//! `PLIMSOLL_FUZZ_SEED` repeats a failure, `PLIMSOLL_FUZZ_FACTOR` multiplies the number of mutations.

#![allow(clippy::unwrap_used, reason = "helpers outside test functions are tests too")]

use plimsoll_fuzz_targets::mutate::{DICTIONARY, Draw, mutate, words};
use plimsoll_fuzz_targets::{TARGETS, Target};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus_folder().join(target.name);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number")))
}

/// Runs one input; a failure names what repeats it.
fn run(target: &Target, what: &str, input: &[u8]) {
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    assert!(outcome.is_ok(), "target {} fails on {what}: {:?}", target.name, String::from_utf8_lossy(input));
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = corpus(target);
    assert!(corpus.len() >= 5, "a corpus of {} files", corpus.len());
    for (path, input) in &corpus {
        run(target, &path.file_name().unwrap().to_string_lossy(), input);
    }
    let inputs: Vec<_> = corpus.into_iter().map(|(_, input)| input).collect();
    let words = words(DICTIONARY);
    if let Some(seed) = number("PLIMSOLL_FUZZ_SEED") {
        return run(target, "the given seed", &mutate(&inputs, &words, seed));
    }
    let mut seeds = Draw(0x5EED);
    for _ in 0..target.mutations * number("PLIMSOLL_FUZZ_FACTOR").unwrap_or(1) {
        let seed = seeds.draw();
        run(target, &format!("PLIMSOLL_FUZZ_SEED={seed}"), &mutate(&inputs, &words, seed));
    }
}

macro_rules! replays {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        /// A target without a test, or a corpus without a target, would be looked at by nobody.
        #[test]
        fn every_target_has_a_test_a_corpus_and_a_fuzz_program() {
            let tested = BTreeSet::from([$(stringify!($name).to_owned()),*]);
            let targets: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
            assert_eq!(targets, tested);
            let names = |folder: &Path| -> BTreeSet<String> {
                let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
                std::fs::read_dir(folder).unwrap().map(|entry| stem(entry.unwrap().path())).collect()
            };
            assert_eq!(targets, names(&corpus_folder()));
            assert_eq!(targets, names(&corpus_folder().join("../fuzz_targets")));
        }
    };
}

replays!(chunk, headers, http_answer, kv_events, prometheus, request, settings, sse, zmtp_frames);

#[test]
fn the_corpus_stays_small() {
    let bytes: usize = TARGETS.iter().flat_map(corpus).map(|(_, input)| input.len()).sum();
    assert!(bytes < 300_000, "{bytes} bytes");
}

#[test]
fn mutations_repeat_and_differ() {
    let (corpus, words) = (vec![b"{\"a\":1}".to_vec(), b"[2]".to_vec()], words(DICTIONARY));
    assert!(words.len() > 50 && words.contains(&b"\r\n\r\n".to_vec()), "the dictionary was not read");
    let made: Vec<_> = (0..200).map(|seed| mutate(&corpus, &words, seed)).collect();
    assert_eq!(made, (0..200).map(|seed| mutate(&corpus, &words, seed)).collect::<Vec<_>>());
    assert!(made.iter().collect::<BTreeSet<_>>().len() > 100);
}
