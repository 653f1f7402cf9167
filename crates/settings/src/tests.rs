mod layers;
mod reference;
mod unknown_keys;
mod validation;

use crate::{Loaded, Problems, Sources, load};

/// Settings from a file's text alone.
fn from_file(text: &str) -> Result<Loaded, Problems> {
    load(&Sources { file: Some(("p.toml".into(), text.into())), ..Sources::default() })
}

/// All problems of a file's text, as an operator reads them.
fn complaints(text: &str) -> Vec<String> {
    match from_file(text).and_then(Loaded::valid) {
        Ok(settings) => panic!("accepted: {settings:?}"),
        Err(problems) => problems.0.iter().map(ToString::to_string).collect(),
    }
}
