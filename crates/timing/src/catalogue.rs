//! The profiles that are built in.
//!
//! Their files are written by `cargo run -p xtask -- fit-profiles` from public measurements and say where each number comes
//! from.

use crate::profile::{Profile, ProfileError};

#[cfg(test)]
mod tests;

/// Name and text.
const FILES: &[(&str, &str)] = &[
    ("h100-llama3-8b", include_str!("../profiles/h100-llama3-8b.toml")),
    ("h100-llama3-70b-tp4", include_str!("../profiles/h100-llama3-70b-tp4.toml")),
    ("h100-llama3-70b-tp8", include_str!("../profiles/h100-llama3-70b-tp8.toml")),
    ("h200-llama3-8b", include_str!("../profiles/h200-llama3-8b.toml")),
    ("h200-llama3-70b-tp4", include_str!("../profiles/h200-llama3-70b-tp4.toml")),
    ("h200-llama3-70b-tp8", include_str!("../profiles/h200-llama3-70b-tp8.toml")),
    ("h200-qwen3-235b-dp8", include_str!("../profiles/h200-qwen3-235b-dp8.toml")),
    ("h200-deepseek-v3-dp32", include_str!("../profiles/h200-deepseek-v3-dp32.toml")),
];

/// All names, in the order of the catalogue.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The profile of this name.
///
/// # Errors
/// When there is none; the error lists those there are.
pub fn find(name: &str) -> Result<Profile, ProfileError> {
    match FILES.iter().find(|(known, _)| *known == name) {
        Some((name, text)) => Profile::parse(&format!("profiles/{name}.toml"), text),
        None => {
            let known: Vec<&str> = names().collect();
            Err(ProfileError::Unknown { name: name.to_owned(), known: known.join(", ") })
        }
    }
}
