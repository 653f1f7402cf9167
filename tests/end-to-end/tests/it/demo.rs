//! `plimsoll demo`: the main job, end to end, and no process left behind.

use crate::skipped;
use plimsoll_end_to_end::{PATIENCE, Process, binaries, eventually};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn start(args: &[&str]) -> Process {
    let mut command = Command::new(binaries::plimsoll());
    command.arg("demo").args(args);
    Process::start("plimsoll demo", &mut command).unwrap()
}

/// Runs a demo to its end and reads what it wrote.
async fn run(args: &[&str], json: &Path, within: Duration) -> Value {
    let mut args = args.to_vec();
    let file = json.to_str().unwrap();
    args.extend(["--exit", "--json", file]);
    let mut demo = start(&args);
    let status = demo.ended(within).await;
    assert!(status.success(), "{status}\n{}", demo.output());
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

fn all_answered(report: &Value) {
    let requests = report["requests"].as_u64().unwrap();
    assert!(requests > 0, "{report}");
    assert_eq!(report["completed"].as_u64(), Some(requests), "{report}");
    assert_eq!(report["errors"].as_u64(), Some(0), "{report}");
}

/// The folder of shared traces, where this machine has one.
fn traces() -> Option<PathBuf> {
    let named = std::env::var_os("PLIMSOLL_SHARED").filter(|path| !path.is_empty()).map(PathBuf::from);
    let shared = named.unwrap_or_else(|| binaries::workspace().join("../shared"));
    Some(shared.join("traces")).filter(|folder| folder.is_dir())
}

/// Processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent)
    })
    .collect()
}

fn is_ours(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.contains("plimsoll") && !status.contains("State:\tZ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_demo_ends_with_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let report =
        run(&["--engines", "2", "--limit", "2"], &folder.path().join("d.json"), Duration::from_secs(240)).await;
    all_answered(&report);
    for time in ["ttft_ms", "itl_ms"] {
        let at = |q: &str| report[time][q].as_f64().unwrap_or(-1.0);
        assert!(at("p50") > 0.0 && at("p50") <= at("p90") && at("p90") <= at("p99"), "{report}");
    }
    assert!(report["output_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert!((0.0..=1.0).contains(&report["hit_rate"].as_f64().unwrap()), "{report}");
    assert_eq!(report["engines"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_leaves_no_process() {
    for kill in [false, true] {
        let mut demo = start(&["--engines", "2", "--limit", "50"]);
        let started = eventually("its gateway and engines", PATIENCE, || async {
            let ids = children(demo.id());
            if ids.len() >= 3 { Ok(ids) } else { Err(demo.output()) }
        })
        .await;
        if kill {
            demo.kill();
        } else {
            demo.signal(Signal::INT);
            let status = demo.ended(PATIENCE).await;
            assert_eq!(status.code(), Some(130), "{}", demo.output());
        }
        eventually("every child to be gone", PATIENCE, || async {
            let left: Vec<u32> = started.iter().copied().filter(|id| is_ours(*id)).collect();
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_rows_of_mooncake_are_all_answered() {
    let Some(traces) = traces() else { return skipped("five_hundred_rows_of_mooncake", "no shared traces here") };
    let folder = tempfile::tempdir().unwrap();
    let trace = traces.join("mooncake_conversation.jsonl.zst");
    let args = ["--trace", trace.to_str().unwrap(), "--limit", "500"];
    let report = run(&args, &folder.path().join("d.json"), Duration::from_secs(280)).await;
    all_answered(&report);
    assert_eq!(report["requests"], 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_agentic_sessions_are_all_answered() {
    let Some(traces) = traces() else { return skipped("twenty_agentic_sessions", "no shared traces here") };
    let folder = tempfile::tempdir().unwrap();
    let trace = traces.join("agentic_weka_compact.jsonl.zst");
    let args = ["--trace", trace.to_str().unwrap(), "--limit", "20"];
    let report = run(&args, &folder.path().join("d.json"), Duration::from_secs(280)).await;
    all_answered(&report);
    assert!(report["hit_rate"].as_f64().unwrap() > 0.5, "agents' prefixes repeat: {}", report["hit_rate"]);
}
