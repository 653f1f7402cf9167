//! A server on a free port and a small HTTP client that sees what is really on the wire.

use plimsoll_engine::model::ModelConfig;
use plimsoll_engine::{EngineConfig, serve};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Small model, everything else as it comes.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        model: ModelConfig { layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 32, ..ModelConfig::default() },
        faults: true,
        drain: Duration::from_secs(20),
        ..EngineConfig::default()
    }
}

impl Server {
    pub(crate) fn start(config: EngineConfig) -> Server {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                serve(config, listener, async { drop(stopped.await) }).await.unwrap();
            });
        });
        Server { address: told.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        send(self.address, method, path, headers, body)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "", &body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", "")
    }

    /// Status 200 and its JSON.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        let status = answer.status;
        let text = answer.text();
        assert_eq!(status, 200, "{path} {body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn load(&self) -> Value {
        serde_json::from_str::<Value>(&self.get("/v1/loads").text()).unwrap()["loads"][0].clone()
    }

    /// Waits until `/v1/loads` says what is wanted.
    pub(crate) fn wait_load(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let load = self.load();
            if wanted(&load) {
                return load;
            }
            assert!(Instant::now() < until, "never: {what}; last {load}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn wait_empty(&self) {
        self.wait_load("nothing held", |load| {
            ["num_running_reqs", "num_waiting_reqs", "num_used_tokens"].iter().all(|name| load[*name] == 0)
        });
    }

    /// Begins the shutdown and returns at once.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Sends a request and reads the head of its answer.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: engine\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    // A server may answer and close before it has read a refused body.
    let _ = stream.write_all(body.as_bytes());
    Answer::read_head(stream)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_stop();
        if !std::thread::panicking() {
            self.join();
        }
    }
}

/// Head of an answer; the body is read on demand.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    left: Option<usize>,
}

impl Answer {
    fn read_head(stream: TcpStream) -> Answer {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut answer = Answer { status, headers, reader, left: None };
        answer.left = answer.header("content-length").map(|length| length.parse().unwrap());
        answer
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The next chunk of a chunked body. `None` at its proper end, `Err` when the connection broke.
    pub(crate) fn chunk(&mut self) -> std::io::Result<Option<String>> {
        let mut size = String::new();
        self.reader.read_line(&mut size)?;
        let broken = || std::io::Error::other("the connection broke inside the body");
        let size = usize::from_str_radix(size.trim_end(), 16).map_err(|_| broken())?;
        let mut data = vec![0; size + 2];
        self.reader.read_exact(&mut data)?;
        data.truncate(size);
        Ok((size > 0).then(|| String::from_utf8(data).unwrap()))
    }

    pub(crate) fn text(mut self) -> String {
        if let Some(length) = self.left {
            let mut data = vec![0; length];
            self.reader.read_exact(&mut data).unwrap();
            return String::from_utf8(data).unwrap();
        }
        let mut text = String::new();
        while let Some(chunk) = self.chunk().unwrap() {
            text.push_str(&chunk);
        }
        text
    }

    /// The events of a complete stream; asserts that it ends with `[DONE]`.
    pub(crate) fn events(self) -> Vec<Value> {
        assert_eq!(self.status, 200);
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let text = self.text();
        let events = text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("no [DONE]: {text}"));
        parse_events(events)
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }
}

pub(crate) fn parse_events(text: &str) -> Vec<Value> {
    text.split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}
