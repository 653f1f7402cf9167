//! Reading a JSON body field by field, so that every complaint names the field. Unknown fields are ignored, as both
//! stock engines do; `null` counts as absent.

use super::errors::ApiError;
use reading::{MAX_VALUES, Read, Unreadable};
use serde_json::{Map, Value};

mod reading;

pub(crate) use reading::IdLists;

pub(crate) struct Fields(Read);

impl Fields {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::new(400, "empty_body", "the body is empty: send a JSON object"));
        }
        reading::read(body, MAX_VALUES).map(Fields).map_err(|error| match error {
            Unreadable::NoObject => ApiError::new(400, "invalid_json", "the body is not a JSON object"),
            Unreadable::Json(error) => {
                ApiError::new(400, "invalid_json", format!("the body is not valid JSON: {error}"))
            }
            Unreadable::TooMany => {
                let what = format!("the body has more than {MAX_VALUES} values besides its token ids");
                ApiError::new(413, "body_too_large", what)
            }
        })
    }

    /// A nested object; empty when absent.
    pub(crate) fn object(&self, name: &str) -> Result<Fields, ApiError> {
        match self.get(name) {
            None => Ok(Fields(Read::default())),
            Some(Value::Object(map)) => Ok(Fields::of(map.clone())),
            Some(_) => Err(ApiError::field(name, "expected an object")),
        }
    }

    fn of(values: Map<String, Value>) -> Self {
        Fields(Read { values, ..Read::default() })
    }

    /// What is there, unless it is token ids in the field of a prompt: see [`Self::ids`].
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.values.get(name).filter(|value| !value.is_null())
    }

    /// The token ids of a field for prompts, when there is nothing else in it.
    pub(crate) fn ids(&self, name: &str) -> Option<&IdLists> {
        self.0.ids.get(name)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.typed(name, Value::as_str, "expected a string")
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        Ok(self.typed(name, Value::as_bool, "expected true or false")?.unwrap_or(false))
    }

    pub(crate) fn flag_or(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.typed(name, Value::as_bool, "expected true or false")?.unwrap_or(default))
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, Value::as_i64, "expected an integer")
    }

    /// A number in a closed range.
    pub(crate) fn number(&self, name: &str, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.typed(name, Value::as_f64, "expected a number")? else { return Ok(None) };
        if !(low..=high).contains(&value) {
            return Err(ApiError::field(name, format!("{value} is not between {low} and {high}")));
        }
        Ok(Some(value as f32))
    }

    /// A positive integer.
    pub(crate) fn count(&self, name: &str) -> Result<Option<usize>, ApiError> {
        match self.integer(name)? {
            None => Ok(None),
            Some(value) => match usize::try_from(value) {
                Ok(value) if value > 0 => Ok(Some(value)),
                _ => Err(ApiError::field(name, format!("{value} is not at least 1"))),
            },
        }
    }

    /// A string or a list of strings, as a list.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, ApiError> {
        let wrong = || ApiError::field(name, "expected a string or a list of strings");
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(list)) => {
                list.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        read: impl Fn(&'a Value) -> Option<T>,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| ApiError::field(name, expected)),
        }
    }
}

/// Token ids of a vocabulary of this size.
pub(crate) fn known_ids(name: &str, ids: &[u32], vocab_tokens: usize) -> Result<Vec<u32>, ApiError> {
    match ids.iter().find(|id| **id as usize >= vocab_tokens) {
        Some(unknown) => token_id(name, None, unknown, vocab_tokens).map(|_| Vec::new()),
        None => Ok(ids.to_vec()),
    }
}

/// Token ids from a JSON list, of a vocabulary of this size.
pub(crate) fn token_ids(name: &str, list: &[Value], vocab_tokens: usize) -> Result<Vec<u32>, ApiError> {
    list.iter().map(|value| token_id(name, value.as_u64(), value, vocab_tokens)).collect()
}

/// A token id, or a complaint that shows what was sent.
pub(crate) fn token_id(
    name: &str,
    id: Option<u64>,
    sent: impl std::fmt::Display,
    vocab_tokens: usize,
) -> Result<u32, ApiError> {
    let known = id.and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < vocab_tokens);
    known.ok_or_else(|| ApiError::field(name, format!("{sent} is not a token id (0 to {})", vocab_tokens - 1)))
}
