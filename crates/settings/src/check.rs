//! Unknown keys and wrong types, before serde sees the value.
//!
//! serde stops at the first error and quotes the value it did not like. Here every error is found, each names the
//! nearest valid key or the type that was expected, and no value is quoted.

use crate::nearest::nearest;
use crate::problem::Problem;
use crate::shape::{Field, Shape};
use toml::Value;

/// All keys of `value` that `shape` does not know, and all values of a wrong type.
pub(crate) fn check(value: &Value, shape: &Shape) -> Vec<Problem> {
    let mut found = Vec::new();
    walk("", value, shape, shape, &mut found);
    found
}

fn walk(path: &str, value: &Value, shape: &Shape, root: &Shape, found: &mut Vec<Problem>) {
    match (shape, value) {
        (Shape::Table(fields), Value::Table(table)) => {
            for (key, value) in table {
                let below = join(path, key);
                match fields.iter().find(|field| field.name == *key) {
                    Some(field) => walk(&below, value, &field.shape, root, found),
                    None => found.push(unknown(path, key, fields, root)),
                }
            }
            for field in fields.iter().filter(|field| field.required && !table.contains_key(&field.name)) {
                found.push(Problem::at(join(path, &field.name), "is missing; every entry needs it"));
            }
        }
        (Shape::Array(of), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                walk(&format!("{path}[{index}]"), item, of, root, found);
            }
        }
        (Shape::Choice(words), Value::String(given)) if !words.iter().any(|word| word.name == *given) => {
            let names = words.iter().map(|word| word.name.as_str());
            let meant = nearest(given, names).first().map(|name| format!(", did you mean \"{name}\"?"));
            found.push(Problem::at(path, format!("must be {}{}", shape.expected(), meant.unwrap_or_default())));
        }
        (Shape::Integer, Value::Integer(given)) if *given < 0 => {
            found.push(Problem::at(path, "must not be negative"));
        }
        (shape, value) if !fits(shape, value) => {
            let expected = shape.expected();
            found.push(Problem::at(path, format!("must be {expected}, not a {}", value_type(value))));
        }
        _ => {}
    }
}

fn fits(shape: &Shape, value: &Value) -> bool {
    match shape {
        Shape::Table(_) => value.is_table(),
        Shape::Array(_) => value.is_array(),
        Shape::Text | Shape::Secret | Shape::Choice(_) => value.is_str(),
        Shape::Integer => value.is_integer(),
        Shape::Number => value.is_float() || value.is_integer(),
        Shape::Flag => value.is_bool(),
    }
}

fn value_type(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Integer(_) => "whole number",
        Value::Float(_) => "number with a fraction",
        Value::Boolean(_) => "truth value",
        Value::Datetime(_) => "date",
        Value::Array(_) => "array",
        Value::Table(_) => "table",
    }
}

fn unknown(path: &str, key: &str, siblings: &[Field], root: &Shape) -> Problem {
    let full = join(path, key);
    let names = || siblings.iter().map(|field| field.name.as_str());
    let mut meant: Vec<String> = nearest(key, names()).into_iter().map(String::from).collect();
    if meant.is_empty() {
        meant = elsewhere(key, root);
    }
    let message = if meant.is_empty() {
        let all: Vec<_> = names().map(|name| format!("`{name}`")).collect();
        format!("unknown key `{full}`, valid here: {}", all.join(", "))
    } else {
        let all: Vec<_> = meant.iter().map(|name| format!("`{name}`")).collect();
        format!("unknown key `{full}`, did you mean {}", all.join(" or "))
    };
    Problem::new(full, message)
}

/// Full paths of keys with exactly this name in other tables.
fn elsewhere(key: &str, root: &Shape) -> Vec<String> {
    let mut found = Vec::new();
    for section in root.fields() {
        if section.shape.field(key).is_some() {
            found.push(format!("{}.{key}", section.name));
        }
    }
    found
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
