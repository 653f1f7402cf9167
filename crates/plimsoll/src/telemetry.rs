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
