//! What cargo says about the workspace.

use anyhow::{Context as _, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// One package of the workspace with what it declares.
#[derive(Clone, Debug)]
pub struct Package {
    pub name: String,
    /// Folder relative to the root, `crates/load`.
    pub folder: String,
    pub dependencies: Vec<Dependency>,
}

/// One line of a `[dependencies]` table.
#[derive(Clone, Debug)]
pub struct Dependency {
    pub name: String,
    /// `true` for `[dev-dependencies]`.
    pub dev: bool,
    pub default_features: bool,
    pub features: Vec<String>,
}

/// The workspace's own packages. Resolves nothing, so it works without a lock file and without a network.
///
/// # Errors
/// When cargo cannot read the workspace.
pub fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let metadata = cargo_metadata(root, &["--no-deps"])?;
    let base = root.canonicalize()?;
    let all = metadata["packages"].as_array().context("cargo metadata without packages")?;
    Ok(all.iter().filter_map(|package| read(package, &base)).collect())
}

/// Everything, dependencies resolved for this platform.
///
/// # Errors
/// When cargo cannot resolve, or the lock file is not up to date.
pub fn resolved(root: &Path) -> anyhow::Result<Value> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cargo_metadata(root, &["--locked", "--filter-platform", &platform])
}

fn cargo_metadata(root: &Path, more: &[&str]) -> anyhow::Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1"])
        .args(more)
        .current_dir(root)
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is no JSON")
}

fn read(package: &Value, base: &Path) -> Option<Package> {
    let manifest = Path::new(package["manifest_path"].as_str()?);
    let folder = manifest.parent()?.strip_prefix(base).ok()?;
    let dependencies = package["dependencies"].as_array()?.iter().filter_map(read_dependency).collect();
    Some(Package { name: package["name"].as_str()?.into(), folder: folder.display().to_string(), dependencies })
}

fn read_dependency(dependency: &Value) -> Option<Dependency> {
    let features = dependency["features"].as_array()?.iter().filter_map(Value::as_str).map(String::from).collect();
    Some(Dependency {
        name: dependency["name"].as_str()?.into(),
        dev: dependency["kind"] == "dev",
        default_features: dependency["uses_default_features"] == true,
        features,
    })
}
