//! One stream of `/generate` and when each of its tokens came.

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Tokens with the time at which they came; several that came at once have the same.
#[derive(Default)]
pub struct Read(Vec<(Instant, u64)>);

impl Read {
    pub fn ids(&self) -> Vec<u64> {
        self.0.iter().map(|(_, id)| *id).collect()
    }

    pub fn extend(&mut self, later: Read) {
        self.0.extend(later.0);
    }

    pub fn first(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    pub fn last(&self) -> Option<Instant> {
        self.0.last().map(|(at, _)| *at)
    }

    /// Times between tokens.
    pub fn gaps_s(&self) -> Vec<f64> {
        self.0.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs_f64()).collect()
    }
}

pub struct Stream {
    lines: BufReader<TcpStream>,
}

impl Stream {
    pub fn open(to: SocketAddr, path: &str, body: &Value) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        let (body, length) = (body.to_string(), body.to_string().len());
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        Ok(Stream { lines: BufReader::with_capacity(1 << 20, stream) })
    }

    /// Reads until so many tokens have come.
    pub fn read_until(&mut self, tokens: usize, patience: Duration) -> anyhow::Result<Read> {
        self.lines.get_ref().set_read_timeout(Some(patience))?;
        let mut read = Read::default();
        while read.0.len() < tokens {
            ensure!(self.event(&mut read)?, "the stream ended after {} tokens", read.0.len());
        }
        Ok(read)
    }

    /// Reads to the end.
    pub fn read_all(mut self, patience: Duration) -> anyhow::Result<Read> {
        self.lines.get_ref().set_read_timeout(Some(patience))?;
        let mut read = Read::default();
        while self.event(&mut read)? {}
        Ok(read)
    }

    /// Reads to the end on a thread of its own.
    pub fn read_on(self) -> Reading {
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || done.send(self.read_all(Duration::from_secs(60))));
        Reading(result)
    }

    /// The next event; false at the end. The engine writes each event as one chunk, so its line is whole.
    fn event(&mut self, read: &mut Read) -> anyhow::Result<bool> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line)? == 0 {
                bail!("the connection broke");
            }
            let Some(data) = line.trim_end().strip_prefix("data: ") else {
                ensure!(!line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.1 200 "), "the engine said {line}");
                continue;
            };
            let now = Instant::now();
            if data == "[DONE]" {
                return Ok(false);
            }
            let event: Value = serde_json::from_str(data).context("an event is no JSON")?;
            let ids = event["output_ids"].as_array().context("an event has no output_ids")?;
            read.0.extend(ids.iter().filter_map(Value::as_u64).map(|id| (now, id)));
            return Ok(true);
        }
    }
}

/// A stream that is being read.
pub struct Reading(mpsc::Receiver<anyhow::Result<Read>>);

impl Reading {
    pub fn join(self, patience: Duration) -> anyhow::Result<Read> {
        self.0.recv_timeout(patience).context("the stream does not end")?
    }
}
