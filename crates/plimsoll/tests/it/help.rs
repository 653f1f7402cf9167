//! Help, version, completions, wrong command lines.

use crate::program::{plimsoll, run};
use std::process::Stdio;

#[test]
fn help_is_data_and_names_every_command() {
    let help = run(&["--help"]).done();
    for command in ["demo", "serve", "engine", "top", "bench", "check", "version", "completions"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is missing in {help}");
        let own = run(&[command, "--help"]).done();
        assert!(own.contains(&format!("Usage: plimsoll {command}")), "{own}");
    }
    assert!(help.contains("Exit codes"));
}

#[test]
fn the_fixed_forms_are_there() {
    let serve = run(&["serve", "--help"]).done();
    for flag in ["--engine <URL>", "--listen <ADDR>", "--admin <ADDR>", "--policy <NAME>", "--config <FILE>"] {
        assert!(serve.contains(flag), "{flag}");
    }
    let demo = run(&["demo", "--help"]).done();
    for flag in ["--engines <N>", "--trace <FILE>", "--limit <N>", "--json <FILE>", "--exit"] {
        assert!(demo.contains(flag), "{flag}");
    }
    assert!(run(&["engine", "--help"]).done().contains("--listen <ADDR>"));
}

#[test]
fn wrong_command_lines_are_exit_code_2() {
    for args in
        [&["nonsense"][..], &["serve", "--nonsense"], &["serve", "--policy", "best"], &["engine", "--listen", "x"]]
    {
        let said = run(args).refused(2);
        assert!(said.starts_with("error: "), "{said}");
    }
    assert_eq!(run(&[]).code, Some(2), "no command at all");
    assert!(run(&["serve", "--policy", "round_robbin"]).refused(2).contains("round_robin"));
    assert!(run(&["engine", "--listen", "127.0.0.1:0", "--page-tokens", "7"]).refused(2).contains("multiple of 16"));
}

#[test]
fn version_says_what_was_built() {
    let text = run(&["version"]).done();
    assert!(text.starts_with(&format!("plimsoll {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains("engines  sglang, vllm, openai"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&run(&["version", "--json"]).done()).expect("json");
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]).done(), format!("plimsoll {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn each_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).done();
        assert!(script.contains("plimsoll") && script.contains("decision-log"), "{shell}");
    }
    assert!(run(&["completions", "cmd"]).refused(2).contains("bash"));
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let mut child =
        plimsoll(&["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}
