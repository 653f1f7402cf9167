//! What the figures were taken on; without it they mean nothing.

use std::path::Path;
use std::process::Command;

#[derive(Debug, serde::Serialize)]
pub struct Machine {
    pub date: String,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub rustc: String,
    pub commit: String,
    /// Load average over one minute at the start.
    pub load_average: String,
}

impl Machine {
    pub fn read(repository: &Path) -> Machine {
        let file = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = file("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("\t: unknown");
        Machine {
            date: said(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])),
            cpu: cpu.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            rustc: said(Command::new("rustc").arg("--version").current_dir(repository)),
            commit: said(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(repository)),
            load_average: file("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

/// What a program prints, or `unknown`.
fn said(command: &mut Command) -> String {
    match command.output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}
