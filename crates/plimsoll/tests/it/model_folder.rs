//! A model folder that cannot be served is refused before anything listens, with file and tensor.

use crate::program::run;
use serde_json::{Value, json};

#[test]
fn a_folder_that_does_not_fit_is_refused_with_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    assert_eq!(run(&["engine", "--export-model", path]).code, Some(0));
    let stderr = run(&["engine", "--export-model", path]).refused(2);
    assert!(stderr.contains("is not empty"), "{stderr}");
    let config = folder.path().join("config.json");
    let good = std::fs::read(&config).unwrap();
    let mut changed: Value = serde_json::from_slice(&good).unwrap();
    changed["intermediate_size"] = json!(144);
    std::fs::write(&config, changed.to_string()).unwrap();
    let stderr = run(&["engine", "--model", path, "--listen", "127.0.0.1:0"]).refused(2);
    let what = "model.safetensors: tensor model.layers.0.mlp.gate_proj.weight: has the shape [160, 64], the config asks for [144, 64]";
    assert!(stderr.contains(what), "{stderr}");
    std::fs::write(&config, good).unwrap();
    let weights = folder.path().join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let stderr = run(&["engine", "--model", path, "--listen", "127.0.0.1:0"]).refused(2);
    assert!(stderr.contains("model.safetensors: has ") && !stderr.contains("listening"), "{stderr}");
    std::fs::remove_file(config).unwrap();
    let stderr = run(&["engine", "--model", path]).refused(2);
    assert!(stderr.contains("config.json: cannot be read"), "{stderr}");
}
