//! What a JSON tree of an event or an answer says, written for being obviously right.

use crate::json;
use plimsoll_pools::chunk::{Finish, StreamDialect, Usage};
use serde_json::Value;

/// Facts without their texts. `Some(None)` of a status: there is such an object, and it names none.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Choice and word.
    pub(super) finishes: Vec<(u32, String)>,
    pub(super) usage: Option<Usage>,
    pub(super) error_status: Option<Option<u16>>,
    pub(super) abort_status: Option<Option<u16>>,
    pub(super) output: bool,
}

/// The forms that [`Reading::finishes`] is compared with.
pub(super) fn plain(finishes: &[Finish]) -> Vec<(u32, String)> {
    finishes.iter().map(|finish| (finish.index, finish.reason.as_str().to_owned())).collect()
}

impl Reading {
    /// Of one event, which is an object.
    pub(super) fn of_chunk(dialect: StreamDialect, tree: &Value) -> Self {
        let mut reading = Reading { error_status: error(tree), ..Reading::default() };
        match dialect {
            StreamDialect::Openai => {
                for choice in tree["choices"].as_array().into_iter().flatten() {
                    reading.finish(index(&choice["index"]), &choice["finish_reason"]);
                    reading.output |= choice["text"].as_str().is_some_and(|text| !text.is_empty())
                        || ["content", "reasoning_content", "reasoning", "refusal"]
                            .iter()
                            .any(|key| choice["delta"][*key].as_str().is_some_and(|text| !text.is_empty()))
                        || choice["delta"]["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
                }
                reading.usage = usage(&tree["usage"], "/prompt_tokens_details/cached_tokens", &tree["sglext"][DETAILS]);
            }
            StreamDialect::SglangNative => {
                let meta = &tree["meta_info"];
                reading.finish(index(&tree["index"]), &meta["finish_reason"]);
                reading.usage = usage(meta, "/cached_tokens", &meta[DETAILS]);
                reading.output = reading.abort_status.is_none()
                    && (tree["text"].as_str().is_some_and(|text| !text.is_empty())
                        || tree["output_ids"].as_array().is_some_and(|ids| !ids.is_empty()));
            }
        }
        reading
    }

    /// Of a whole answer; `None` where it has not the shape of one.
    pub(super) fn of_answer(dialect: StreamDialect, tree: &Value) -> Option<Self> {
        match dialect {
            StreamDialect::Openai => {
                let choices: &[Value] = match tree.as_object()?.get("choices") {
                    None | Some(Value::Null) => &[],
                    Some(choices) => choices.as_array()?,
                };
                let mut reading = Reading { error_status: error(tree), ..Reading::default() };
                for choice in choices {
                    choice.as_object()?;
                    reading.finish(index(&choice["index"]), &choice["finish_reason"]);
                }
                reading.usage = usage(&tree["usage"], "/prompt_tokens_details/cached_tokens", &tree["sglext"][DETAILS]);
                Some(reading)
            }
            StreamDialect::SglangNative => match tree {
                Value::Array(items) => Self::of_batch(items),
                Value::Object(_) => Self::of_batch(std::slice::from_ref(tree)),
                _ => None,
            },
        }
    }

    fn of_batch(items: &[Value]) -> Option<Self> {
        let mut all = Reading::default();
        for (position, item) in items.iter().enumerate() {
            let fields = item.as_object()?;
            all.error_status = all.error_status.or_else(|| error(item));
            let meta = &item["meta_info"];
            if meta.is_null() {
                continue;
            }
            meta.as_object()?;
            let at = match fields.get("index") {
                None | Some(Value::Null) => position as u32,
                Some(given) => index(given),
            };
            all.usage = match (all.usage, usage(meta, "/cached_tokens", &meta[DETAILS])) {
                (Some(a), Some(b)) => Some(Usage {
                    prompt_tokens: a.prompt_tokens.saturating_add(b.prompt_tokens),
                    completion_tokens: a.completion_tokens.saturating_add(b.completion_tokens),
                    cached_tokens: match (a.cached_tokens, b.cached_tokens) {
                        (Some(a), Some(b)) => Some(a.saturating_add(b)),
                        _ => None,
                    },
                    cached_by_tier: match (a.cached_by_tier, b.cached_by_tier) {
                        (Some(a), Some(b)) => Some([0, 1, 2].map(|tier| a[tier].saturating_add(b[tier]))),
                        _ => None,
                    },
                }),
                (one, None) | (None, one) => one,
            };
            all.finish(at, &meta["finish_reason"]);
        }
        Some(all)
    }

    fn finish(&mut self, index: u32, reason: &Value) {
        let Some(word) = reason.as_str().or_else(|| reason["type"].as_str()) else { return };
        let word = if word == "function_call" { "tool_calls" } else { word };
        self.finishes.push((index, word.to_owned()));
        if word == "abort" && self.abort_status.is_none() {
            self.abort_status = Some(status(&reason["status_code"]));
        }
        if word == "error" && self.error_status.is_none() {
            self.error_status = Some(None);
        }
    }
}

fn index(value: &Value) -> u32 {
    value.as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or(0)
}

fn status(value: &Value) -> Option<u16> {
    let status = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    (400..600).contains(&status).then_some(status as u16)
}

fn error(tree: &Value) -> Option<Option<u16>> {
    if tree["error"].is_null() && tree["object"] == "error" {
        return Some(status(&tree["code"]));
    }
    match (&tree["error"], &tree["detail"]) {
        (Value::Null, Value::Null) => None,
        (Value::Null, _) => Some(None),
        (error, _) => Some(status(&error["code"]).or_else(|| status(&error["status"]))),
    }
}

fn usage(counts: &Value, cached: &str, details: &Value) -> Option<Usage> {
    let prompt_tokens = counts["prompt_tokens"].as_u64()?;
    let completion_tokens = match counts["completion_tokens"].as_u64() {
        Some(tokens) => tokens,
        None => counts["total_tokens"].as_u64()?.checked_sub(prompt_tokens)?,
    };
    let cached_tokens = counts.pointer(cached).and_then(Value::as_u64);
    let cached_by_tier = tiers(details);
    Some(Usage { prompt_tokens, completion_tokens, cached_tokens, cached_by_tier })
}

const DETAILS: &str = "cached_tokens_details";

fn tiers(details: &Value) -> Option<[u64; 3]> {
    let device = details["device"].as_u64()?;
    Some([device, details["host"].as_u64().unwrap_or(0), details["storage"].as_u64().unwrap_or(0)])
}

/// True where each count stands once, and where engines put it: the scan does not look at depth.
pub(super) fn counts_in_place(dialect: StreamDialect, tree: &Value) -> bool {
    let alone = |key: &str, place: &Value| {
        let mut found = Vec::new();
        json::named(tree, key, &mut found);
        found.len() <= 1 && found.iter().all(|value| std::ptr::eq(place, *value))
    };
    let (counts, cached, details) = match dialect {
        StreamDialect::Openai => {
            (&tree["usage"], &tree["usage"]["prompt_tokens_details"]["cached_tokens"], &tree["sglext"][DETAILS])
        }
        StreamDialect::SglangNative => {
            (&tree["meta_info"], &tree["meta_info"]["cached_tokens"], &tree["meta_info"][DETAILS])
        }
    };
    // Counts in an object without anything in it that only looks like one.
    let flat = details.as_object().is_none_or(|tiers| {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        tiers.iter().all(|(name, value)| plain(name) && (value.is_number() || value.as_str().is_none_or(plain)))
            && tiers.values().all(|value| !value.is_object() && !value.is_array())
    });
    (dialect == StreamDialect::SglangNative || alone("usage", counts))
        && ["prompt_tokens", "completion_tokens", "total_tokens"].iter().all(|key| alone(key, &counts[*key]))
        && alone("cached_tokens", cached)
        && alone(DETAILS, details)
        && flat
}
