//! msgpack as a tree of values, the obvious way.

/// Containers with something in them lie in each other at most this often.
const DEEPEST: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    Nil,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
    /// Booleans, extensions and the tag that is none.
    Other,
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(bytes)?;
    *rest = tail;
    Some(head)
}

fn number(rest: &mut &[u8], bytes: usize) -> Option<u64> {
    Some(take(rest, bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Is it a map, and how many elements or pairs follow? More than there are bytes for cannot be.
pub(super) fn head(rest: &mut &[u8]) -> Option<(bool, usize)> {
    let tag = take(rest, 1)?[0];
    let (map, len) = match tag {
        0x80..=0x8f => (true, u64::from(tag & 15)),
        0x90..=0x9f => (false, u64::from(tag & 15)),
        0xdc => (false, number(rest, 2)?),
        0xdd => (false, number(rest, 4)?),
        0xde => (true, number(rest, 2)?),
        0xdf => (true, number(rest, 4)?),
        _ => return None,
    };
    let len = usize::try_from(len).ok()?;
    (len <= rest.len() / if map { 2 } else { 1 }).then_some((map, len))
}

/// The next value; `None` where the bytes end in it, or it is too deep.
pub(super) fn parse(rest: &mut &[u8], depth: usize) -> Option<Tree> {
    let tag = *rest.first()?;
    if matches!(tag, 0x80..=0x9f | 0xdc..=0xdf) {
        let (map, len) = head(rest)?;
        if len > 0 && depth == DEEPEST {
            return None;
        }
        return Some(if map {
            let pair = |_| Some((parse(rest, depth + 1)?, parse(rest, depth + 1)?));
            Tree::Map((0..len).map(pair).collect::<Option<_>>()?)
        } else {
            Tree::Array((0..len).map(|_| parse(rest, depth + 1)).collect::<Option<_>>()?)
        });
    }
    *rest = &rest[1..];
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Tree::Text(text.to_owned()),
        Err(_) => Tree::Bytes(bytes.to_vec()),
    };
    Some(match tag {
        0x00..=0x7f => Tree::Unsigned(tag.into()),
        0xa0..=0xbf => text(take(rest, usize::from(tag & 31))?),
        0xc0 => Tree::Nil,
        0xc4..=0xc6 => {
            let len = number(rest, [1, 2, 4][usize::from(tag - 0xc4)])?;
            Tree::Bytes(take(rest, len as usize)?.to_vec())
        }
        0xc7..=0xc9 => {
            let len = number(rest, [1, 2, 4][usize::from(tag - 0xc7)])?;
            take(rest, len as usize + 1)?;
            Tree::Other
        }
        0xca => Tree::Float(f32::from_bits(number(rest, 4)? as u32).into()),
        0xcb => Tree::Float(f64::from_bits(number(rest, 8)?)),
        0xcc => Tree::Unsigned(number(rest, 1)?),
        0xcd => Tree::Unsigned(number(rest, 2)?),
        0xce => Tree::Unsigned(number(rest, 4)?),
        0xcf => Tree::Unsigned(number(rest, 8)?),
        0xd0 => Tree::Signed((number(rest, 1)? as i8).into()),
        0xd1 => Tree::Signed((number(rest, 2)? as i16).into()),
        0xd2 => Tree::Signed((number(rest, 4)? as i32).into()),
        0xd3 => Tree::Signed(number(rest, 8)? as i64),
        0xd4..=0xd8 => {
            take(rest, 1 + [1, 2, 4, 8, 16][usize::from(tag - 0xd4)])?;
            Tree::Other
        }
        0xd9..=0xdb => {
            let len = number(rest, [1, 2, 4][usize::from(tag - 0xd9)])?;
            text(take(rest, len as usize)?)
        }
        0xe0..=0xff => Tree::Signed((tag as i8).into()),
        _ => Tree::Other,
    })
}
