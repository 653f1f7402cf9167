//! Values as Python writes them: `json.dumps`, `str` and `repr` of floats.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize as _;
use serde_json::ser::Formatter;
use std::io;

/// `{{ value }}`.
pub(super) fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&display(value)),
    };
    written.map_err(Error::from)
}

/// `str(value)`.
pub(super) fn display(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Number => {
            let mut out = String::new();
            write_repr(value, &mut out);
            out
        }
        _ => value.to_string(),
    }
}

/// `repr(value)`.
fn write_repr(value: &Value, out: &mut String) {
    let items = || value.try_iter().into_iter().flatten().enumerate();
    match value.kind() {
        ValueKind::Number => out.push_str(&float(value).map_or_else(|| value.to_string(), repr)),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (at, item) in items() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_repr(&item, out);
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in items() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_repr(&key, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        _ => out.push_str(&format!("{value:?}")),
    }
}

fn float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)` of `transformers`: `json.dumps`
/// without jinja's HTML escapes.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its options so")]
pub(super) fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let wrong = |what: &'static str| Error::new(ErrorKind::InvalidOperation, what);
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let named: Option<Value> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let indent = match named.or(indent).filter(|indent| !indent.is_none()) {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(width) => {
            Some(" ".repeat(width.as_usize().ok_or_else(|| wrong("indent is neither a number nor a text"))?))
        }
    };
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(wrong("separators needs two texts")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let form = Dumps { item, key, indent, ascii: ascii.unwrap_or(false), depth: 0, empty: false };
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, form);
    let done = if sort.unwrap_or(false) {
        let mut json = serde_json::to_value(value).map_err(|_| wrong("not serialisable"))?;
        json.sort_all_objects();
        json.serialize(&mut serializer)
    } else {
        value.serialize(&mut serializer)
    };
    done.map_err(|_| wrong("not serialisable as JSON"))?;
    String::from_utf8(out).map_err(|_| wrong("not serialisable as text"))
}

/// The separators of `json.dumps`.
struct Dumps {
    item: String,
    key: String,
    indent: Option<String>,
    ascii: bool,
    depth: usize,
    /// Nothing was written since the last opening bracket.
    empty: bool,
}

impl Dumps {
    fn open<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !std::mem::take(&mut self.empty) {
            self.new_line(writer)?;
        }
        writer.write_all(bracket)
    }

    fn next<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.new_line(writer)
    }

    fn new_line<W: io::Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for Dumps {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }

    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(repr(value).as_bytes())
    }

    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(fragment.as_bytes());
        }
        fragment.chars().try_for_each(|letter| {
            if letter.is_ascii() && letter != '\u{7f}' {
                return writer.write_all(&[letter as u8]);
            }
            let mut units = [0; 2];
            letter.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))
        })
    }
}

/// `repr` of a float: the shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16 on.
fn repr(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan".to_owned()
        } else if value > 0.0 {
            "inf".to_owned()
        } else {
            "-inf".to_owned()
        };
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |rest| ("-", rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = value.to_string();
    if text.contains('.') { text } else { text + ".0" }
}
