//! From bytes to the fields of a body, within bounds.
//!
//! As a JSON value a number takes dozens of bytes where the body has two: a body of the largest size would become
//! gigabytes before anybody has looked at it. So lists of token ids, which are what may well be long, are read as such;
//! and of everything else there are only so many values.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

#[cfg(test)]
mod tests;

/// Values in one body besides lists of token ids: numbers, texts, lists, objects and their entries.
pub(super) const MAX_VALUES: usize = 1 << 18;

/// Fields that may be token ids, in whichever body.
const ID_FIELDS: [&str; 4] = ["input_ids", "prompt", "input", "tokens"];

/// Token ids of one prompt or of several; not judged by any vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdLists {
    One(Vec<u32>),
    /// At least one.
    Many(Vec<Vec<u32>>),
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Read {
    pub(super) values: Map<String, Value>,
    pub(super) ids: BTreeMap<String, IdLists>,
}

/// Why there are no fields.
#[derive(Debug)]
pub(super) enum Unreadable {
    TooMany,
    NoObject,
    Json(serde_json::Error),
}

pub(super) fn read(body: &[u8], max_values: usize) -> Result<Read, Unreadable> {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        let json = serde_json::from_slice::<serde::de::IgnoredAny>(body);
        return Err(json.map_or_else(Unreadable::Json, |_| Unreadable::NoObject));
    }
    let room = Room(Cell::new(max_values));
    let mut from = serde_json::Deserializer::from_slice(body);
    let read = from.deserialize_map(Body(&room)).and_then(|read| from.end().map(|()| read));
    read.map_err(|error| if room.is_exceeded() { Unreadable::TooMany } else { Unreadable::Json(error) })
}

/// How many more values there may be.
struct Room(Cell<usize>);

impl Room {
    const EXCEEDED: usize = usize::MAX;

    fn take<E: Error>(&self, count: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(count).filter(|_| !self.is_exceeded());
        self.0.set(left.unwrap_or(Self::EXCEEDED));
        left.map(|_| ()).ok_or_else(|| E::custom("too many values"))
    }

    fn is_exceeded(&self) -> bool {
        self.0.get() == Self::EXCEEDED
    }

    fn number<E: Error>(&self, number: impl Into<Value>) -> Result<Value, E> {
        self.take(1)?;
        Ok(number.into())
    }

    /// What was taken for ids, among other things.
    fn numbers<E: Error>(&self, ids: Vec<u32>) -> Result<Vec<Value>, E> {
        self.take(ids.len())?;
        Ok(ids.into_iter().map(Value::from).collect())
    }
}

struct Body<'a>(&'a Room);

impl<'de> Visitor<'de> for Body<'_> {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let mut read = Read::default();
        while let Some(name) = map.next_key::<String>()? {
            self.0.take(1)?;
            // Of a name that comes twice the last one counts.
            read.ids.remove(&name);
            let depth = if ID_FIELDS.contains(&name.as_str()) { 2 } else { 0 };
            match map.next_value_seed(Any { room: self.0, depth })? {
                Item::Ids(ids) => {
                    read.values.shift_remove(&name);
                    read.ids.insert(name, IdLists::One(ids));
                }
                Item::Lists(lists) => {
                    read.values.shift_remove(&name);
                    read.ids.insert(name, IdLists::Many(lists));
                }
                other => {
                    let value = other.value(self.0)?;
                    read.values.insert(name, value);
                }
            }
        }
        Ok(read)
    }
}

/// What a value turned out to be.
enum Item {
    Id(u32),
    Ids(Vec<u32>),
    Lists(Vec<Vec<u32>>),
    Value(Value),
}

impl Item {
    fn value<E: Error>(self, room: &Room) -> Result<Value, E> {
        Ok(match self {
            Item::Value(value) => value,
            Item::Id(id) => room.number(id)?,
            Item::Ids(ids) => Value::Array(room.numbers(ids)?),
            Item::Lists(lists) => {
                let lists = lists.into_iter().map(|ids| room.numbers(ids).map(Value::Array));
                Value::Array(lists.collect::<Result<_, E>>()?)
            }
        })
    }
}

/// Any value. `depth`: so many levels of lists below here may be ids.
#[derive(Clone, Copy)]
struct Any<'a> {
    room: &'a Room,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Any<'_> {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Item, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Any<'_> {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Item, E> {
        self.room.number(Value::Null).map(Item::Value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Item, E> {
        self.room.number(value).map(Item::Value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Item, E> {
        self.room.number(value).map(Item::Value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Item, E> {
        match u32::try_from(value) {
            Ok(id) => Ok(Item::Id(id)),
            Err(_) => self.room.number(value).map(Item::Value),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Item, E> {
        self.room.number(Number::from_f64(value).map_or(Value::Null, Value::Number)).map(Item::Value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Item, E> {
        self.room.number(value).map(Item::Value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Item, E> {
        self.room.number(value).map(Item::Value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        self.room.take(1)?;
        let Any { room, depth } = self;
        let inner = Any { room, depth: depth.saturating_sub(1) };
        let (mut ids, mut lists) = (Vec::new(), Vec::new());
        let first_other = loop {
            match list.next_element_seed(inner)? {
                Some(Item::Id(id)) if depth > 0 && lists.is_empty() => ids.push(id),
                Some(Item::Ids(list)) if depth > 1 && ids.is_empty() => lists.push(list),
                other => break other,
            }
        };
        let Some(other) = first_other else {
            return Ok(match (ids.is_empty(), lists.is_empty()) {
                (false, _) => Item::Ids(ids),
                (true, false) => Item::Lists(lists),
                // Below another list it is one without ids; alone it is nothing in particular.
                (true, true) if depth == 1 => Item::Ids(ids),
                (true, true) => Item::Value(Value::Array(Vec::new())),
            });
        };
        let mut values = room.numbers(ids)?;
        for ids in lists {
            values.push(Value::Array(room.numbers(ids)?));
        }
        values.push(other.value(room)?);
        while let Some(item) = list.next_element_seed(Any { room, depth: 0 })? {
            values.push(item.value(room)?);
        }
        Ok(Item::Value(Value::Array(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        self.room.take(1)?;
        let mut values = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(Any { room: self.room, depth: 0 })?.value(self.room)?;
            values.insert(name, value);
        }
        Ok(Item::Value(Value::Object(values)))
    }
}
