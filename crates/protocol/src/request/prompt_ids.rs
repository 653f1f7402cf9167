//! The token ids of a prompt, and what separates its KV from that of others.
//!
//! A second look at a body that [`super::scan`] has accepted, taken only where somebody wants to know which engine holds the prompt.

use super::Api;
use super::text::text;
use serde::Deserialize;
use serde_json::value::RawValue;

/// One prompt as the engine will see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptIds {
    pub ids: Vec<u32>,
    /// How many of them, at the end, only open the assistant's answer: the next turn may have others in their place. 0 where
    /// that is not known.
    pub opening_tokens: usize,
    pub cache_salt: Option<String>,
    pub lora: Option<String>,
    pub extra_key: Option<String>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_salt: Option<&'a RawValue>,
    #[serde(borrow)]
    extra_key: Option<&'a RawValue>,
    #[serde(borrow)]
    lora_path: Option<&'a RawValue>,
}

/// `None` where the body holds no ids, or several prompts.
#[must_use]
pub fn prompt_ids(api: Api, body: &[u8]) -> Option<PromptIds> {
    let fields: Fields<'_> = serde_json::from_slice(body).ok()?;
    let ids = match api {
        Api::Completions => fields.prompt?,
        Api::Generate | Api::Chat => fields.input_ids?,
        Api::Embeddings => return None,
    };
    // A namespace in a form that is not understood: nothing may be said of its KV.
    Some(PromptIds {
        ids: numbers(ids.get())?,
        opening_tokens: 0,
        cache_salt: text(fields.cache_salt)?,
        extra_key: text(fields.extra_key)?,
        lora: text(fields.lora_path)?,
    })
}

/// A flat list of numbers, or a list of one such list.
fn numbers(json: &str) -> Option<Vec<u32>> {
    let inner = json.strip_prefix('[')?.trim_ascii_start();
    if inner.starts_with('[') {
        let lists: Vec<Vec<u32>> = serde_json::from_str(json).ok()?;
        return <[Vec<u32>; 1]>::try_from(lists).ok().map(|[ids]| ids);
    }
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(api: Api, body: &str) -> Option<Vec<u32>> {
        prompt_ids(api, body.as_bytes()).map(|prompt| prompt.ids)
    }

    #[test]
    fn ids_are_read_where_each_api_has_them() {
        assert_eq!(ids(Api::Completions, r#"{"prompt": [1, 2,3]}"#), Some(vec![1, 2, 3]));
        assert_eq!(ids(Api::Completions, r#"{"prompt": [[1, 2]]}"#), Some(vec![1, 2]));
        assert_eq!(ids(Api::Generate, r#"{"input_ids": [7]}"#), Some(vec![7]));
        assert_eq!(ids(Api::Chat, r#"{"messages": [], "input_ids": [7]}"#), Some(vec![7]));
    }

    #[test]
    fn texts_and_several_prompts_have_none() {
        for body in
            [r#"{"prompt": "a"}"#, r#"{"prompt": ["a"]}"#, r#"{"prompt": [[1], [2]]}"#, "{}", r#"{"prompt": [-1]}"#]
        {
            assert_eq!(ids(Api::Completions, body), None, "{body}");
        }
    }

    #[test]
    fn a_namespace_that_is_no_text_is_not_guessed() {
        let salted = prompt_ids(Api::Generate, br#"{"input_ids": [1], "cache_salt": "t", "extra_key": null}"#).unwrap();
        assert_eq!((salted.cache_salt.as_deref(), salted.extra_key), (Some("t"), None));
        assert_eq!(ids(Api::Generate, r#"{"input_ids": [1], "cache_salt": 5}"#), None);
    }
}
