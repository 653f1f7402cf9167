//! A crash takes the process: the engine runs in a child of the test, which is this test binary again.

use crate::client::{PATIENCE, Server, config};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MARK: &str = "PLIMSOLL_TEST_CRASH_CHILD";
const SIGABRT: i32 = 6;

/// Not a test of its own: what the child runs.
#[test]
fn child() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let server = Server::start(plimsoll_engine::EngineConfig { step_delay: Duration::from_millis(1), ..config() });
    println!("at {}", server.address);
    // Until the parent goes away.
    let _ = std::io::stdin().read(&mut [0]);
}

struct Engine {
    child: Child,
    address: SocketAddr,
}

impl Engine {
    fn start() -> Engine {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture"])
            .env(MARK, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, address)) = line.split_once("at 127") {
                break format!("127{address}").parse().unwrap();
            }
        };
        Engine { child, address }
    }

    /// Sends a request and returns its body as it came until the connection ended.
    fn post(&self, path: &str, body: &Value) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = body.to_string();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = Vec::new();
        // A reset is how it may end.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn dies(mut self) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "still alive");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    }
}

#[test]
fn after_tokens_the_process_is_gone_in_the_middle_of_a_stream() {
    let engine = Engine::start();
    assert!(engine.post("/admin/faults", &json!({"crash_after": {"tokens": 20}})).contains("\"tokens\":20"));
    let body = json!({"prompt": " ship", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let answer = engine.post("/v1/completions", &body);
    let events = answer.matches("data: {").count();
    assert!((1..=20).contains(&events), "{events} events");
    assert!(!answer.contains("[DONE]") && !answer.contains("\"finish_reason\":\""), "{answer}");
    engine.dies();
}

#[test]
fn after_seconds_it_dies_without_any_request_unless_taken_back() {
    let engine = Engine::start();
    engine.post("/admin/faults", &json!({"crash_after": {"seconds": 1}}));
    engine.post("/admin/faults", &json!({"crash_after": null}));
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(engine.post("/v1/completions", &json!({"prompt": " ship", "max_tokens": 1})).contains("200 OK"));
    engine.post("/admin/faults", &json!({"crash_after": {"seconds": 0}}));
    engine.dies();
}
