//! Dependencies point one way and decisions are pure.
//!
//! Why a check and not a habit: the gateway and the simulator must make the same choice from the same input, and one
//! clock read or one hash-order iteration in a deciding crate breaks that without any test noticing. Source: rules 1 and
//! 2 of the design, and `docs/decisions/0001-layout.md`.

mod purity;

use crate::complaint::Complaint;
use crate::metadata::{self, Dependency, Package};
use std::path::Path;

/// What a crate under `crates/` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// Words without policy.
    Core,
    /// Declarations and readers that programs share; see `docs/decisions/0002-settings-and-workload-crates.md`.
    Shared,
    /// Pure; the number orders them, a lower one may be used by a higher one.
    Decision(u8),
    Adapter,
    Program,
}

/// Every crate has its line here; one without is refused.
const LAYERS: &[(&str, Layer)] = &[
    ("plimsoll-core", Layer::Core),
    ("plimsoll-settings", Layer::Shared),
    ("plimsoll-workload", Layer::Shared),
    ("plimsoll-cache", Layer::Decision(0)),
    ("plimsoll-timing", Layer::Decision(0)),
    ("plimsoll-traffic", Layer::Decision(1)),
    ("plimsoll-load", Layer::Decision(2)),
    ("plimsoll-elastic", Layer::Decision(3)),
    ("plimsoll-protocol", Layer::Adapter),
    ("plimsoll-pools", Layer::Adapter),
    ("plimsoll-kvstore", Layer::Adapter),
    ("plimsoll-zmtp", Layer::Adapter),
    ("plimsoll-cluster", Layer::Adapter),
    ("plimsoll-coldstart", Layer::Adapter),
    ("plimsoll-gateway", Layer::Program),
    ("plimsoll-engine", Layer::Program),
    ("plimsoll-sim", Layer::Program),
    ("plimsoll", Layer::Program),
];

/// What a deciding crate may use from outside: no IO, no clock, no order that changes from run to run.
const PURE: &[&str] = &[
    "blake3",
    "libm",
    "rand",
    "rand_chacha",
    "rand_distr",
    "serde",
    "sha2",
    "smallvec",
    "thiserror",
    "toml",
    "xxhash-rust",
];

/// Further ones for `core`: the schema of the words, behind a feature.
const PURE_CORE: &[&str] = &["schemars"];

/// Features that bring a seed from the system.
const UNSEEDED: &[&str] = &["std", "std_rng", "os_rng", "sys_rng", "thread_rng", "getrandom"];

/// Never below a deciding crate, however many crates lie between.
const NEVER_BELOW: &[&str] = &["tokio", "mio", "hyper", "axum", "socket2", "reqwest"];

/// All complaints about the workspace at `root`: declared dependencies, everything below them, and sources.
///
/// # Errors
/// When cargo or a file cannot be read.
pub fn check(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let mut found = check_declared(root)?;
    found.extend(check_below(root)?);
    Ok(found)
}

/// As [`check`], without resolving anything; enough for a workspace that has no lock file.
///
/// # Errors
/// When cargo or a file cannot be read.
pub fn check_declared(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let mut found = Vec::new();
    for package in metadata::packages(root)? {
        if !package.folder.starts_with("crates/") {
            continue;
        }
        let Some(layer) = layer_of(&package.name) else {
            let what = "has no layer; give it a line in LAYERS of xtask/src/layers.rs";
            found.push(Complaint::new(&package.name, what));
            continue;
        };
        check_folder(&package, &mut found);
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.dev) {
            if let Some(what) = refuse(layer, dependency) {
                found.push(Complaint::new(&package.name, what));
            }
        }
        if matches!(layer, Layer::Decision(_) | Layer::Core) {
            found.extend(purity::check(root, &package.folder)?);
        }
    }
    Ok(found)
}

fn layer_of(package: &str) -> Option<Layer> {
    LAYERS.iter().find(|(name, _)| *name == package).map(|(_, layer)| *layer)
}

fn check_folder(package: &Package, found: &mut Vec<Complaint>) {
    let expected = format!("crates/{}", package.name.strip_prefix("plimsoll-").unwrap_or(&package.name));
    if package.folder != expected {
        found.push(Complaint::new(&package.name, format!("lies in {}, not in {expected}", package.folder)));
    }
}

fn refuse(from: Layer, dependency: &Dependency) -> Option<String> {
    let name = dependency.name.as_str();
    if name == "plimsoll" || name.starts_with("plimsoll-") {
        let Some(to) = layer_of(name) else { return Some(format!("must not depend on {name}, which has no layer")) };
        return (!may_use(from, to)).then(|| format!("{from:?} must not depend on {name} ({to:?})"));
    }
    if !matches!(from, Layer::Decision(_) | Layer::Core) {
        return None;
    }
    let allowed = PURE.contains(&name) || (from == Layer::Core && PURE_CORE.contains(&name));
    if !allowed {
        return Some(format!("{from:?} must not depend on {name}; the allow-list is PURE in xtask/src/layers.rs"));
    }
    let unseeded = dependency.features.iter().find(|feature| UNSEEDED.contains(&feature.as_str()));
    let random = name.starts_with("rand");
    (random && (dependency.default_features || unseeded.is_some()))
        .then(|| format!("{name} must be without default features and without a source of seeds"))
}

fn may_use(from: Layer, to: Layer) -> bool {
    match (from, to) {
        (_, Layer::Core) => from != Layer::Core,
        (Layer::Program, _) => true,
        (Layer::Decision(from), Layer::Decision(to)) => to < from,
        (Layer::Adapter, Layer::Adapter) => true,
        _ => false,
    }
}

/// Walks the resolved graph below each deciding crate.
fn check_below(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let graph = metadata::resolved(root)?;
    let mut found = Vec::new();
    for (name, layer) in LAYERS {
        if !matches!(layer, Layer::Decision(_) | Layer::Core) {
            continue;
        }
        for below in purity::reachable(&graph, name) {
            if NEVER_BELOW.contains(&below.as_str()) {
                found.push(Complaint::new(*name, format!("{below} lies below it")));
            }
        }
    }
    Ok(found)
}
