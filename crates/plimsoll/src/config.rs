//! From the command line to [`Settings`].

use crate::cli::SettingsArgs;
use crate::{Failure, telemetry};
use plimsoll_settings::{Origin, Problem, Problems, Settings, Sources, load};
use toml::{Table, Value};

/// Largest config file in bytes; anything larger is the wrong file.
const MOST_FILE_BYTES: u64 = 4 << 20;

impl SettingsArgs {
    /// File, environment, `--set` and flags, merged and judged. Reads the file anew each time, so a reload is the same
    /// call again.
    ///
    /// # Errors
    /// All problems found, exit code 2.
    pub fn load(&self) -> Result<Settings, Failure> {
        let sources = self.sources()?;
        let settings = load(&sources).and_then(plimsoll_settings::Loaded::valid).and_then(log_filter);
        settings.map_err(|problems| refuse(&problems))
    }

    fn sources(&self) -> Result<Sources, Failure> {
        let file = match &self.config {
            Some(path) => {
                let name = path.display().to_string();
                let text = read_file(path).map_err(|why| {
                    Failure::usage(format!("cannot read the config file {name}: {why}"))
                        .hint("`plimsoll serve` also runs without a config file")
                })?;
                Some((name, text))
            }
            None => None,
        };
        let env =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Ok(Sources { file, env: env.collect(), sets: self.set.clone(), flags: self.flags() })
    }

    fn flags(&self) -> Vec<(String, String, Value)> {
        let mut flags = Vec::new();
        let mut text = |flag: &str, path: &str, value: Option<&str>| {
            if let Some(value) = value {
                flags.push((flag.to_owned(), path.to_owned(), Value::String(value.to_owned())));
            }
        };
        text("--listen", "gateway.listen", self.listen.as_deref());
        text("--admin", "admin.listen", self.admin.as_deref());
        text("--admin-token", "admin.token", self.admin_token.as_deref());
        text("--policy", "policy.name", self.policy.as_deref());
        text("--log", "telemetry.log", self.log.as_deref());
        text("--log-format", "telemetry.log_format", self.log_format.as_deref());
        let decision_log = self.decision_log.as_ref().map(|file| file.to_string_lossy());
        text("--decision-log", "decisions.log_file", decision_log.as_deref());
        if !self.nats.is_empty() {
            let servers = self.nats.iter().map(|url| Value::String(url.clone())).collect();
            flags.push(("--nats".into(), "cluster.nats".into(), Value::Array(servers)));
        }
        if !self.engine.is_empty() {
            let engines = self.engine.iter().map(|url| self.engine_entry(url)).collect();
            flags.push(("--engine".into(), "engines".into(), Value::Array(engines)));
        }
        flags
    }

    fn engine_entry(&self, url: &str) -> Value {
        let mut entry = Table::from_iter([("url".to_owned(), Value::String(url.to_owned()))]);
        if let Some(key) = &self.api_key {
            entry.insert("api_key".to_owned(), Value::String(key.clone()));
        }
        Value::Table(entry)
    }
}

fn read_file(path: &std::path::Path) -> Result<String, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MOST_FILE_BYTES {
        return Err(format!("it has {size} bytes, more than any config"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

/// The filter's grammar belongs to the logging crate, so it is judged here and not in the settings.
fn log_filter(settings: Settings) -> Result<Settings, Problems> {
    match telemetry::parse_filter(&settings.telemetry.log) {
        Ok(_) => Ok(settings),
        Err(what) => Err(Problem::at("telemetry.log", what).into()),
    }
}

fn refuse(problems: &Problems) -> Failure {
    let failure = Failure::usage(problems);
    let from_file = problems.0.iter().any(|problem| matches!(problem.origin, Some(Origin::File { .. })));
    if from_file {
        failure.hint(
            "docs/reference/settings.md lists every key; `plimsoll check --print-schema` prints them for an editor",
        )
    } else {
        failure.hint(
            "docs/reference/settings.md lists every key with its default, and how flags and the environment spell it",
        )
    }
}
