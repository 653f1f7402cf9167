//! The engine against independent implementations on the same weights: numpy always (where there is a Python with it),
//! PyTorch's `transformers` when asked for, because that installs gigabytes.
//!
//! `tests/python/reference.py` makes small random models of each family and says what they answer. Python:
//! `PLIMSOLL_PYTHON`, else `.venv` of the repository. With a Python that has `torch` and `transformers` in
//! `PLIMSOLL_TRANSFORMERS_PYTHON` the expectations come from there.

use plimsoll_engine::model::folder::Folder;
use plimsoll_engine::model::{KvStore, Model, Run, Want};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODELS: [&str; 6] = ["llama", "llama3", "llama-biased", "qwen2", "qwen3", "qwen3-wide"];

#[derive(Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
    /// Smallest distance between the best two logits: what a difference may be before it changes a token.
    gap: f32,
}

fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PLIMSOLL_PYTHON").filter(|path| !path.is_empty()).map(PathBuf::from);
    let python = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"));
    let has = Command::new(&python).args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success());
    has.then_some(python)
}

fn reference(python: &Path, command: &str, folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/reference.py");
    let output = Command::new(python).arg(script).arg(command).arg(folder).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "reference.py {command}: {out}{err}");
    print!("{out}");
}

/// Logits after each token of the prompt, and 256 greedy tokens.
fn answer(folder: &Path, prompt: &[u32]) -> (Vec<f32>, Vec<u32>) {
    let Folder { config, weights, .. } = Folder::open(folder).unwrap();
    let mut kv = KvStore::new(&config, 32, 16);
    let pages: Vec<u32> = (0..32).rev().collect();
    let mut model = Model::with_weights(config, weights);
    let whole = Run { tokens: prompt, start: 0, pages: &pages, want: Want::LogitsFrom(0) };
    let logits = model.forward(&[whole], &mut kv).logits;
    let mut last = logits[logits.len() - model.logit_count()..].to_vec();
    let mut greedy = Vec::new();
    for position in prompt.len()..prompt.len() + 256 {
        let best = (0..last.len()).fold(0, |best, id| if last[id] > last[best] { id } else { best });
        greedy.push(best as u32);
        let next = Run { tokens: &[best as u32], start: position, pages: &pages, want: Want::Logits };
        last = model.forward(&[next], &mut kv).logits;
    }
    (logits, greedy)
}

fn compare(folder: &Path) {
    for name in MODELS {
        let folder = folder.join(name);
        let expected: Expected = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        let (logits, greedy) = answer(&folder, &expected.prompt);
        let vocab = expected.logits[0].len();
        let mut worst = 0f32;
        for (position, row) in expected.positions.iter().zip(&expected.logits) {
            let own = &logits[position * vocab..][..vocab];
            worst = own.iter().zip(row).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
        }
        println!("{name}: off by {worst:.2e}; the best two logits are never closer than {:.2e}", expected.gap);
        assert!(worst < 1e-4, "{name}: logits off by {worst}");
        assert_eq!(expected.greedy.len(), 256);
        assert_eq!(greedy, expected.greedy, "{name}: best two logits as close as {}", expected.gap);
        let different: std::collections::BTreeSet<_> = greedy.iter().collect();
        assert!(different.len() > 20, "{name}: an answer that says something");
    }
}

#[test]
fn numpy_computes_the_same_logits_and_tokens() {
    let Some(python) = python() else {
        println!("passed over: no Python with `numpy`; set PLIMSOLL_PYTHON or run ./test");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    reference(&python, "make", folder.path());
    compare(folder.path());
}

#[test]
fn transformers_computes_the_same_logits_and_tokens() {
    let Some(python) = std::env::var_os("PLIMSOLL_TRANSFORMERS_PYTHON").map(PathBuf::from) else {
        println!("passed over: set PLIMSOLL_TRANSFORMERS_PYTHON to a Python with `torch` and `transformers`");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    reference(&python, "make", folder.path());
    reference(&python, "transformers", folder.path());
    compare(folder.path());
}
