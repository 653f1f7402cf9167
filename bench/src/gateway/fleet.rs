//! The two fake engines that every contender stands in front of.

use super::http;
use super::process::Process;
use crate::upstream::Knobs;
use anyhow::{Context, ensure};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

pub struct Fleet {
    engines: Vec<(SocketAddr, Process)>,
}

impl Fleet {
    pub fn start(logs: &Path) -> anyhow::Result<Fleet> {
        let mut engines = Vec::new();
        for index in 0..2 {
            let address = free_address()?;
            let args = ["upstream".to_owned(), "--listen".to_owned(), address.to_string()];
            let mut process = Process::start_part(&args, &logs.join(format!("upstream-{index}.log")))?;
            wait_until(&mut process, Duration::from_secs(10), || {
                matches!(http::call(address, "GET", "/health", ""), Ok((200, _)))
            })
            .context("fake engine does not answer")?;
            engines.push((address, process));
        }
        Ok(Fleet { engines })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.engines.iter().map(|(address, _)| *address).collect()
    }

    pub fn urls(&self) -> Vec<String> {
        self.engines.iter().map(|(address, _)| format!("http://{address}")).collect()
    }

    /// From the next request on, both engines answer like this.
    pub fn set(&self, knobs: Knobs) -> anyhow::Result<()> {
        for address in self.addresses() {
            let (status, _) = http::call(address, "POST", &format!("/_ctl?{}", knobs.to_query()), "")?;
            ensure!(status == 200, "fake engine answered {status} to its settings");
        }
        Ok(())
    }

    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        self.engines.iter().map(|(_, process)| process.cpu_s()).sum()
    }

    /// Inference requests and other requests that each engine has received since its start.
    pub fn counts(&self) -> anyhow::Result<Vec<Counts>> {
        let count = |address| Ok(serde_json::from_slice(&http::call(address, "GET", "/_counts", "")?.1)?);
        self.addresses().into_iter().map(count).collect()
    }
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    pub inference: u64,
    pub other: u64,
}

/// An address on loopback that nobody listens on at the moment.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

/// Polls until `ready`; fails when the process ends or the time is over. Returns how long it took.
pub fn wait_until(
    process: &mut Process,
    patience: Duration,
    mut ready: impl FnMut() -> bool,
) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    while !ready() {
        process.check_alive()?;
        ensure!(begin.elapsed() < patience, "not ready after {} s", patience.as_secs());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(begin.elapsed())
}
