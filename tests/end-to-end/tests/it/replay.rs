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

/// Classes and refusals follow from what their records say, and not from what somebody made of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_and_refusals_follow_from_their_records_and_not_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let engine = fake(Dialect::Vllm).await;
    let (config, log) = (folder.path().join("plimsoll.toml"), folder.path().join("log.jsonl"));
    // 100 tokens at once and hardly any after them.
    let rules = "[[traffic.tenants]]\nname = \"default\"\ntokens_per_s = 50\n";
    std::fs::write(&config, format!("[[engines]]\nurl = \"{}\"\n{rules}", engine.url())).unwrap();
    let gateway = Plan::default().config(&config, 1).arg("--decision-log").arg(&log).start().await;
    let mut refused = 0;
    for round in 0..8 {
        let ask = json!({"model": "tiny", "prompt": "word ".repeat(40 + round), "max_tokens": 10});
        let class = if round % 2 == 0 { "low" } else { "high" };
        let answer = gateway.post_raw(COMPLETIONS, &[("x-plimsoll-class", class)], ask.to_string().as_bytes()).await;
        refused += u64::from(answer.status() == 429);
    }
    gateway.finish().await;
    assert!((1..8).contains(&refused), "{refused}");

    let output = replay(&log);
    let text = said(&output);
    assert!(output.status.success() && text.starts_with("8 records, "), "{text}");
    assert!(text.contains("8 classes: 8 follow from their records, 0 differ"), "{text}");
    assert!(text.contains(&format!("{refused} refusals: {refused} follow from their records, 0 differ")), "{text}");

    let lines: Vec<Value> =
        std::fs::read_to_string(&log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = lines.iter().rposition(|line| line["traffic"]["why"] == "tenant_rate").unwrap();
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 6] = [
        (|line| line["class"] = json!("medium"), "class medium by "),
        (|line| line["class_rule"] = json!("between"), " by between; now "),
        (|line| line["class_basis"]["input_tokens"] = json!(90_000), "now "),
        (|line| line["class_basis"]["bounds"]["highest"] = json!("low"), "now low by "),
        (|line| line["traffic"]["share"] = json!(0.5), "a share of 0.5; its level and what is asked give "),
        (
            |line| line["traffic"]["basis"]["tenant"]["rate"][2] = json!(0.0),
            " fit into its tenant's rate: 0 of 100 were taken",
        ),
    ];
    for (nth, (change, wanted)) in changes.into_iter().enumerate() {
        let mut changed = lines.clone();
        // An odd one asks for no lower class than it has by itself.
        let line = if nth < 4 { 1 } else { at };
        change(&mut changed[line]);
        let other = folder.path().join("changed.jsonl");
        std::fs::write(&other, changed.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let output = replay(&other);
        let text = said(&output);
        assert!(output.status.code() == Some(1) && text.contains("1 differ"), "{nth}: {text}");
        assert!(text.contains(&format!("line {}, request ", line + 1)) && text.contains(wanted), "{nth}: {text}");
    }
    // One that a gateway of before wrote.
    let mut old = lines;
    for line in &mut old {
        line.as_object_mut().unwrap().remove("class_basis");
        line["traffic"].as_object_mut().unwrap().remove("basis");
    }
    std::fs::write(&log, old.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let output = replay(&log);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("8 cannot be made again: its record does not say what its class followed from"), "{text}");
    assert!(
        text.contains(&format!("{refused} cannot be made again: its record does not say what its refusal")),
        "{text}"
    );
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
