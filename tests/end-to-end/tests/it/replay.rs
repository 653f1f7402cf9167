//! What a gateway decided, made again from its log: `plimsoll sim replay-decisions`.

use crate::{COMPLETIONS, fake, set_fault};
use plimsoll_end_to_end::{Plan, binaries};
use plimsoll_fakes::{Dialect, FakeEngine, Fault};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn replay(log: &Path) -> Output {
    Command::new(binaries::plimsoll()).args(["sim", "replay-decisions", "--log"]).arg(log).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_made_again_to_the_same_choices_and_one_that_was_changed_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let engines = [fake(Dialect::Vllm).await, fake(Dialect::Sglang).await, fake(Dialect::Vllm).await];
    for policy in ["least_delay", "least_wait", "round_robin", "power_of_two"] {
        let file = folder.path().join(format!("{policy}.jsonl"));
        // One refuses now and then, so that second attempts are in the log too.
        let plan = Plan::with(engines.iter().map(FakeEngine::url)).arg("--policy").arg(policy);
        let plan = plan.arg("--decision-log").arg(&file).set("policy.seed", 7).set("health.request_failures", 1_000);
        let gateway = plan.start().await;
        for round in 0..12_u64 {
            let busy = Fault::Status { status: 503, retry_after_s: None };
            set_fault(&engines[0], if round % 4 == 0 { busy } else { Fault::None });
            let ask = |n: u64| json!({"model": "tiny", "prompt": "word ".repeat(n as usize * 40 + 1), "max_tokens": n});
            let send = async |n: u64| gateway.post(COMPLETIONS, &ask(n + round)).await;
            tokio::join!(send(3), send(6), send(9), send(12), send(15));
        }
        set_fault(&engines[0], Fault::None);
        gateway.finish().await;

        let output = replay(&file);
        let text = said(&output);
        assert!(output.status.success() && text.starts_with("60 records, "), "{policy}: {text}");
        assert!(text.contains(" made again, 0 differ") && !text.contains("cannot"), "{policy}: {text}");

        // Somebody changes who was chosen, or what the choice was made from.
        let lines: Vec<Value> =
            std::fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().any(|line| line["attempts"].as_array().is_some_and(|all| all.len() > 1)), "{policy}");
        let changes: [fn(&mut Value); 2] = [
            |attempt| attempt["engine"] = json!((attempt["engine"].as_u64().unwrap() + 1) % 3),
            |attempt| attempt["candidates"][1]["requests"] = json!(50.0),
        ];
        for change in changes {
            let mut changed = lines.clone();
            change(&mut changed[30]["attempts"][0]);
            let other = folder.path().join("changed.jsonl");
            std::fs::write(&other, changed.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
            let output = replay(&other);
            let text = said(&output);
            assert!(output.status.code() == Some(1) && text.contains("1 differ"), "{policy}: {text}");
            assert!(text.contains("line 31, request "), "{policy}: {text}");
        }
    }
}

#[test]
fn a_log_without_anything_to_replay_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.jsonl");
    for (content, wanted) in [
        ("{\"id\":\"a\",\"model\":null,\"attempts\":[]}\n", "no choice in this log could be made again"),
        ("{\"id\":\"a\"}\n", "line 1 column 10: no decision record: missing field `attempts`"),
        ("", "no choice in this log could be made again"),
    ] {
        std::fs::write(&file, content).unwrap();
        let output = replay(&file);
        assert!(output.status.code() == Some(1) && said(&output).contains(wanted), "{}", said(&output));
    }
}
