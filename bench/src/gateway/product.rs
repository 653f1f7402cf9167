//! Where the programs come from: the product is built from the workspace around this folder, peers are looked for
//! in a Python venv that `bench/peers.sh` fills. The product is used through its command line alone.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Programs {
    pub plimsoll: Result<PathBuf, String>,
    pub smg: Result<PathBuf, String>,
    pub vllm_router: Result<PathBuf, String>,
}

impl Programs {
    /// `needed` is false where no row of ours is wanted: nothing is built then.
    pub fn find(repository: &Path, given: Option<&Path>, needed: bool) -> Programs {
        let plimsoll = match given {
            _ if !needed => Err("left out".to_owned()),
            Some(path) if path.is_file() => Ok(path.to_owned()),
            Some(path) => Err(format!("{} is no file", path.display())),
            None => build(repository).map_err(|error| format!("not built: {error:#}")),
        };
        Programs { plimsoll, smg: peer(repository, "smg"), vllm_router: peer(repository, "vllm-router") }
    }
}

/// Builds the release binary and returns where cargo put it.
fn build(repository: &Path) -> anyhow::Result<PathBuf> {
    eprintln!("building plimsoll (release)");
    let output = cargo()?
        .current_dir(repository)
        .args(["build", "--release", "-p", "plimsoll", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`cargo build --release -p plimsoll` ended with {}", output.status);
    }
    let messages = output.stdout.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    for message in messages {
        let message: serde_json::Value = serde_json::from_slice(message).context("cargo printed no JSON")?;
        if let (Some("plimsoll"), Some(path)) = (message["target"]["name"].as_str(), message["executable"].as_str()) {
            return Ok(path.into());
        }
    }
    bail!("cargo named no executable called plimsoll")
}

/// The cargo that runs us, tied to our life: a benchmark that is killed leaves no build behind.
fn cargo() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("supervise").arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    Ok(command)
}

fn peer(repository: &Path, program: &str) -> Result<PathBuf, String> {
    let given = std::env::var_os("PLIMSOLL_PEERS").map(PathBuf::from);
    let cache = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/plimsoll-peers/venv"));
    let own = repository.join("bench/.venv-peers");
    let folders = given.into_iter().chain([own]).chain(cache);
    folders
        .map(|venv| venv.join("bin").join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| "not installed (bench/peers.sh installs it)".to_owned())
}

/// Output of the example that times a choice among 1,024 engines.
pub fn choice_cost(repository: &Path) -> anyhow::Result<String> {
    eprintln!("timing a choice among 1,024 engines");
    let output = cargo()?
        .current_dir(repository)
        .args(["run", "--release", "--quiet", "-p", "plimsoll-load", "--example", "choice_cost"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`cargo run --release -p plimsoll-load --example choice_cost` ended with {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
