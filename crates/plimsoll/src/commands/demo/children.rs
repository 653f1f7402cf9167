//! The processes of a command that plays a whole deployment: engines, a gateway, their logs, and the order in which they end.

use super::process::Process;
use crate::Failure;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use tokio::task::JoinSet;

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
