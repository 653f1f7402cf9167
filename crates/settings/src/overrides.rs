//! Values from the environment, `--set` and flags, put into the tree by path.
//!
//! A shell has only text, so the type comes from the shape of the key: `PLIMSOLL_ADMIN__TOKEN=1234` is the string
//! "1234", `PLIMSOLL_LIMITS__BODY_BYTES=1234` a number. Tables and arrays are written as TOML.

use crate::problem::Problem;
use crate::shape::Shape;
use toml::Value;

const PREFIX: &str = "PLIMSOLL_";

/// Steps of a path; no key lies deeper. The tree is walked by recursion, so depth must not come from outside.
const MOST_STEPS: usize = 32;

/// One step of a path: `engines[0].url` and `engines.0.url` are both Key, Index, Key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// A path such as `engines[0].url`, with a problem where it is empty or broken.
pub(crate) fn parse_path(text: &str) -> Result<Vec<Step>, Problem> {
    let mut steps = Vec::new();
    for part in text.replace('[', ".").replace(']', "").split('.') {
        if part.is_empty() {
            return Err(Problem::new(text, format!("`{text}` is not a key, write it like `gateway.listen`")));
        }
        if steps.len() == MOST_STEPS {
            let message =
                format!("a key of more than {MOST_STEPS} parts does not exist, write it like `gateway.listen`");
            return Err(Problem::new("", message));
        }
        steps.push(match part.parse() {
            Ok(index) => Step::Index(index),
            Err(_) => Step::Key(part.to_owned()),
        });
    }
    Ok(steps)
}

/// `engines[0].url` for Key, Index, Key.
pub(crate) fn show_path(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Index(index) => text.push_str(&format!("[{index}]")),
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.push_str(&format!(".{key}")),
        }
    }
    text
}

/// Path meant by an environment variable, `None` for one that is not a setting. `PLIMSOLL_GATEWAY__LISTEN` is
/// `gateway.listen`; names without a double underscore (`PLIMSOLL_CONFIG`) are not settings.
pub(crate) fn env_path(name: &str) -> Option<Vec<Step>> {
    let rest = name.strip_prefix(PREFIX)?;
    if !rest.contains("__") {
        return None;
    }
    parse_path(&rest.to_lowercase().replace("__", ".")).ok()
}

/// Name of the environment variable for a key path; array entries take their index: `PLIMSOLL_ENGINES__0__URL`.
#[must_use]
pub fn env_name(path: &str) -> String {
    let path = path.replace("[]", "[0]").replace('[', ".").replace(']', "");
    format!("{PREFIX}{}", path.replace('.', "__").to_uppercase())
}

/// Reads `text` as the type that the key at `steps` has. Unknown keys become strings and are refused later, with the
/// nearest valid key.
pub(crate) fn typed(steps: &[Step], text: &str, root: &Shape) -> Result<Value, Problem> {
    let Some(shape) = shape_at(steps, root) else { return Ok(Value::String(text.to_owned())) };
    let refuse = || Problem::at(show_path(steps), format!("must be {}", shape.expected()));
    match shape {
        Shape::Text | Shape::Secret | Shape::Choice(_) => Ok(Value::String(text.to_owned())),
        Shape::Integer => text.trim().replace('_', "").parse().map(Value::Integer).map_err(|_| refuse()),
        Shape::Number => text.trim().replace('_', "").parse().map(Value::Float).map_err(|_| refuse()),
        Shape::Flag => text.trim().parse().map(Value::Boolean).map_err(|_| refuse()),
        Shape::Table(_) | Shape::Array(_) => {
            let table: toml::Table = toml::from_str(&format!("value = {text}"))
                .map_err(|_| Problem::at(show_path(steps), format!("must be {} written as TOML", shape.expected())))?;
            table.get("value").cloned().ok_or_else(refuse)
        }
    }
}

fn shape_at<'a>(steps: &[Step], root: &'a Shape) -> Option<&'a Shape> {
    let mut shape = root;
    for step in steps {
        shape = match (step, shape) {
            (Step::Key(key), Shape::Table(_)) => &shape.field(key)?.shape,
            (Step::Index(_), Shape::Array(of)) => of,
            _ => return None,
        };
    }
    Some(shape)
}

/// Puts `value` at `steps`, making tables on the way. An index may name an entry that is there or the next one.
pub(crate) fn put(root: &mut Value, steps: &[Step], value: Value) -> Result<(), Problem> {
    let mut at = root;
    for (depth, step) in steps.iter().enumerate() {
        at = match step {
            Step::Key(key) => {
                if !at.is_table() {
                    *at = Value::Table(toml::Table::new());
                }
                let Value::Table(table) = at else { unreachable!("made a table above") };
                table.entry(key).or_insert_with(|| Value::Table(toml::Table::new()))
            }
            Step::Index(index) => {
                if !at.is_array() {
                    *at = Value::Array(Vec::new());
                }
                let Value::Array(items) = at else { unreachable!("made an array above") };
                let count = items.len();
                if *index > count {
                    let path = show_path(&steps[..=depth]);
                    return Err(Problem::at(path, format!("leaves a gap, the next free index is {count}")));
                }
                if *index == count {
                    items.push(Value::Table(toml::Table::new()));
                }
                &mut items[*index]
            }
        };
    }
    *at = value;
    Ok(())
}
