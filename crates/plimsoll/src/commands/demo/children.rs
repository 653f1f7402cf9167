//! The processes of a command that plays a whole deployment: engines, a gateway, their logs, and the order in which they end.

use super::client::Client;
use super::fleet::addresses;
use super::process::Process;
use crate::Failure;
use plimsoll_pools::prometheus::samples;
use serde_json::Value;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const READY_LIMIT: Duration = Duration::from_secs(60);

/// How far the machine was behind the schedule of engines in timing mode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lateness {
    /// Share of late steps, mean of the engines.
    pub(crate) steps: f64,
    /// Seconds that were given up, all engines.
    pub(crate) lost_s: f64,
}

pub(crate) struct Children {
    /// Of the command, for names and messages.
    command: &'static str,
    /// Their logs, and what is written for them.
    pub(crate) folder: PathBuf,
    pub(crate) engines: Vec<Process>,
    pub(crate) gateway: Option<Process>,
    /// Of the gateway's admin API, made for this run.
    pub(crate) admin_token: String,
}

impl Children {
    /// Starts nothing yet.
    ///
    /// # Errors
    /// When their folder cannot be created.
    pub(crate) fn new(command: &'static str) -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(format!("plimsoll-{command}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .map_err(|error| Failure::failed(format!("{}: cannot be created: {error}", folder.display())))?;
        // Keys of the standard hasher come from the system's random source; good enough for a loopback port.
        let admin_token = format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2));
        Ok(Children { command, folder, engines: Vec::new(), gateway: None, admin_token })
    }

    /// What the gateway's process is told besides its arguments: the token stays out of the process list.
    pub(crate) fn gateway_env(&self) -> [(&str, &str); 1] {
        [("PLIMSOLL_ADMIN__TOKEN", self.admin_token.as_str())]
    }

    /// Starts so many engines with the same arguments, numbered in the order in which the gateway will be told of them; `{n}` in
    /// an argument stands for the number.
    ///
    /// # Errors
    /// When one does not come up.
    pub(crate) async fn start_engines(&mut self, count: u32, args: &[String]) -> Result<(), Failure> {
        let mut starting = JoinSet::new();
        for n in 0..count {
            let folder = self.folder.clone();
            let args: Vec<String> = args.iter().map(|arg| arg.replace("{n}", &n.to_string())).collect();
            starting.spawn(async move { (n, Process::start(&format!("engine {n}"), &args, &[], &folder).await) });
        }
        let mut started = std::collections::BTreeMap::new();
        while let Some(engine) = starting.join_next().await {
            let (n, engine) = engine.map_err(Failure::failed)?;
            started.insert(n, engine?);
        }
        self.engines = started.into_values().collect();
        Ok(())
    }

    /// Where the engines listen, in their order.
    pub(crate) fn engine_urls(&self) -> Vec<String> {
        self.engines.iter().map(|engine| engine.listening.clone()).collect()
    }

    /// Starts a gateway with these settings and waits until all engines are healthy. Returns its address for clients.
    ///
    /// # Errors
    /// When it does not come up, or not all engines do.
    pub(crate) async fn start_gateway(&mut self, settings: &str) -> Result<String, Failure> {
        let config = self.folder.join("plimsoll.toml");
        std::fs::write(&config, settings)
            .map_err(|error| Failure::failed(format!("{}: cannot be written: {error}", config.display())))?;
        let serve = ["serve", "--config", &config.display().to_string()].map(str::to_owned);
        let gateway = Process::start("gateway", &serve, &self.gateway_env(), &self.folder).await?;
        let (data, admin) = addresses(&gateway.listening).ok_or_else(|| {
            Failure::failed(format!("the gateway's first line was not understood: {}", gateway.listening))
        })?;
        self.gateway = Some(gateway);
        let (begun, operator) = (Instant::now(), Client::new(&admin)?);
        while begun.elapsed() < READY_LIMIT {
            if let Ok((200, body)) = operator.get("/admin/engines", Some(&self.admin_token)).await
                && let Ok(known) = serde_json::from_slice::<Value>(&body)
                && let Some(known) = known["engines"].as_array()
                && known.len() == self.engines.len()
                && known.iter().all(|engine| engine["state"]["health"] == "healthy")
            {
                return Ok(data);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Failure::failed(format!("the engines were not ready within {} s", READY_LIMIT.as_secs())))
    }

    /// From the engines' own counters. `None` where one does not say.
    pub(crate) async fn lateness(&self) -> Option<Lateness> {
        let mut late = Lateness::default();
        for engine in &self.engines {
            let client = Client::new(engine.listening.trim_end_matches('/')).ok()?;
            let Ok((200, body)) = client.get("/metrics", None).await else { return None };
            let text = String::from_utf8_lossy(&body);
            let read = |name: &str| samples(&text).find(|sample| sample.name == name).map(|sample| sample.value);
            late.steps += read("plimsoll_engine_timing_late_ratio")? / self.engines.len() as f64;
            late.lost_s += read("plimsoll_engine_timing_lost_seconds_total")?;
        }
        Some(late)
    }

    /// Ends the gateway, then the engines, and reaps them. Keeps the logs where there was `trouble`.
    pub(crate) async fn stop(mut self, trouble: bool) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop().await;
        }
        let stopping: JoinSet<()> = self.engines.drain(..).map(Process::stop).collect();
        stopping.join_all().await;
        if trouble {
            let (command, folder) = (self.command, self.folder.display());
            crate::output::note(&format!("plimsoll {command}: the processes' logs are in {folder}"));
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
