//! Logs on stderr, with a filter that can be changed while running.

use crate::{Failure, output};
use plimsoll_settings::{LogFormat, Telemetry};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt, reload};

/// Sets another log filter; an error says what is wrong with the text.
pub type SetFilter = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Reads a filter such as `info` or `plimsoll_gateway=debug`.
///
/// # Errors
/// What is wrong with it, as it follows "`telemetry.log`".
pub fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    // A word alone is a target, all of whose lines are wanted, and nobody else's: what a mistyped level would be too.
    if let Some(word) = text.split(',').map(str::trim).find(|part| is_mistyped_level(part)) {
        return Err(format!(
            "has `{word}`, which is no level (off, error, warn, info, debug, trace); for all lines of a target write `{word}=trace`"
        ));
    }
    let filter = EnvFilter::builder()
        .parse(text)
        .map_err(|error| format!("is not a log filter such as `info` or `plimsoll_gateway=debug`: {error}"))?;
    // It has a line for each try to connect, which is one a second for as long as NATS is away; the gateway says that once.
    let quiet = (!text.contains("async_nats")).then(|| "async_nats=warn".parse().ok()).flatten();
    Ok(match quiet {
        Some(quiet) => filter.add_directive(quiet),
        None => filter,
    })
}

fn is_mistyped_level(part: &str) -> bool {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    // `EnvFilter` takes numbers as levels too.
    plain && part.parse::<u8>().is_err() && !levels.iter().any(|level| part.eq_ignore_ascii_case(level))
}

/// Starts logging for the whole process.
///
/// # Errors
/// A broken filter, or logging that was started before.
pub fn start(telemetry: &Telemetry) -> Result<SetFilter, Failure> {
    let filter = parse_filter(&telemetry.log).map_err(|what| Failure::usage(format!("`telemetry.log` {what}")))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(output::colours());
    let lines = match telemetry.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(|error| Failure::failed(format!("cannot start logging: {error}")))?;
    Ok(Box::new(move |text| {
        let filter = parse_filter(text)?;
        handle.reload(filter).map_err(|error| format!("the log filter cannot be changed: {error}"))
    }))
}

#[cfg(test)]
mod tests {
    use super::parse_filter;

    #[test]
    fn a_mistyped_level_is_no_target() {
        for good in ["info", "WARN", "off", "plimsoll_gateway=debug", "info,hyper=trace", "plimsoll_gateway", "2"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["infos", "info,debgu", "plimsoll_gateway=loud"] {
            assert!(parse_filter(bad).is_err(), "{bad}");
        }
    }
}
