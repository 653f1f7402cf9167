//! Where the programs under test are.
//!
//! They are built once per run into the target directory of the running test, so that a test never meets an old one.
//! nextest runs each test in a process of its own: a stamp named after the run keeps all but the first from asking cargo.

use anyhow::{Context as _, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The `plimsoll` program.
///
/// # Panics
/// When it cannot be built.
#[must_use]
pub fn plimsoll() -> PathBuf {
    program("PLIMSOLL_BIN", "plimsoll")
}

/// The `fake-engine` program.
///
/// # Panics
/// When it cannot be built.
#[must_use]
pub fn fake_engine() -> PathBuf {
    program("FAKE_ENGINE_BIN", "fake-engine")
}

/// The repository's root.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

fn program(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return path.into();
    }
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}"))) {
        Ok(folder) => folder.join(name),
        Err(error) => panic!("cannot build the programs under test: {error}"),
    }
}

/// Builds both programs and answers their folder.
fn build() -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(Path::parent).context("the test does not lie in target/PROFILE/deps")?;
    let target = folder.parent().context("no target directory")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let lock = File::create(folder.join(".end-to-end.lock"))?;
    lock.lock()?;
    let stamp = std::env::var("NEXTEST_RUN_ID").ok().map(|run| folder.join(format!(".end-to-end-{run}")));
    if stamp.as_ref().is_some_and(|stamp| stamp.exists()) {
        return Ok(folder.to_owned());
    }
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", "plimsoll", "--package", "plimsoll-fakes", "--bins"])
        .args(["--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(workspace())
        .stdin(Stdio::null())
        .output()
        .context("run cargo")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    if let Some(stamp) = stamp {
        for old in std::fs::read_dir(folder)?.flatten() {
            if old.file_name().to_string_lossy().starts_with(".end-to-end-") {
                let _ = std::fs::remove_file(old.path());
            }
        }
        File::create(stamp)?;
    }
    Ok(folder.to_owned())
}
