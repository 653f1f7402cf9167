//! `plimsoll check`: is this config right, and what would `serve` do with it?
//!
//! Takes the flags of `serve`, so that a unit file's line can be tried by changing one word. Nothing listens; engines are
//! contacted with `--probe` only.

mod hash_key;
mod plan;
mod probe;

use crate::cli::CheckArgs;
use crate::{Failure, output};
use plimsoll_gateway::model_text::ModelTexts;

/// Checks, or prints what was asked for.
///
/// # Errors
/// A wrong config or a tokenizer that cannot be read (2), an engine that does not answer (1).
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    if args.print_schema {
        let schema = serde_json::to_string_pretty(&plimsoll_settings::json_schema());
        return output::data(&format!("{}\n", schema.map_err(|error| Failure::failed(error.to_string()))?));
    }
    if args.hash_key {
        return hash_key::run();
    }
    let settings = args.settings.load()?;
    if args.print_config {
        // `Secret` serialises as `***`.
        let text = toml::to_string(&settings).map_err(|error| Failure::failed(error.to_string()))?;
        return output::data(&text);
    }
    let texts = ModelTexts::load(&settings).map_err(Failure::usage)?;
    output::data(&plan::describe(&settings, &texts))?;
    if args.probe { probe::run(&settings) } else { Ok(()) }
}
