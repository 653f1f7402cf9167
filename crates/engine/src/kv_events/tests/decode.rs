//! A consumer's decoder: reads batches of all forms back, tolerantly in what it does not know and strictly in the rest.

use super::{KvEvent, Medium};
use crate::kv_events::Owner;
use crate::namespace::Namespace;
use std::sync::Arc;

/// As much of msgpack as a batch may have.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Nil,
    Number(i128),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take(&mut self, bytes: usize) -> &[u8] {
        let (own, rest) = self.0.split_at(bytes);
        self.0 = rest;
        own
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn list(&mut self, length: usize) -> Value {
        Value::List((0..length).map(|_| self.value()).collect())
    }

    fn map(&mut self, length: usize) -> Value {
        Value::Map((0..length).map(|_| (self.value(), self.value())).collect())
    }

    fn text(&mut self, length: usize) -> Value {
        Value::Text(String::from_utf8(self.take(length).to_vec()).unwrap())
    }

    fn value(&mut self) -> Value {
        let tag = self.number(1) as u8;
        let signed = |number: u64, bytes: u32| {
            let shift = 64 - 8 * bytes;
            Value::Number(i128::from((number << shift).cast_signed() >> shift))
        };
        match tag {
            0..=0x7f => Value::Number(i128::from(tag)),
            0x80..=0x8f => self.map(usize::from(tag & 15)),
            0x90..=0x9f => self.list(usize::from(tag & 15)),
            0xa0..=0xbf => self.text(usize::from(tag & 31)),
            0xc0 => Value::Nil,
            0xcb => Value::Float(f64::from_bits(self.number(8))),
            0xcc..=0xcf => Value::Number(i128::from(self.number(1 << (tag - 0xcc)))),
            0xd0..=0xd3 => {
                let bytes = 1 << (tag - 0xd0);
                signed(self.number(bytes as usize), bytes)
            }
            0xd9..=0xdb => {
                let length = self.number(1 << (tag - 0xd9)) as usize;
                self.text(length)
            }
            0xdc | 0xdd => {
                let length = self.number(2 << (tag - 0xdc)) as usize;
                self.list(length)
            }
            0xde | 0xdf => {
                let length = self.number(2 << (tag - 0xde)) as usize;
                self.map(length)
            }
            0xe0.. => Value::Number(i128::from(tag.cast_signed())),
            _ => panic!("tag {tag:#x}"),
        }
    }
}

impl Value {
    fn list(self) -> Vec<Value> {
        let Value::List(list) = self else { panic!("{self:?}") };
        list
    }

    fn number(&self) -> i128 {
        let Value::Number(number) = self else { panic!("{self:?}") };
        *number
    }

    fn text(&self) -> Option<Arc<str>> {
        match self {
            Value::Text(text) => Some(Arc::from(text.as_str())),
            Value::Nil => None,
            _ => panic!("{self:?}"),
        }
    }
}

/// Time, events and rank of a batch. Media are collected as they were named.
pub(crate) fn decode(bytes: &[u8], media: &mut Vec<String>) -> (f64, Vec<KvEvent>, u32) {
    let mut input = Input(bytes);
    let batch = input.value().list();
    assert!(input.0.is_empty(), "bytes behind the batch");
    let [Value::Float(ts), events, rank] = <[Value; 3]>::try_from(batch).unwrap() else { panic!("no time") };
    let events = events.list().into_iter().map(|event| self::event(event, media)).collect();
    (ts, events, rank.number() as u32)
}

/// Fields by name, whether the event came as a map or as an array.
fn event(value: Value, media: &mut Vec<String>) -> KvEvent {
    const POSITIONS: [&str; 8] =
        ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", ""];
    let fields: Vec<(Arc<str>, Value)> = match value {
        Value::Map(map) => map.into_iter().map(|(key, value)| (key.text().unwrap(), value)).collect(),
        Value::List(list) if list[0] == Value::Text("BlockRemoved".to_owned()) => {
            ["type", "block_hashes", "medium"].map(Arc::from).into_iter().zip(list).collect()
        }
        Value::List(list) => POSITIONS.map(Arc::from).into_iter().zip(list).collect(),
        other => panic!("{other:?}"),
    };
    let find = |name: &str| fields.iter().find(|field| *field.0 == *name).map(|field| field.1.clone());
    // Signed and unsigned names are the same 64 bits.
    let name = |value: &Value| value.number() as i64;
    let names = || find("block_hashes").unwrap().list().iter().map(name).collect::<Vec<_>>();
    let mut medium = || {
        let text = find("medium").unwrap().text().unwrap();
        if !media.iter().any(|known| **known == *text) {
            media.push(text.to_string());
        }
        if &*text == "GPU" { Medium::Gpu } else { Medium::Cpu }
    };
    match &*find("type").unwrap().text().unwrap() {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => KvEvent::Removed { names: names(), medium: medium() },
        "BlockStored" => {
            let tokens: Vec<u32> = find("token_ids").unwrap().list().iter().map(|id| id.number() as u32).collect();
            assert_eq!(find("block_size").unwrap().number() as usize * names().len(), tokens.len());
            assert_eq!(find("lora_id"), Some(Value::Nil));
            let metadata = find("").map_or(Vec::new(), |value| match value {
                Value::Map(map) => map,
                other => panic!("{other:?}"),
            });
            let salt = metadata.iter().find(|(key, _)| *key == Value::Text("cache_salt".to_owned()));
            let cache_salt = salt.map(|(_, salt)| salt.clone()).or(find("cache_salt")).and_then(|salt| salt.text());
            let namespace = Namespace { cache_salt, ..Namespace::default() };
            let session_id = find("session_id").and_then(|id| id.text());
            let parent = find("parent_block_hash").filter(|parent| *parent != Value::Nil).map(|parent| name(&parent));
            let owner = Arc::new(Owner { namespace, session_id });
            KvEvent::Stored { names: names(), parent, tokens, owner, medium: medium() }
        }
        other => panic!("{other}"),
    }
}
