//! Config files and overrides: any text is settings or a list of problems, and no problem repeats a value, which may be a
//! secret in the wrong place.

use plimsoll_settings::{Problems, Sources, load};

/// Stands in for a secret; no name or message of the program contains it.
const SECRET: &str = "Zq7Xw9";

/// Keys of each type, and two that do not exist.
const KEYS: &[&str] = &[
    "admin.token",
    "gateway.listen",
    "gateway.max_connections",
    "gateway.tls",
    "policy.name",
    "policy.tie_fraction",
    "engines",
    "engines[0].url",
    "engines[0].kind",
    "engines[0].models",
    "engines[3].url",
    "telemetry.otlp_endpoint",
    "auth.keys[0].sha256",
    "admin.tokem",
    "nonsense",
];

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let file = Sources { file: Some(("plimsoll.toml".into(), text.clone().into_owned())), ..Sources::default() };
    judge(&file);
    // Each reading walks the whole schema; one of the other ways in per input is enough.
    let draw = data.iter().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte as usize));
    let at = KEYS[draw / 4 % KEYS.len()];
    let hidden = format!("{SECRET}{}", text.lines().next().unwrap_or_default());
    match draw % 4 {
        0 => drop(judge(&Sources { sets: vec![text.clone().into_owned()], ..Sources::default() })),
        1 => {
            let (key, value) = text.split_once('=').unwrap_or((&text, ""));
            judge(&Sources { env: vec![(format!("PLIMSOLL_{key}"), value.to_owned())], ..Sources::default() });
        }
        2 => keeps_quiet(&Sources { sets: vec![format!("{at}={hidden}")], ..Sources::default() }),
        _ => keeps_quiet(&Sources { sets: vec![format!("{at}=[{hidden:?}]")], ..Sources::default() }),
    }
}

fn judge(sources: &Sources) -> Option<Problems> {
    let problems = match load(sources) {
        Err(problems) => problems,
        Ok(loaded) if names_files(&loaded.settings) => return None,
        Ok(loaded) => loaded.valid().err()?,
    };
    assert!(!problems.0.is_empty(), "refused without a reason");
    for problem in &problems.0 {
        assert!(!problem.message.is_empty() && !problem.to_string().is_empty());
    }
    Some(problems)
}

fn keeps_quiet(sources: &Sources) {
    if let Some(problems) = judge(sources) {
        let text = problems.to_string();
        assert!(!text.contains(SECRET), "a problem repeats the value: {text}");
    }
}

/// The check of their meaning would open them, and the input may name any file of this machine.
fn names_files(settings: &plimsoll_settings::Settings) -> bool {
    settings.gateway.tls.is_some()
        || settings.decisions.log_file.is_some()
        || settings.engines.iter().any(|engine| engine.ca_file.is_some())
}
