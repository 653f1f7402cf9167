//! Python's methods on strings, lists and dicts that real templates call, and jinja2's filters where minijinja's differ.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Enough for every template; more would only use up memory.
const MAX_INDENT: usize = 1024;

/// jinja2's `indent(width=4, first=False, blank=False)`, which keeps a line break at the end.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its arguments so")]
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = named.get::<Option<Value>>("width")?.or(width);
    let first = named.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
    let blank = named.get::<Option<bool>>("blank")?.or(blank).unwrap_or(false);
    named.assert_all_used()?;
    let indent = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_usize() {
            Some(count) => " ".repeat(count.min(MAX_INDENT)),
            None => width.to_string(),
        },
    };
    let mut out = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        out.push_str(if at > 0 { "\n" } else { "" });
        if (at > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The first letter of every run of letters large, the others small.
fn title(text: &str) -> String {
    let mut inside = false;
    text.chars().fold(String::with_capacity(text.len()), |mut out, letter| {
        let cased = letter.is_lowercase() || letter.is_uppercase();
        if cased && !inside {
            out.extend(letter.to_uppercase());
        } else {
            out.extend(letter.to_lowercase());
        }
        inside = cased;
        out
    })
}

/// Those of `pycompat`, and a few that it lacks.
pub(super) fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return unknown_method_callback(state, value, method, args) };
    match method {
        "title" => {
            from_args::<()>(args)?;
            Ok(Value::from(title(text)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if method == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "rsplit" => {
            let (separator, most): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let mut parts: Vec<&str> = match most.and_then(|most| usize::try_from(most).ok()) {
                Some(most) => text.rsplitn(most.saturating_add(1), separator).collect(),
                None => text.rsplit(separator).collect(),
            };
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}
