//! `plimsoll sim fidelity` runs a whole fleet and the simulator on the same requests and says how far apart they are.

use plimsoll_end_to_end::{Process, binaries};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Four groups that share their first blocks, twice as many at once as one engine decodes well.
fn trace(rows_wanted: u64, path: &Path) {
    let mut rows = String::new();
    for row in 0..rows_wanted {
        let ids: Vec<u64> =
            (0..8).map(|block| if block < 5 { row % 4 * 100 + block } else { 1_000 + row * 8 + block }).collect();
        let _ = writeln!(
            rows,
            "{{\"timestamp\":{},\"input_length\":4000,\"output_length\":{},\"hash_ids\":{ids:?}}}",
            row * 250,
            100 + row % 7 * 40
        );
    }
    std::fs::write(path, rows).unwrap();
}

fn command(trace: &Path, json: &Path) -> Command {
    let mut command = Command::new(binaries::plimsoll());
    command.args(["sim", "fidelity", "--trace"]).arg(trace).arg("--json").arg(json);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulated_times_are_those_of_real_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, json) = (folder.path().join("trace.jsonl"), folder.path().join("fidelity.json"));
    trace(40, &rows);
    let mut command = command(&rows, &json);
    command.args(["--limit", "40"]);
    let mut process = Process::start("plimsoll sim fidelity", &mut command).unwrap();
    let status = process.ended(Duration::from_secs(180)).await;
    assert!(status.success(), "{status}\n{}", process.output());
    let verdict: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for side in ["real", "simulated"] {
        let side = &verdict[side];
        assert_eq!((side["requests"].as_u64(), side["failed"].as_object().map(|all| all.len())), (Some(40), Some(0)));
        let served: u64 = side["requests_of_engines"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!(served, 40, "{verdict}");
    }
    let hit = |side: &str| verdict[side]["hit_rate"].as_f64().unwrap();
    assert!(hit("real") > 0.3 && (hit("real") - hit("simulated")).abs() < 0.15, "{verdict}");
    // A machine that does not keep up measures itself; that is then said, and nothing else can be.
    if verdict["kept_up"] == true {
        for (figure, ratio) in verdict["ratio"].as_object().unwrap() {
            let ratio = ratio.as_f64().unwrap();
            assert!((0.67..1.5).contains(&ratio), "{figure}: {ratio} in {verdict}\n{}", process.output());
        }
    }
}

/// Without timing mode: what steps take is measured, and the simulator is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulated_times_are_those_of_engines_that_take_their_own_time() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name);
    let (rows, json, profile) = (of("trace.jsonl"), of("fidelity.json"), of("profile.toml"));
    trace(24, &rows);
    let mut command = command(&rows, &json);
    command.args(["--real-time", "--model", "4x512", "--instances", "1", "--limit", "24"]);
    command.args(["--load", "0.4", "--calibrate-s", "3", "--profile-out"]).arg(&profile);
    let mut process = Process::start("plimsoll sim fidelity --real-time", &mut command).unwrap();
    let status = process.ended(Duration::from_secs(240)).await;
    assert!(status.success(), "{status}\n{}", process.output());
    let verdict: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let number =
        |path: &str| verdict.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {verdict}"));
    for side in ["/real", "/simulated", "/real_time/at_pace/simulated"] {
        assert_eq!(number(&format!("{side}/requests")), 24.0, "{verdict}");
    }
    assert!((number("/real_time/busy_share") - 0.4).abs() < 0.05, "{verdict}");
    // Processor time is the engine's own, whoever else wants the machine.
    let steps = (number("/real_time/calibration/fit/steps"), number("/real_time/run/steps"));
    assert!(steps.0 >= 100.0 && steps.1 >= 100.0, "{verdict}");
    assert!(number("/real_time/calibration/fit/median_error") < 0.15, "{verdict}");
    let ratio = number("/real_time/run_fit/total_ratio");
    assert!((0.67..1.5).contains(&ratio), "the profile takes {ratio} of the replay's processor time: {verdict}");
    let stretched = number("/real_time/run/wall_over_cpu");
    assert!(verdict["kept_up"] == false || stretched <= 1.05, "{verdict}");
    if stretched < 1.5 {
        for figure in ["ttft_mean", "tpot_mean", "tpot_p90"] {
            let ratio = number(&format!("/real_time/at_pace/ratio/{figure}"));
            assert!((0.5..2.0).contains(&ratio), "{figure}: {ratio} in {verdict}\n{}", process.output());
        }
    }
    // What was measured is a profile as any other.
    let mut command = Command::new(binaries::plimsoll());
    command.args(["sim", "run", "--trace"]).arg(&rows).args(["--instances", "2", "--profile"]).arg(&profile);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
