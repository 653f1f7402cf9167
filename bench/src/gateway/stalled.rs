//! Four readers that stop reading a stream of 280 MB. A router with an unbounded channel takes the stream into its
//! memory (two of three peers did); a bounded one stops reading from the engine.

use super::contender::Contender;
use super::fleet::Fleet;
use super::product::Programs;
use crate::upstream::Knobs;
use anyhow::ensure;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug, serde::Serialize)]
pub struct Stalled {
    pub contender: Contender,
    pub before_bytes: u64,
    /// Highest resident memory while the readers stood still.
    pub peak_bytes: u64,
    pub seconds: f64,
}

/// 70,000 events of 4 KB: 280 MB.
const KNOBS: Knobs = Knobs { stream: true, tokens: 70_000, pad_bytes: 3_800, ttft_us: 0, itl_us: 0 };
const READERS: &str = "4";

pub fn measure(
    contender: Contender,
    quick: bool,
    programs: &Programs,
    fleet: &Fleet,
    logs: &Path,
) -> anyhow::Result<Stalled> {
    let router = contender.start(programs, fleet, logs)?;
    std::thread::sleep(Duration::from_millis(500));
    let before_bytes = router.process.rss_bytes()?;
    fleet.set(KNOBS)?;
    let for_ms = if quick { 4_000 } else { 8_000 };
    let begin = Instant::now();
    let mut readers = Command::new(std::env::current_exe()?)
        .args(["load", "--stall", "--stream", "--concurrency", READERS, "--to", &router.address.to_string()])
        .args(["--for-ms", &for_ms.to_string(), "--tokens", &KNOBS.tokens.to_string()])
        .stdout(Stdio::null())
        .spawn()?;
    let mut peak_bytes = before_bytes;
    let status = loop {
        peak_bytes = peak_bytes.max(router.process.rss_bytes()?);
        if let Some(status) = readers.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    fleet.set(Knobs::default())?;
    ensure!(status.success(), "the stalled readers ended with {status}");
    Ok(Stalled { contender, before_bytes, peak_bytes, seconds: begin.elapsed().as_secs_f64() })
}
