//! Reads the Prometheus text format that engines expose at `/metrics`.
//!
//! Why our own: the usual parser crates drop every name with a colon, and `vllm:` and `sglang:` are the prefixes of
//! all that matters here. The rule is tolerance per line: a line that makes no sense is passed over, the next one is
//! read. Nothing is copied; a scrape of 60 kB is walked once and only the wanted samples are looked at.
//!
//! Source: Prometheus exposition format 0.0.4 and OpenMetrics 1.0 (exemplars after ` # `, time stamps, `# EOF`).

use std::borrow::Cow;

/// One sample line. Borrows from the scrape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Metric name with its suffix (`_total`, `_bucket`, ...).
    pub name: &'a str,
    /// What stands between the braces, still escaped; read through [`Sample::label`].
    labels: &'a str,
    /// May be NaN or infinite; see [`Sample::count`].
    pub value: f64,
}

/// All samples of a scrape in their order. Comments, empty lines and broken lines are passed over.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.split('\n').filter_map(parse_line)
}

/// One line, or `None` where it is no sample.
#[must_use]
pub fn parse_line(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_matches([' ', '\t', '\r']);
    let name_end = line.find(|c: char| !is_name_char(c)).unwrap_or(line.len());
    let (name, rest) = line.split_at(name_end);
    // `#` and digits cannot start a name.
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    let rest = rest.trim_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(inside) => {
            let end = closing_brace(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
    };
    // A time stamp or an exemplar may follow; neither is needed.
    let value = rest.split_ascii_whitespace().next()?;
    Some(Sample { name, labels, value: parse_value(value)? })
}

impl<'a> Sample<'a> {
    /// The value of a label, unescaped. `None` where the label is absent.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<Cow<'a, str>> {
        self.labels().find(|(name, _)| *name == key).map(|(_, value)| unescape(value))
    }

    /// Names and still escaped values.
    pub fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let mut rest = self.labels;
        std::iter::from_fn(move || {
            let (pair, after) = next_label(rest)?;
            rest = after;
            Some(pair)
        })
    }

    /// The value as a count: `None` for NaN, infinities and anything below zero, which no count can be.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        // `as` truncates; a gauge of a count is a whole number anyway.
        (self.value.is_finite() && self.value >= 0.0).then_some(self.value as u64)
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Index of the brace that ends the label set: braces inside quoted values do not.
fn closing_brace(inside: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    let mut at = 0;
    let mut quoted = false;
    loop {
        at += if quoted {
            memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?
        } else {
            memchr::memchr2(b'"', b'}', bytes.get(at..)?)?
        };
        match bytes[at] {
            b'}' => return Some(at),
            b'"' => quoted = !quoted,
            // A backslash: whatever follows it is text.
            _ => at += 1,
        }
        at += 1;
    }
}

fn next_label(text: &str) -> Option<((&str, &str), &str)> {
    let text = text.trim_start_matches([',', ' ', '\t']);
    let (name, rest) = text.split_once('=')?;
    let value = rest.trim_start().strip_prefix('"')?;
    let bytes = value.as_bytes();
    let mut end = 0;
    loop {
        end += memchr::memchr2(b'"', b'\\', bytes.get(end..)?)?;
        if bytes[end] == b'"' {
            return Some(((name.trim(), &value[..end]), &value[end + 1..]));
        }
        end += 2;
    }
}

fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some(c @ ('\\' | '"')) => out.push(c),
            // An unknown escape is kept as it stands.
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    Cow::Owned(out)
}

/// `f64::from_str` knows `NaN`, `inf`, `+Inf` and exponents, in any case.
fn parse_value(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
