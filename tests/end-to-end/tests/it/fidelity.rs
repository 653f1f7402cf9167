//! `plimsoll sim fidelity` runs a whole fleet and the simulator on the same requests and says how far apart they are.

use plimsoll_end_to_end::{Process, binaries};
use serde_json::Value;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulated_times_are_those_of_real_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, json) = (folder.path().join("trace.jsonl"), folder.path().join("fidelity.json"));
    // Four groups that share their first blocks, twice as many at once as one engine decodes well.
    let mut rows = String::new();
    for row in 0..40u64 {
        let ids: Vec<u64> =
            (0..8).map(|block| if block < 5 { row % 4 * 100 + block } else { 1_000 + row * 8 + block }).collect();
        let _ = writeln!(
            rows,
            "{{\"timestamp\":{},\"input_length\":4000,\"output_length\":{},\"hash_ids\":{ids:?}}}",
            row * 250,
            100 + row % 7 * 40
        );
    }
    std::fs::write(&trace, rows).unwrap();
    let mut command = Command::new(binaries::plimsoll());
    command.args(["sim", "fidelity", "--limit", "40", "--trace"]).arg(&trace).arg("--json").arg(&json);
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
