//! `serve` and `engine` start, say where they listen, and end when told to.

use crate::program::{plimsoll, run};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

/// A server that is killed when the test ends, however it ends.
pub(crate) struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) announced: String,
}

impl Server {
    /// Starts it and waits for the line that says where it listens.
    pub(crate) fn start(args: &[&str], stdin: Stdio) -> Server {
        let mut child =
            plimsoll(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut server = Server { child, stderr, announced: String::new() };
        server.announced = server.line_with(": listening on ").trim_end().to_owned();
        server
    }

    fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for the end; gives exit code and what else it wrote.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                let mut rest = String::new();
                let _ = self.stderr.read_to_string(&mut rest);
                return (status.code(), rest);
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn address(announced: &str) -> &str {
    announced.split("http://").nth(1).expect("a url").split([' ', ')']).next().expect("an address")
}

pub(crate) const SERVE: &[&str] = &["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log", "warn"];
const ENGINE: &[&str] = &["engine", "--listen", "127.0.0.1:0"];

#[test]
fn the_line_names_the_real_ports() {
    let server = Server::start(SERVE, Stdio::null());
    let line = &server.announced;
    assert!(line.starts_with("plimsoll serve: listening on http://127.0.0.1:"), "{line}");
    assert!(line.contains(" (admin http://127.0.0.1:") && line.ends_with(')'), "{line}");
    assert!(!line.contains(":0 ") && !line.ends_with(":0)"), "{line}");
    std::net::TcpStream::connect(address(line)).expect("it accepts");

    let engine = Server::start(ENGINE, Stdio::null());
    assert!(engine.announced.starts_with("plimsoll engine: listening on http://127.0.0.1:"), "{}", engine.announced);
    std::net::TcpStream::connect(address(&engine.announced)).expect("it accepts");
}

#[test]
fn sigterm_and_ctrl_c_end_it_well() {
    for (args, signal) in [(SERVE, "TERM"), (SERVE, "INT"), (ENGINE, "TERM"), (ENGINE, "INT")] {
        let server = Server::start(args, Stdio::null());
        server.signal(signal);
        let (code, rest) = server.end();
        assert_eq!(code, Some(0), "{args:?} after {signal}: {rest}");
    }
}

#[test]
fn a_guarded_child_ends_with_its_parents_pipe() {
    for args in [SERVE, ENGINE] {
        let mut args = args.to_vec();
        args.push("--exit-with-stdin");
        let mut server = Server::start(&args, Stdio::piped());
        drop(server.child.stdin.take());
        assert_eq!(server.end().0, Some(0), "{args:?}");
    }
}

#[test]
fn a_taken_port_is_exit_code_1_with_a_hint() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("address").to_string();
    for command in [&["serve", "--admin", "127.0.0.1:0"][..], &["engine"]] {
        let said = run(&[command, &["--listen", &address]].concat()).refused(1);
        assert!(said.contains(&format!("cannot listen on {address}")) && said.contains("\nhint: "), "{said}");
    }
}

#[test]
fn a_port_that_an_engine_needs_besides_is_opened_before_it_says_that_it_listens() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("address").to_string();
    let events = format!("tcp://{address}");
    for [flag, value] in [["--kv-events-endpoint", &events], ["--migration-listen", &address]] {
        let said = run(&["engine", "--listen", "127.0.0.1:0", flag, value]).refused(1);
        assert!(!said.contains("listening on") && said.contains(&address), "{said}");
    }
}

#[test]
fn sighup_reloads_and_a_broken_config_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    std::fs::write(&file, "telemetry.log = \"info\"\n").expect("written");
    let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    args.extend(["--config", file.to_str().expect("utf-8")]);
    let mut server = Server::start(&args, Stdio::null());

    std::fs::write(&file, "policy.nam = \"round_robin\"\n").expect("written");
    server.signal("HUP");
    let refused = server.line_with("reload refused");
    assert!(refused.contains("unknown key `policy.nam`, did you mean `name`"), "{refused}");

    std::fs::write(&file, "policy.name = \"round_robin\"\n").expect("written");
    server.signal("HUP");
    server.line_with("settings reloaded");
    std::net::TcpStream::connect(address(&server.announced)).expect("it still accepts");
}

impl Server {
    /// The next line that holds `words`; the test's own time limit bounds the wait.
    fn line_with(&mut self, words: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.stderr.read_line(&mut line).expect("utf-8"), 0, "no `{words}` in {seen}");
            if line.contains(words) {
                return line;
            }
            seen.push_str(&line);
        }
    }
}
