//! Every built-in profile reads, says who it is, and what is wrong with a broken one is said by file and key.

use super::*;
use crate::profile::Founded;

#[test]
fn every_profile_reads_and_is_named_after_its_file() {
    for name in names() {
        let profile = find(name).unwrap();
        assert_eq!(profile.name, name);
        let serving = &profile.serving;
        assert!(serving.kv_tokens >= serving.context_tokens, "{name}: one request must fit");
        assert!(profile.gpus() >= 1);
        let per_gpu = f64::from(profile.model.layers) * profile.model.kv_bytes_token_layer;
        // Each stored once: a rank's GPUs share the heads.
        assert_eq!(serving.kv_bytes_token as f64, per_gpu * f64::from(profile.machine.tensor_parallel), "{name}");
        assert_eq!(profile.founded == Founded::Measured, name.contains("llama3"), "{name}");
    }
    // Room for KV as the workload notes have it.
    let room = |name: &str| find(name).unwrap().serving.kv_tokens;
    assert_eq!([room("h100-llama3-70b-tp8") / 10_000, room("h100-llama3-70b-tp4") / 10_000], [128, 42]);
    assert_eq!(room("h100-llama3-8b") / 10_000, 41);
}

#[test]
fn an_unknown_name_is_told_the_known_ones() {
    let error = find("h100").unwrap_err().to_string();
    assert!(error.starts_with("there is no timing profile \"h100\"; use one of h100-llama3-8b, "), "{error}");
}

#[test]
fn a_broken_profile_is_refused_with_file_and_key() {
    let (_, text) = FILES[0];
    let why = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Profile::parse("mine.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let missing = why("efficiency = ", "# ");
    assert!(missing.starts_with("mine.toml: ") && missing.contains("missing field `efficiency`"), "{missing}");
    let unknown = why("c1_us = ", "c2_us = ");
    assert!(unknown.starts_with("mine.toml: ") && unknown.contains("unknown field `c2_us`"), "{unknown}");
    assert_eq!(why("sms = 132", "sms = 0"), "mine.toml: machine.sms: must be above 0");
    assert_eq!(
        why("token_budget = 8192", "token_budget = 100"),
        "mine.toml: serving.token_budget: must be at least max_running"
    );
    assert_eq!(why("skew = 0.04", "skew = nan"), "mine.toml: kernel.skew: must be from 0 to 1");
    assert_eq!(why("[dense]\nat = [1.0, ", "[dense]\nat = [-1.0, "), "mine.toml: dense: numbers must not be negative");
    assert_eq!(why("[head]\nat = [1.0, ", "[head]\nat = [1000.0, "), "mine.toml: head: `at` must rise");
    assert!(why("\"K0\"", "\"K9\"").contains("K9"), "{}", why("\"K0\"", "\"K9\""));
}
