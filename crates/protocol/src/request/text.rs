//! The text of a prompt as it stands in the JSON, for those who want to know it again without being able to tokenise it.
//!
//! A session's next turn begins with the same bytes: clients send the history as they sent it before, and JSON writes it alike. So the
//! raw text tells prefixes as token ids do, only not where tokens begin. It is cut into *grams* of four bytes, which is about what a token
//! has, and which then stand where ids would.

use super::PromptIds;
use serde_json::value::RawValue;
use std::ops::Range;

/// Bytes of a gram.
pub const GRAM_BYTES: u64 = 4;

/// Where the text of the one prompt of a body lies, and what separates its KV from that of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptText {
    /// Byte ranges of the body in the order in which templates print them: tools, then messages; or the one text.
    pub spans: [Option<Range<usize>>; 2],
    pub cache_salt: Option<String>,
    pub lora: Option<String>,
    pub extra_key: Option<String>,
}

/// The raw values that a [`PromptText`] is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raw<'a> {
    pub spans: [Option<&'a RawValue>; 2],
    pub cache_salt: Option<&'a RawValue>,
    pub lora: Option<&'a RawValue>,
    pub extra_key: Option<&'a RawValue>,
}

impl PromptText {
    /// `None` where a namespace has a form that is not understood: nothing may be said of its KV.
    pub(super) fn of(body: &str, raw: Raw<'_>) -> Option<PromptText> {
        Some(PromptText {
            spans: raw.spans.map(|raw| raw.map(|raw| super::span(body, open_end(raw.get())))),
            cache_salt: text(raw.cache_salt)?,
            lora: text(raw.lora)?,
            extra_key: text(raw.extra_key)?,
        })
    }

    /// The text as grams in place of token ids. At most three bytes at its end are left out.
    ///
    /// # Panics
    /// On another body than the one that was scanned.
    #[must_use]
    pub fn grams(&self, body: &[u8]) -> PromptIds {
        let pieces = self.spans.iter().flatten().map(|span| &body[span.clone()]);
        let bytes: usize = pieces.clone().map(<[u8]>::len).sum();
        let mut ids = Vec::with_capacity(bytes / GRAM_BYTES as usize);
        let mut rest: Vec<u8> = Vec::with_capacity(2 * GRAM_BYTES as usize);
        for mut piece in pieces {
            if !rest.is_empty() {
                let wanted = (GRAM_BYTES as usize - rest.len()).min(piece.len());
                rest.extend_from_slice(&piece[..wanted]);
                piece = &piece[wanted..];
            }
            let (whole, _) = rest.as_chunks::<4>();
            ids.extend(whole.iter().map(|gram| u32::from_le_bytes(*gram)));
            if !whole.is_empty() {
                rest.clear();
            }
            let (whole, left) = piece.as_chunks::<4>();
            ids.extend(whole.iter().map(|gram| u32::from_le_bytes(*gram)));
            rest.extend_from_slice(left);
        }
        PromptIds {
            ids,
            opening_tokens: 0,
            cache_salt: self.cache_salt.clone(),
            lora: self.lora.clone(),
            extra_key: self.extra_key.clone(),
        }
    }
}

/// Without what closes it: the next turn goes on there. Of a list of one text also the text's own end.
fn open_end(json: &str) -> &str {
    match json.strip_suffix(']') {
        Some(list) => {
            let list = list.trim_ascii_end();
            list.strip_suffix('"').unwrap_or(list)
        }
        None => json.strip_suffix('"').unwrap_or(json),
    }
}

/// `None` where it is there and no text.
pub(super) fn text(raw: Option<&RawValue>) -> Option<Option<String>> {
    match raw.map(RawValue::get) {
        None | Some("null") => Some(None),
        Some(json) => serde_json::from_str(json).ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use crate::request::{Api, PromptIds, scan};
    use bytes::Bytes;

    fn grams(api: Api, body: &str) -> Option<PromptIds> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        scan(api, &body).unwrap().text.map(|text| text.grams(&body))
    }

    fn same_start(one: &PromptIds, other: &PromptIds) -> usize {
        one.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_turn_begins_with_the_turn_before() {
        for tools in ["", r#""tools": [{"type": "function"}],"#] {
            let turn = |messages: &str| {
                grams(Api::Chat, &format!(r#"{{"model": "m", {tools} "messages": [{messages} ]}}"#)).unwrap()
            };
            let first = turn(r#"{"role":"user","content":"Where do the cormorants nest?"}"#);
            let next = turn(
                r#"{"role":"user","content":"Where do the cormorants nest?"},{"role":"assistant","content":"On cliffs."}"#,
            );
            assert_eq!(same_start(&first, &next), first.ids.len(), "{tools}");
            assert!(next.ids.len() > first.ids.len() && first.ids.len() > 10);
        }
        let one = grams(Api::Completions, r#"{"prompt": "0123456789ab"}"#).unwrap();
        let other = grams(Api::Completions, r#"{"prompt": "0123456789abcdefgh"}"#).unwrap();
        assert_eq!((one.ids.len(), same_start(&one, &other), other.ids.len()), (3, 3, 4));
        assert_eq!(grams(Api::Completions, r#"{"prompt": ["0123456789ab"]}"#).unwrap().ids.len(), 3);
        assert_eq!(grams(Api::Generate, r#"{"text": "0123456789ab"}"#).unwrap().ids, one.ids);
    }

    #[test]
    fn other_tools_are_another_prompt() {
        let with = |tools: &str| {
            grams(Api::Chat, &format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], "tools": {tools}}}"#))
                .unwrap()
        };
        assert_eq!(same_start(&with(r#"[{"a": 1}]"#), &with(r#"[{"b": 1}]"#)), 0);
    }

    #[test]
    fn ids_lists_and_vectors_have_no_text() {
        assert_eq!(grams(Api::Completions, r#"{"prompt": [1, 2]}"#), None);
        assert_eq!(grams(Api::Completions, r#"{"prompt": ["a", "b"]}"#), None);
        assert_eq!(grams(Api::Generate, r#"{"text": ["a"]}"#), None);
        assert_eq!(grams(Api::Embeddings, r#"{"input": "a long text to embed"}"#), None);
        assert_eq!(grams(Api::Chat, r#"{"messages": [], "input_ids": [1]}"#), None);
    }

    #[test]
    fn namespaces_come_along_and_are_not_guessed() {
        let salted = grams(Api::Generate, r#"{"text": "abcd", "cache_salt": "t", "lora_path": "l"}"#).unwrap();
        assert_eq!(
            (salted.cache_salt.as_deref(), salted.lora.as_deref(), salted.extra_key),
            (Some("t"), Some("l"), None)
        );
        assert_eq!(grams(Api::Generate, r#"{"text": "abcd", "cache_salt": 5}"#), None);
    }
}
