//! The config file's text as a TOML value, with the place of every key.

use crate::origin::{Origin, Origins};
use crate::problem::{Problem, Problems};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reads `text` and records where each key stands. A syntax error is told by line and column, without the line itself:
/// it may hold a secret.
pub(crate) fn read(name: &str, text: &str, origins: &mut Origins) -> Result<toml::Table, Problems> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = Lines::of(text);
    let place = |offset: usize| lines.place(name, offset);
    let refuse = |error: &toml::de::Error| {
        let mut problem = Problem::new("", format!("not valid TOML: {}", error.message()));
        problem.origin = error.span().map(|span| place(span.start));
        Problems::from(problem)
    };
    let spanned = DeTable::parse(text).map_err(|error| refuse(&error))?;
    record_table("", spanned.get_ref(), origins, &place);
    toml::from_str(text).map_err(|error| refuse(&error))
}

fn record_table(path: &str, table: &DeTable<'_>, origins: &mut Origins, place: &dyn Fn(usize) -> Origin) {
    for (key, value) in table {
        let path = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
        origins.record(&path, place(key.span().start));
        record_value(&path, value, origins, place);
    }
}

fn record_value(path: &str, value: &Spanned<DeValue<'_>>, origins: &mut Origins, place: &dyn Fn(usize) -> Origin) {
    match value.get_ref() {
        DeValue::Table(table) => record_table(path, table, origins, place),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                origins.record(&path, place(item.span().start));
                record_value(&path, item, origins, place);
            }
        }
        _ => {}
    }
}

/// Where lines begin. Found once: a file of ten thousand keys would else be read from its start for each of them.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(end, _)| end + 1)).collect();
        Lines { text, starts }
    }

    fn place(&self, name: &str, offset: usize) -> Origin {
        let offset = offset.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        let column = self.text.get(start..offset).unwrap_or("").chars().count() + 1;
        Origin::File { name: name.to_owned(), line, column }
    }
}
