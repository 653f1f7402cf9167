//! Reading JSON slowly: the members of an object with their raw values, and what serde_json's tree cannot hold.

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// Members of the object in `text` in their order, repeated keys included; `None` where it is no object.
pub(crate) fn members(text: &[u8]) -> Option<Vec<(String, Box<RawValue>)>> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, Box<RawValue>)>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(member) = map.next_entry()? {
                all.push(member);
            }
            Ok(all)
        }
    }
    let mut from = serde_json::Deserializer::from_slice(text);
    let all = from.deserialize_map(Members).ok()?;
    from.end().ok()?;
    Some(all)
}

/// The tree of `text`, `Ok(None)` where the text is JSON that no tree can hold: numbers beyond `f64`, more than 128
/// levels, and lone surrogates are all within the grammar, and scanners pass over them.
pub(crate) fn tree(text: &[u8]) -> Result<Option<Value>, serde_json::Error> {
    match serde_json::from_slice(text) {
        Ok(value) => Ok(Some(value)),
        Err(error) if std::str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok() => {
            let why = error.to_string();
            let known = ["number out of range", "recursion limit exceeded", "surrogate", "hex escape"];
            assert!(known.iter().any(|k| why.contains(k)), "an unknown difference between scan and tree: {why}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// True when some object in `text` (valid JSON, of which `tree` was made) has a key twice.
pub(crate) fn repeats_a_key(text: &[u8], tree: &Value) -> bool {
    fn count(value: &Value) -> usize {
        match value {
            Value::Object(map) => map.len() + map.values().map(count).sum::<usize>(),
            Value::Array(items) => items.iter().map(count).sum(),
            _ => 0,
        }
    }
    let (mut colons, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b':' if !in_string => colons += 1,
            _ => {}
        }
    }
    colons != count(tree)
}

/// Values of all members called `key`, at whatever depth.
pub(crate) fn named<'a>(tree: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match tree {
        Value::Object(map) => {
            for (name, value) in map {
                if name == key {
                    found.push(value);
                }
                named(value, key, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, key, found)),
        _ => {}
    }
}
