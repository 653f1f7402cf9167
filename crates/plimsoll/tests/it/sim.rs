//! What `plimsoll sim` refuses before it runs, and leaves as it was.

use crate::program::run;

const ROWS: &str = "t_s,input_tokens,output_tokens\n0,500,5\n1,x,5\n2,500,5\n";

fn folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    std::fs::write(path.join("bad.csv"), ROWS).expect("a trace");
    std::fs::write(path.join("good.csv"), ROWS.replace('x', "500")).expect("a trace");
    (folder, move |name: &str| path.join(name).display().to_string())
}

#[test]
fn an_experiment_does_not_ask_an_empty_pipe() {
    let ran = run(&["sim", "experiment", "knowledge", "--trace", "/dev/stdin"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("a pipe is empty the second time"), "{}", ran.stderr);
}

#[test]
fn a_trace_is_not_written_over_and_nothing_is_left_of_a_run_that_failed() {
    let (folder, at) = folder();
    let (good, bad) = (at("good.csv"), at("bad.csv"));
    for flag in ["--json", "--html", "--requests"] {
        let ran = run(&["sim", "run", "--trace", &good, flag, &at("./good.csv")]);
        assert_eq!(ran.code, Some(2), "{flag}: {}", ran.stderr);
        let ran = run(&["sim", "run", "--trace", &bad, flag, &at("new")]);
        assert_eq!(ran.code, Some(1), "{flag}: {}", ran.stderr);
    }
    assert_eq!(std::fs::read_to_string(&good).expect("it is there"), ROWS.replace('x', "500"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2, "no pieces are left");
}

#[test]
fn the_hint_to_skip_is_given_where_it_helps() {
    let (_folder, at) = folder();
    std::fs::write(at("other.csv"), "a,b\n1,2\n").expect("a file");
    let hint = |args: &[&str]| {
        let ran = run(&[&["sim", "run", "--trace"], args].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        ran.stderr.contains("--skip-bad")
    };
    assert!(hint(&[&at("bad.csv")]));
    assert!(!hint(&[&at("other.csv")]), "no row of it can be used");
    std::fs::write(at("none.csv"), "t_s,input_tokens,output_tokens\n0,x,5\n").expect("a file");
    assert!(!hint(&[&at("none.csv"), "--skip-bad"]), "given already");
}

#[test]
fn an_experiment_without_its_policy_says_so_and_what_there_is() {
    for (name, what) in [
        ("buckets", "the experiment 'buckets' needs a policy that gives lengths to engines by buckets"),
        ("regions", "needs a policy that minds regions"),
        ("scaling", "needs a policy that starts and stops engines"),
        ("nothing", "invalid value 'nothing'"),
    ] {
        let ran = run(&["sim", "experiment", name, "--trace", "/dev/null"]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(what) && ran.stderr.contains("policies, knowledge, traffic"), "{}", ran.stderr);
    }
}

/// A folder that is not there is found out before the work, which would fail otherwise.
#[test]
fn what_is_written_is_opened_before_anything_is_read() {
    let (_folder, at) = folder();
    let (nowhere, empty) = (at("nowhere/out"), at("empty"));
    std::fs::write(&empty, "").expect("a file");
    for args in [
        &["sim", "replay-decisions", "--log", &empty, "--json", &nowhere][..],
        &["sim", "compare", &empty, "--html", &nowhere],
        &["sim", "fidelity", "--trace", &empty, "--json", &nowhere],
        &["sim", "fidelity", "--real-time", "--trace", &empty, "--profile-out", &nowhere],
    ] {
        let ran = run(args);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("nowhere/out: cannot be written"),
            "{args:?}: {}",
            ran.stderr
        );
    }
}
