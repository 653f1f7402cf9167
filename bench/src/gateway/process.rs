//! Processes that the benchmark starts, and what the kernel says they cost.
//!
//! CPU time is utime + stime of `/proc/PID/stat`, which covers all threads, those that have ended too, of the
//! process and its descendants (a Python launcher may fork). The kernel scales the sum to the exact run time, but
//! shows it in ticks of 10 ms: a cell has to use a second or so for an error under 1 %.

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server; killed and reaped when dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command` so that it dies with us, with its output in `log`.
    pub fn start(command: &Command, log: &Path) -> anyhow::Result<Process> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new(std::env::current_exe()?)
            .arg("supervise")
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Process { child })
    }

    /// Starts a part of this benchmark.
    pub fn start_part(args: &[String], log: &Path) -> anyhow::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args);
        Process::start(&command, log)
    }

    /// Fails when the process has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("ended with {status}"),
        }
    }

    /// User and system time of the process and its descendants, in seconds.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        tree(self.child.id())?.into_iter().map(cpu_s).sum()
    }

    /// Resident memory of the process and its descendants, in bytes.
    pub fn rss_bytes(&self) -> anyhow::Result<u64> {
        tree(self.child.id())?.into_iter().map(rss_bytes).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let descendants = tree(self.child.id()).unwrap_or_default();
        let signal = |pid: u32, signal| {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended by itself; then there is nothing to do.
                let _gone = kill_process(pid, signal);
            }
        };
        signal(self.child.id(), Signal::TERM);
        let patience = Instant::now() + Duration::from_secs(2);
        while Instant::now() < patience && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        for pid in descendants {
            signal(pid, Signal::KILL);
        }
        let _reaped = self.child.wait();
    }
}

/// The process and its descendants.
fn tree(root: u32) -> anyhow::Result<Vec<u32>> {
    let mut pairs = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end between the listing and the reading.
        if let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            pairs.push((pid, parse_stat(&stat)?.parent));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(pairs.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found)
}

struct Stat {
    parent: u32,
    ticks: u64,
}

/// The name in brackets may hold anything, brackets and blanks too: fields are counted from the last `)`.
fn parse_stat(stat: &str) -> anyhow::Result<Stat> {
    let (_, rest) = stat.rsplit_once(") ").context("stat has no process name")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let field = |at: usize| fields.get(at - 3).with_context(|| format!("stat has no field {at}"));
    Ok(Stat { parent: field(4)?.parse()?, ticks: field(14)?.parse::<u64>()? + field(15)?.parse::<u64>()? })
}

fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let stat = parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?)?;
    Ok(stat.ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time of the calling process, in seconds.
pub fn cpu_of_self_s() -> anyhow::Result<f64> {
    cpu_s(std::process::id())
}

fn rss_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("process has no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// Time that all cores of the machine have been busy since its start, stolen time included, in seconds.
pub fn machine_busy_s() -> anyhow::Result<f64> {
    busy_s(&std::fs::read_to_string("/proc/stat")?)
}

fn busy_s(stat: &str) -> anyhow::Result<f64> {
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|f| f.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let busy: u64 = fields.iter().enumerate().filter(|(at, _)| *at < 8 && *at != 3 && *at != 4).map(|(_, t)| t).sum();
    Ok(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests;
