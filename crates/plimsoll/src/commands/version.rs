//! `plimsoll version`: what runs here, for bug reports and scripts.

use crate::cli::VersionArgs;
use crate::{Failure, output};
use plimsoll_core::EngineKind;
use serde::Serialize;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
    /// Commit of the source, where the build was told (`PLIMSOLL_COMMIT=$(git rev-parse HEAD) cargo build`).
    commit: Option<&'static str>,
    /// Optional parts that were built in.
    features: &'static [&'static str],
    /// Engine families with an adapter.
    engines: [&'static str; 3],
    build: &'static str,
    target: String,
}

const FEATURES: &[&str] = &["tls", "h2c", "otlp"];

/// Prints the version.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &VersionArgs) -> Result<(), Failure> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("PLIMSOLL_COMMIT"),
        features: FEATURES,
        engines: [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Openai].map(EngineKind::as_str),
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    };
    let text = if args.json {
        serde_json::to_string(&version).map_err(|error| Failure::failed(error.to_string()))?
    } else {
        format!(
            "plimsoll {}\ncommit   {}\nbuild    {} for {}\nfeatures {}\nengines  {}",
            version.version,
            version.commit.unwrap_or("not recorded"),
            version.build,
            version.target,
            version.features.join(", "),
            version.engines.join(", "),
        )
    };
    output::data(&format!("{text}\n"))
}
