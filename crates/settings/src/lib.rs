//! Settings: one tree, one place for defaults, one way in.
//!
//! Why a crate of its own: the gateway reads the tree, the command line fills it, `xtask` prints it as a reference. One
//! type without conversions means that a key, its default, its check and its documentation cannot drift apart
//! (`docs/decisions/0002-settings-and-workload-crates.md`).
//!
//! The order is file, then environment, then `--set`, then flags; the last one wins. All four are merged as TOML values
//! on top of the defaults and turned into [`Settings`] once, so that every layer gets the same error texts.

pub mod load;
pub mod names;
pub mod origin;
pub mod problem;
pub mod reference;
pub mod shape;
pub mod tree;

mod check;
mod file;
mod nearest;
mod overrides;
mod validate;

pub use load::{Loaded, Sources, load};
pub use origin::Origin;
pub use overrides::env_name;
pub use problem::{Problem, Problems};
pub use tree::*;

/// JSON schema of the config file, as `docs/reference/settings.schema.json` holds it.
#[must_use]
pub fn json_schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Settings).to_value();
    if let Some(table) = schema.as_object_mut() {
        table.insert("title".into(), "Plimsoll settings".into());
    }
    schema
}

#[cfg(test)]
mod tests;
