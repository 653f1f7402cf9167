//! iperf3 over loopback, one stream, its own defaults.

use super::Measured;
use anyhow::Context;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn measure(seconds: u64) -> anyhow::Result<Measured> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let mut server = Command::new("iperf3")
        .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port])
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start iperf3: install it")?;
    let result = client(&port, seconds);
    if result.is_err() {
        // It may have ended by itself.
        let _ = server.kill();
    }
    server.wait()?;
    result
}

fn client(port: &str, seconds: u64) -> anyhow::Result<Measured> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let output = Command::new("iperf3")
            .args(["-c", "127.0.0.1", "-p", port, "-J", "-t", &seconds.to_string()])
            .output()
            .context("cannot start iperf3: install it")?;
        let said: Value = serde_json::from_slice(&output.stdout).context("iperf3 said no JSON")?;
        if let Some(found) = read(&said) {
            return Ok(found);
        }
        // Until the server listens.
        anyhow::ensure!(Instant::now() < until, "iperf3 failed: {}", said["error"]);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn read(said: &Value) -> Option<Measured> {
    let end = &said["end"];
    let received = &end["sum_received"];
    let seconds = received["seconds"].as_f64()?;
    let cpu = |name: &str| end["cpu_utilization_percent"][name].as_f64().map(|percent| percent / 100.0 * seconds);
    Some(Measured {
        bytes: received["bytes"].as_u64().filter(|bytes| *bytes > 0)?,
        seconds,
        cpu_s: [cpu("host_total")?, cpu("remote_total")?],
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_report_is_read_and_a_failure_is_none() {
        let said = serde_json::json!({"end": {
            "sum_received": {"bytes": 4_000_000_000_u64, "seconds": 2.0, "bits_per_second": 16e9},
            "cpu_utilization_percent": {"host_total": 50.0, "remote_total": 75.0},
        }});
        let found = super::read(&said).map(|found| (found.gbit_s(), found.cpu_s));
        assert_eq!(found, Some((16.0, [1.0, 1.5])));
        assert!(super::read(&serde_json::json!({"error": "unable to connect", "end": {}})).is_none());
    }
}
