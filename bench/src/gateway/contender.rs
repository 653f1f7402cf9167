//! Who is measured, and how each is started. Every router gets its defaults but for the policy and the log level:
//! figures of a router tuned by its rival convince nobody.

use super::cell::{self, Cell};
use super::fleet::{self, Fleet};
use super::http;
use super::process::Process;
use super::product::Programs;
use super::scenario::Scenario;
use crate::upstream::Knobs;
use anyhow::Context;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    Direct,
    L4,
    RoundRobin,
    LeastWait,
    Smg,
    VllmRouter,
}

/// What the start of a router showed.
#[derive(Debug, serde::Serialize)]
pub struct Start {
    pub contender: Contender,
    pub round: u32,
    /// From the start of the process to its first answered chat request, in milliseconds.
    pub ready_ms: f64,
    pub rss_rest_bytes: u64,
    /// After all cells of the round.
    pub rss_after_bytes: u64,
}

/// A started router.
pub struct Router {
    pub process: Process,
    pub address: SocketAddr,
    pub ready_ms: f64,
}

impl Contender {
    pub const ALL: [Contender; 6] = [
        Contender::Direct,
        Contender::L4,
        Contender::RoundRobin,
        Contender::LeastWait,
        Contender::Smg,
        Contender::VllmRouter,
    ];

    /// Name on the command line and of the log file.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Direct => "direct",
            Contender::L4 => "l4",
            Contender::RoundRobin => "round_robin",
            Contender::LeastWait => "least_wait",
            Contender::Smg => "smg",
            Contender::VllmRouter => "vllm-router",
        }
    }

    /// Name in the tables.
    pub fn title(self) -> &'static str {
        match self {
            Contender::Direct => "direct",
            Contender::L4 => "L4 copy (floor)",
            Contender::RoundRobin => "**plimsoll** round_robin",
            Contender::LeastWait => "**plimsoll** least_wait",
            Contender::Smg => "smg 1.13.0 round_robin",
            Contender::VllmRouter => "vllm-router 0.1.17 round_robin",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Contender::RoundRobin | Contender::LeastWait)
    }

    /// Whether its program is there; why not otherwise.
    pub fn present(self, programs: &Programs) -> Result<(), String> {
        let program = match self {
            Contender::Direct | Contender::L4 => return Ok(()),
            Contender::RoundRobin | Contender::LeastWait => &programs.plimsoll,
            Contender::Smg => &programs.smg,
            Contender::VllmRouter => &programs.vllm_router,
        };
        program.as_ref().map(drop).map_err(Clone::clone)
    }

    /// One round: start, look at rest, every kind of traffic, look again, stop.
    pub fn measure(
        self,
        round: u32,
        quick: bool,
        programs: &Programs,
        fleet: &Fleet,
        logs: &Path,
    ) -> anyhow::Result<(Option<Start>, Vec<Cell>)> {
        if self == Contender::Direct {
            return Ok((None, self.cells(round, quick, &fleet.addresses(), None, fleet)?));
        }
        let mut router = self.start(programs, fleet, logs)?;
        std::thread::sleep(Duration::from_millis(if quick { 700 } else { 1_000 }));
        let rss_rest_bytes = router.process.rss_bytes()?;
        let cells = self.cells(round, quick, &[router.address], Some(&router.process), fleet)?;
        router.process.check_alive()?;
        let rss_after_bytes = router.process.rss_bytes()?;
        let start = Start { contender: self, round, ready_ms: router.ready_ms, rss_rest_bytes, rss_after_bytes };
        Ok((Some(start), cells))
    }

    fn cells(
        self,
        round: u32,
        quick: bool,
        to: &[SocketAddr],
        router: Option<&Process>,
        fleet: &Fleet,
    ) -> anyhow::Result<Vec<Cell>> {
        let cell = |scenario: Scenario| {
            cell::measure(self, scenario, round, quick, to, router, fleet).with_context(|| scenario.title().to_owned())
        };
        Scenario::ALL.into_iter().map(cell).collect()
    }

    /// Starts the router and waits for its first answer to a chat request.
    pub fn start(self, programs: &Programs, fleet: &Fleet, logs: &Path) -> anyhow::Result<Router> {
        fleet.set(Knobs::default())?;
        let (address, side) = (fleet::free_address()?, fleet::free_address()?);
        let command = self.command(programs, fleet, address, side)?;
        let begin = Instant::now();
        let mut process = Process::start(&command, &logs.join(format!("{}.log", self.name())))?;
        let mut admin_ready = !self.is_ours();
        fleet::wait_until(&mut process, Duration::from_secs(60), || {
            admin_ready = admin_ready || matches!(http::call(side, "GET", "/readyz", ""), Ok((200, _)));
            admin_ready && answers(address)
        })
        .with_context(|| format!("{} (its output is in bench/out/{}.log)", self.name(), self.name()))?;
        Ok(Router { process, address, ready_ms: begin.elapsed().as_secs_f64() * 1e3 })
    }

    fn command(
        self,
        programs: &Programs,
        fleet: &Fleet,
        address: SocketAddr,
        side: SocketAddr,
    ) -> anyhow::Result<Command> {
        let at = |program: &Result<std::path::PathBuf, String>| {
            program.as_ref().map(Command::new).map_err(|why| anyhow::anyhow!("{why}"))
        };
        let (port, side_port) = (address.port().to_string(), side.port().to_string());
        let peer = |mut command: Command, log_level: &str| {
            command.args(["--host", "127.0.0.1", "--port", &port, "--worker-urls"]).args(fleet.urls());
            command.args(["--policy", "round_robin", "--prometheus-host", "127.0.0.1"]);
            command.args(["--prometheus-port", &side_port, "--log-level", log_level]);
            command
        };
        Ok(match self {
            Contender::Direct => anyhow::bail!("direct has no router to start"),
            Contender::L4 => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["l4", "--listen", &address.to_string()]);
                command.args(fleet.addresses().iter().flat_map(|to| ["--to".to_owned(), to.to_string()]));
                command
            }
            Contender::RoundRobin | Contender::LeastWait => {
                let mut command = at(&programs.plimsoll)?;
                command.arg("serve").args(fleet.urls().iter().flat_map(|url| ["--engine", url]));
                command.args(["--listen", &address.to_string(), "--admin", &side.to_string()]);
                command.args(["--policy", self.name()]);
                command
            }
            Contender::Smg => {
                let mut command = at(&programs.smg)?;
                command.arg("launch");
                peer(command, "warn")
            }
            Contender::VllmRouter => peer(at(&programs.vllm_router)?, "warning"),
        })
    }
}

fn answers(address: SocketAddr) -> bool {
    let body = "{\"model\":\"bench\",\"messages\":[{\"role\":\"user\",\"content\":\"ready?\"}],\"max_tokens\":32}";
    matches!(http::call(address, "POST", "/v1/chat/completions", body), Ok((200, _)))
}
