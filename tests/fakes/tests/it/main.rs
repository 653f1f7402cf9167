//! The fake held against the recorded wire and against the traps it promises. Through real sockets only.

#![expect(clippy::unwrap_used, reason = "a test may panic, and says where")]

mod faults;
mod traps;
mod wire;

use plimsoll_fakes::{Control, Dialect, FakeEngine, Fault, Options, Snapshot};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(10);

async fn fake(dialect: Dialect) -> FakeEngine {
    FakeEngine::start(Options::new(dialect)).await.unwrap()
}

fn faulty(engine: &FakeEngine, fault: Fault) {
    engine.control(Control { fault: Some(fault), ..Control::default() });
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: fake\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

async fn connect(engine: &FakeEngine) -> TcpStream {
    TcpStream::connect(engine.addr()).await.unwrap()
}

/// Sends and reads until the fake closes (asked to by `connection: close`) or falls silent for `silence`.
async fn exchange(engine: &FakeEngine, request: &str, silence: Duration) -> String {
    let mut stream = connect(engine).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    read(&mut stream, silence).await
}

async fn read(stream: &mut TcpStream, silence: Duration) -> String {
    let mut all = Vec::new();
    let mut block = vec![0; 64 << 10];
    while let Ok(Ok(size)) = tokio::time::timeout(silence, stream.read(&mut block)).await {
        if size == 0 {
            break;
        }
        all.extend_from_slice(&block[..size]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

async fn whole(engine: &FakeEngine, path: &str, body: &str) -> String {
    exchange(engine, &post(path, "connection: close\r\n", body), PATIENCE).await
}

/// `data:` payloads of a chunked SSE answer; good while no event is split over chunks, which the fake never does.
fn events(answer: &str) -> Vec<String> {
    answer.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

async fn until(engine: &FakeEngine, what: &str, seen: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let snapshot = engine.snapshot();
        if seen(&snapshot) {
            return snapshot;
        }
        assert!(tokio::time::Instant::now() < end, "{what} never came: {snapshot:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
