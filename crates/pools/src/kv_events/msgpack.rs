//! A reader of msgpack that borrows and never allocates more than the bytes it was given.
//!
//! Generic decoders build a tree of values, 32 bytes for each token id of a prompt; a router reads millions of them a second and
//! keeps none. Here ids go straight into a `Vec<u32>`.

/// Why bytes are not what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Bad {
    #[error("the message ends in the middle of a value")]
    Short,
    #[error("a value of another kind stands where {0} was expected")]
    Kind(&'static str),
    #[error("values are nested too deeply")]
    Deep,
}

/// Nesting of values that are passed over.
const DEEPEST: u32 = 32;

/// What stands next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// Elements follow.
    Array(u32),
    /// Pairs follow.
    Map(u32),
    /// An extension; nobody here uses one.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Bad> {
        let (head, tail) = self.0.split_at_checked(bytes).ok_or(Bad::Short)?;
        self.0 = tail;
        Ok(head)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn length(&mut self, bytes: usize) -> Result<usize, Bad> {
        Ok(self.take(bytes)?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn text(&mut self, bytes: usize) -> Result<Value<'a>, Bad> {
        let bytes = self.take(bytes)?;
        // Python writes surrogates where a name was not UTF-8: bytes, then.
        Ok(std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Text))
    }

    /// An announced number of elements, each at least one byte: more than are left cannot be.
    fn elements(&mut self, announced: usize, bytes_each: usize) -> Result<u32, Bad> {
        if announced > self.0.len() / bytes_each {
            return Err(Bad::Short);
        }
        u32::try_from(announced).map_err(|_| Bad::Short)
    }

    /// The next value; of arrays and maps the head.
    pub(super) fn value(&mut self) -> Result<Value<'a>, Bad> {
        let tag = self.take(1)?[0];
        Ok(match tag {
            0x00..=0x7f => Value::Unsigned(u64::from(tag)),
            0x80..=0x8f => Value::Map(self.elements(usize::from(tag & 15), 2)?),
            0x90..=0x9f => Value::Array(self.elements(usize::from(tag & 15), 1)?),
            0xa0..=0xbf => self.text(usize::from(tag & 31))?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool,
            0xc4..=0xc6 => {
                let len = self.length(1 << (tag - 0xc4))?;
                Value::Bytes(self.take(len)?)
            }
            0xc7..=0xc9 => {
                let len = self.length(1 << (tag - 0xc7))?;
                self.take(len.saturating_add(1))?;
                Value::Other
            }
            0xca => Value::Float(f64::from(f32::from_be_bytes(self.number()?))),
            0xcb => Value::Float(f64::from_be_bytes(self.number()?)),
            0xcc => Value::Unsigned(u64::from(u8::from_be_bytes(self.number()?))),
            0xcd => Value::Unsigned(u64::from(u16::from_be_bytes(self.number()?))),
            0xce => Value::Unsigned(u64::from(u32::from_be_bytes(self.number()?))),
            0xcf => Value::Unsigned(u64::from_be_bytes(self.number()?)),
            0xd0 => Value::Signed(i64::from(i8::from_be_bytes(self.number()?))),
            0xd1 => Value::Signed(i64::from(i16::from_be_bytes(self.number()?))),
            0xd2 => Value::Signed(i64::from(i32::from_be_bytes(self.number()?))),
            0xd3 => Value::Signed(i64::from_be_bytes(self.number()?)),
            0xd4..=0xd8 => {
                self.take(1 + (1 << (tag - 0xd4)))?;
                Value::Other
            }
            0xd9..=0xdb => {
                let len = self.length(1 << (tag - 0xd9))?;
                self.text(len)?
            }
            0xdc | 0xdd => {
                let len = self.length(2 << (tag - 0xdc))?;
                Value::Array(self.elements(len, 1)?)
            }
            0xde | 0xdf => {
                let len = self.length(2 << (tag - 0xde))?;
                Value::Map(self.elements(len, 2)?)
            }
            0xe0..=0xff => Value::Signed(i64::from(tag as i8)),
            0xc1 => Value::Other,
        })
    }

    /// Passes over the next value, whatever it holds.
    pub(super) fn skip(&mut self) -> Result<(), Bad> {
        self.skip_nested(DEEPEST)
    }

    fn skip_nested(&mut self, deeper: u32) -> Result<(), Bad> {
        let inside = match self.value()? {
            Value::Array(len) => u64::from(len),
            Value::Map(len) => 2 * u64::from(len),
            _ => 0,
        };
        if inside > 0 && deeper == 0 {
            return Err(Bad::Deep);
        }
        (0..inside).try_for_each(|_| self.skip_nested(deeper - 1))
    }
}
