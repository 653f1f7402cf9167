//! From file, environment, `--set` and flags to one [`Settings`].

use crate::check::check;
use crate::origin::{Origin, Origins};
use crate::overrides::{Step, env_path, parse_path, put, show_path, typed};
use crate::problem::{Problem, Problems};
use crate::shape::Shape;
use crate::tree::Settings;
use toml::Value;

/// Everything that settings are made of, later fields on top of earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Name for messages, and text, of the config file.
    pub file: Option<(String, String)>,
    /// Environment variables. Those that are not `PLIMSOLL_TABLE__KEY` are passed over.
    pub env: Vec<(String, String)>,
    /// Arguments of `--set`, each `KEY=VALUE`.
    pub sets: Vec<String>,
    /// Flag name, key path and value of each flag that was given.
    pub flags: Vec<(String, String, Value)>,
}

/// Settings that could be read, not yet judged.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub settings: Settings,
    origins: Origins,
}

impl Loaded {
    /// The settings, or everything that is wrong with their meaning ([`Settings::validate`]), each with its place.
    ///
    /// # Errors
    /// All problems found.
    pub fn valid(self) -> Result<Settings, Problems> {
        let mut problems = self.settings.validate();
        for problem in &mut problems {
            problem.origin = self.origins.of(&problem.path).cloned();
        }
        if problems.is_empty() { Ok(self.settings) } else { Err(Problems(problems)) }
    }
}

/// Merges the sources on top of the defaults and reads the result.
///
/// # Errors
/// Broken TOML, unknown keys, values of a wrong type: all that can be found at once.
pub fn load(sources: &Sources) -> Result<Loaded, Problems> {
    let shape = Shape::of_settings();
    let mut origins = Origins::default();
    let mut problems = Vec::new();
    let mut tree = defaults();
    if let Some((name, text)) = &sources.file {
        merge(&mut tree, Value::Table(crate::file::read(name, text, &mut origins)?));
    }
    for (path, value, origin) in overrides(sources, &shape, &mut problems) {
        match put(&mut tree, &path, value) {
            Ok(()) => origins.replace(&show_path(&path), origin),
            Err(problem) => problems.push(Problem { origin: Some(origin), ..problem }),
        }
    }
    for problem in check(&tree, &shape) {
        let origin = origins.of(&problem.path).cloned();
        problems.push(Problem { origin, ..problem });
    }
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    match deserialise(tree) {
        Ok(settings) => Ok(Loaded { settings, origins }),
        Err(problem) => {
            let origin = origins.of(&problem.path).cloned();
            Err(Problem { origin, ..problem }.into())
        }
    }
}

/// All defaults as TOML, so that a layer may name one key of a table and leave the others.
fn defaults() -> Value {
    Value::try_from(Settings::default()).unwrap_or_else(|_| Value::Table(toml::Table::new()))
}

/// Tables are merged key by key; anything else is replaced whole.
fn merge(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Table(below), Value::Table(above)) => {
            for (key, value) in above {
                match below.get_mut(&key) {
                    Some(old) => merge(old, value),
                    None => {
                        below.insert(key, value);
                    }
                }
            }
        }
        (below, above) => *below = above,
    }
}

type Override = (Vec<Step>, Value, Origin);

fn overrides(sources: &Sources, shape: &Shape, problems: &mut Vec<Problem>) -> Vec<Override> {
    let mut all = Vec::new();
    let mut take = |parsed: Result<(Vec<Step>, Value), Problem>, origin: Origin| match parsed {
        Ok((path, value)) => all.push((path, value, origin)),
        Err(problem) => problems.push(Problem { origin: Some(origin), ..problem }),
    };
    let mut env: Vec<_> = sources.env.iter().filter_map(|(name, text)| Some((env_path(name)?, name, text))).collect();
    env.sort();
    for (path, name, text) in env {
        take(typed(&path, text, shape).map(|value| (path, value)), Origin::Env(name.clone()));
    }
    for text in &sources.sets {
        take(read_set(text, shape), Origin::Set);
    }
    for (flag, path, value) in &sources.flags {
        take(parse_path(path).map(|path| (path, value.clone())), Origin::Flag(flag.clone()));
    }
    all
}

fn read_set(text: &str, shape: &Shape) -> Result<(Vec<Step>, Value), Problem> {
    // The text is not repeated in the message: what stands in it may be a secret.
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| Problem::new("", "not KEY=VALUE, write it like `gateway.listen=127.0.0.1:8080`"))?;
    let path = parse_path(key.trim())?;
    let value = typed(&path, value, shape)?;
    Ok((path, value))
}

fn deserialise(tree: Value) -> Result<Settings, Problem> {
    serde_path_to_error::deserialize::<_, Settings>(tree).map_err(|error| {
        let path = error.path().to_string();
        let what = error.inner().message().trim().to_owned();
        let hint = if what.contains("socket address") { ", write it like 127.0.0.1:8080" } else { "" };
        Problem::at(path, format!("cannot be used: {what}{hint}"))
    })
}
