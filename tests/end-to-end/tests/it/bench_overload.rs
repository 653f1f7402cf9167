//! `plimsoll bench overload` runs a whole fleet, counts every request once, and shows that the control makes a difference.

use plimsoll_end_to_end::{Process, binaries};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

async fn run(folder: &Path, scenario: &str, control: &str, how: &[&str]) -> Value {
    let json = folder.join(format!("{scenario}-{control}.json"));
    let mut command = Command::new(binaries::plimsoll());
    command.args(["bench", "overload", "--scenario", scenario, "--control", control, "--json"]).arg(&json);
    command.args(["--seconds", "24", "--engines", "2"]).args(how);
    let mut process = Process::start("plimsoll bench", &mut command).unwrap();
    let status = process.ended(Duration::from_secs(120)).await;
    assert!(status.success(), "{status}\n{}", process.output());
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

fn count(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("{name} in {figures}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_counted_once_under_every_control() {
    let folder = tempfile::tempdir().unwrap();
    let mut offered = Vec::new();
    for control in ["none", "uniform", "static", "plimsoll"] {
        let report = run(folder.path(), "D", control, &["--time-scale", "2"]).await;
        let played = run(folder.path(), "D", control, &["--simulated"]).await;
        let names = |report: &Value| report.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&played), names(&report));
        assert_eq!((&played["simulated"], &report["simulated"]), (&true.into(), &false.into()));
        assert_eq!(count(&played["all"], "requests"), count(&report["all"], "requests"), "the same plan");
        let all = &report["all"];
        let classes: Vec<&Value> = ["high", "medium", "low"].map(|class| &report["classes"][class]).to_vec();
        assert_eq!(classes.iter().map(|class| count(class, "requests")).sum::<u64>(), count(all, "requests"));
        assert_eq!(count(all, "failed"), 0, "{control}: {all}");
        for class in classes {
            let missed = ["rejected", "gave_up", "failed"].iter().map(|name| count(class, name)).sum::<u64>();
            let kept = class["slo_attainment"].as_f64().unwrap() * count(class, "requests") as f64;
            assert!(missed as f64 + kept <= count(class, "requests") as f64 + 1e-6, "{control}: {class}");
        }
        if control == "none" {
            assert_eq!(count(all, "rejected"), 0);
            assert_eq!(count(&report, "sends"), count(all, "requests"));
        }
        offered.push(count(all, "requests"));
    }
    offered.dedup();
    assert_eq!(offered.len(), 1, "every control is offered the same: {offered:?}");
}
