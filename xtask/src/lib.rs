//! Checks and generated files of this repository, as a library so that tests run them with everything else.

pub mod complaint;
pub mod files;
pub mod fit_profiles;
pub mod generate;
pub mod layers;
pub mod licences;
pub mod metadata;
pub mod sources;

use std::path::{Path, PathBuf};

/// Root of the repository that this program was built in.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
