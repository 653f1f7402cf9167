//! `plimsoll check`.

use crate::program::{finish, plimsoll, run, run_with_stdin};

#[test]
fn it_runs_without_a_config_and_says_what_would_happen() {
    let text = run(&["check"]).done();
    assert!(text.starts_with("config    ok\nclients   http://127.0.0.1:8080"), "{text}");
    assert!(text.contains("auth      off"), "{text}");
    assert!(text.contains("engines   none: nothing is ready until one is added"), "{text}");
}

#[test]
fn it_takes_the_flags_of_serve() {
    let text = run(&[
        "check",
        "--engine",
        "http://127.0.0.1:1",
        "--engine",
        "http://127.0.0.1:2",
        "--listen",
        "0.0.0.0:1",
        "--admin",
        "0.0.0.0:2",
        "--policy",
        "power_of_two",
        "--set",
        "policy.seed=7",
        "--api-key",
        "sesame",
        "--decision-log",
        "d.jsonl",
    ])
    .done();
    assert!(text.contains("engines   2\n"), "{text}");
    assert!(text.contains("http://127.0.0.1:2 (family found by probing, models asked from it, with a key)"), "{text}");
    assert!(text.contains("policy    power_of_two, seed 7"), "{text}");
    assert!(text.contains("admin     http://0.0.0.0:2 (no token: /admin and /debug answer 401 here"), "{text}");
    assert!(text.contains("all of them in d.jsonl"), "{text}");
    assert!(!text.contains("sesame"), "{text}");
}

#[test]
fn other_gateways_are_named_and_passwords_are_not() {
    assert!(run(&["check"]).done().contains("cluster   off"));
    let flags = ["check", "--nats", "nats://n:4222", "--set", "cluster.fleet=blue", "--set", "cluster.token=sesame"];
    let text = run(&flags).done();
    assert!(text.contains("cluster   fleet blue shares quotas through nats://n:4222 with a token"), "{text}");
    assert!(!text.contains("sesame") && !run(&[&flags[..], &["--print-config"]].concat()).done().contains("sesame"));
}

#[test]
fn file_environment_set_and_flags_win_in_this_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    std::fs::write(&file, "policy.name = \"round_robin\"\npolicy.seed = 1\n").expect("written");
    let file = file.to_str().expect("utf-8");
    let policy = |more: &[&str], env: Option<&str>| {
        let mut command = plimsoll(&["check", "--config", file]);
        command.args(more).envs(env.map(|seed| ("PLIMSOLL_POLICY__SEED", seed)));
        let text = finish(&mut command).done();
        text.lines().find_map(|line| line.strip_prefix("policy    ")).expect("a policy line").to_owned()
    };
    assert_eq!(policy(&[], None), "round_robin, seed 1");
    assert_eq!(policy(&[], Some("2")), "round_robin, seed 2");
    assert_eq!(policy(&["--set", "policy.seed=3"], Some("2")), "round_robin, seed 3");
    assert_eq!(policy(&["--policy", "least_wait", "--set", "policy.name=round_robin"], None), "least_wait, seed 1");
    let named = finish(plimsoll(&["check"]).env("PLIMSOLL_CONFIG", file)).done();
    assert!(named.contains("round_robin, seed 1"), "{named}");
}

#[test]
fn a_bad_config_is_exit_code_2_with_all_problems_and_a_hint() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    std::fs::write(&file, "[gateway]\nlisen = \"127.0.0.1:1\"\n[limits]\nbody_bytes = \"big\"\n").expect("written");
    let file = file.to_str().expect("utf-8");
    let said = run(&["check", "--config", file]).refused(2);
    assert!(
        said.contains(&format!("error: {file}:2:1: unknown key `gateway.lisen`, did you mean `listen`\n")),
        "{said}"
    );
    assert!(said.contains(":4:1: `limits.body_bytes` must be a whole number, not a string\n"), "{said}");
    assert!(said.lines().last().expect("a line").starts_with("hint: "), "{said}");
    assert_eq!(run(&["serve", "--config", file]).refused(2), said, "`serve` says the same and starts nothing");
}

#[test]
fn meaning_is_checked_too() {
    let said = run(&["check", "--engine", "localhost:1"]).refused(2);
    assert!(said.starts_with("error: --engine: `engines[0].url` "), "{said}");
    let said = run(&["check", "--engine", "http://a:1", "--engine", "http://a:1/"]).refused(2);
    assert!(said.contains("--engine: `engines[1].url` is the same server as `engines[0].url`"), "{said}");
    let said = run(&["check", "--log", "plimsoll=loud"]).refused(2);
    assert!(said.contains("`telemetry.log` is not a log filter"), "{said}");
    let said = run(&["check", "--listen", "here"]).refused(2);
    assert!(said.contains("--listen: `gateway.listen` cannot be used"), "{said}");
    let said = run(&["check", "--config", "/no/such/file.toml"]).refused(2);
    assert!(said.contains("cannot read the config file /no/such/file.toml"), "{said}");
}

#[test]
fn the_printed_config_masks_secrets_and_can_be_read_back() {
    let printed = finish(
        plimsoll(&["check", "--print-config", "--engine", "http://127.0.0.1:1", "--api-key", "sesame"])
            .env("PLIMSOLL_ADMIN__TOKEN", "open-up"),
    )
    .done();
    assert!(!printed.contains("sesame") && !printed.contains("open-up"), "{printed}");
    assert_eq!(printed.matches("\"***\"").count(), 2, "{printed}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    std::fs::write(&file, &printed).expect("written");
    let again = run(&["check", "--print-config", "--config", file.to_str().expect("utf-8")]).done();
    assert_eq!(again, printed);
}

#[test]
fn the_schema_is_json_and_refuses_unknown_keys() {
    let schema: serde_json::Value = serde_json::from_str(&run(&["check", "--print-schema"]).done()).expect("json");
    assert_eq!(schema["additionalProperties"], false);
    assert!(schema["properties"]["gateway"].is_object());
}

#[test]
fn a_key_is_hashed_without_its_line_end() {
    // printf foo | sha256sum
    let hash = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\n";
    assert_eq!(run_with_stdin(&["check", "--hash-key"], "foo").done(), hash);
    assert_eq!(run_with_stdin(&["check", "--hash-key"], "foo\r\n").done(), hash);
    for bad in ["", "\n", "two words", "a\nb", &"x".repeat(5_000)] {
        run_with_stdin(&["check", "--hash-key"], bad).refused(2);
    }
}

#[test]
fn a_probe_of_a_dead_engine_is_exit_code_1_after_the_plan() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address");
    let ran = run(&["check", "--probe", "--engine", &format!("http://{closed}")]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("config    ok") && ran.stdout.contains("no use: "), "{}", ran.stdout);
    assert!(ran.stderr.contains("1 of 1 engines cannot be used"), "{}", ran.stderr);
}
