//! Other people's logs as a trace.

use super::ImportArgs;
use crate::commands::outputs::{Output, apart};
use crate::{Failure, output};
use plimsoll_sim::input::COLUMNS;
use plimsoll_sim::{Input, InputOptions};
use std::fmt::Write as _;

/// Mooncake's.
const BLOCK_TOKENS: u64 = 512;

pub(super) fn run(args: &ImportArgs) -> Result<(), Failure> {
    if args.columns {
        let mut text = String::new();
        for (name, column, _) in COLUMNS {
            let _ = writeln!(text, "{name:<34} {}", column.as_str());
        }
        return output::data(&text);
    }
    let (Some(from), Some(to)) = (&args.from, &args.to) else {
        return Err(Failure::usage("give --from and --to"));
    };
    apart(std::iter::once(from.as_path()), &[Some(to)])?;
    let file = Output::open(to)?;
    let options = InputOptions {
        skip_bad: args.skip_bad,
        block_tokens: BLOCK_TOKENS,
        unordered: true,
        ..InputOptions::default()
    };
    let input = Input::open(from, options).map_err(Failure::failed)?;
    if input.block_tokens() != BLOCK_TOKENS {
        return Err(Failure::usage("this is a trace of sessions already; `plimsoll sim run` reads it as it is"));
    }
    let (skipped, doubt) = (input.skipped(), input.doubt());
    if let Some(note) = input.drawn() {
        output::note(&note);
    }
    let sessions = input.sorted().map_err(|error| match args.skip_bad {
        true => Failure::failed(error),
        false => Failure::failed(error).hint("`--skip-bad` passes over rows that cannot be used"),
    })?;
    let (mut text, mut rows) = (String::new(), 0u64);
    for session in sessions {
        for call in &session.calls {
            let ids = call.prompt.block_ids().chain(call.prompt.tail.map(|tail| tail.id));
            let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
            let most = call.max_output_tokens.map_or_else(String::new, |most| format!("\"max_tokens\":{most},"));
            let _ = writeln!(
                text,
                "{{\"timestamp\":{},\"input_length\":{},\"output_length\":{},{most}\"hash_ids\":[{}]}}",
                (session.start.0 + 500_000) / 1_000_000,
                call.prompt.tokens(),
                call.output_tokens,
                ids.join(",")
            );
            rows += 1;
        }
    }
    if doubt.get() {
        output::note(plimsoll_sim::question::DOUBT);
    }
    if rows == 0 {
        return Err(Failure::failed(format!(
            "{}: no row that can be used; {} passed over",
            from.display(),
            skipped.get()
        )));
    }
    file.put(&text)?;
    output::note(&format!("{rows} requests written, {} rows passed over", skipped.get()));
    Ok(())
}
