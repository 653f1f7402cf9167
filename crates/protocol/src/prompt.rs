//! From a request's body to the token ids that the engine will make of it.
//!
//! The engine renders the chat template and tokenises by itself; a gateway that wants to know which engine holds the prompt has to
//! come to the same ids. Where it cannot (several prompts, parts that are no text, a template that refuses), there is no answer
//! instead of a wrong one: a wrong one would find no hit, or somebody else's.

use crate::chat_template::Conversation;
use crate::chat_template::opening::Opening;
use crate::request::{Api, PromptIds};
use crate::tokenizer::folder::ModelText;
use crate::tokenizer::{Encoded, SegmentCache, Whole};
use jiff::civil::DateTime;
use serde_json::{Map, Value};

/// What a prompt's ids are made with besides its body.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub text: &'a ModelText,
    /// Ids of what `owner` has sent before.
    pub cache: &'a SegmentCache,
    /// The tenant: nobody finds another's texts.
    pub owner: &'a str,
    /// What stands between text parts of a message: [`crate::chat_template::messages::SGLANG_JOINT`] or `VLLM_JOINT`.
    pub joint: &'a str,
    /// For templates that print the date.
    pub now: DateTime,
}

/// A prompt's ids, and how they were come by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextIds {
    pub prompt: PromptIds,
    /// Why the text was tokenised as a whole, where it was.
    pub whole: Option<Whole>,
    /// Bytes of the prompt's text whose ids were known.
    pub known_bytes: usize,
    /// Bytes of the prompt's text.
    pub text_bytes: usize,
}

/// Token ids of the one text prompt of a body that [`crate::request::scan`] has accepted.
#[must_use]
pub fn text_ids(context: &Context<'_>, api: Api, body: &[u8]) -> Option<TextIds> {
    let Value::Object(mut fields) = serde_json::from_slice(body).ok()? else { return None };
    let (encoded, opening_tokens) = match api {
        Api::Chat => chat(context, &mut fields)?,
        Api::Completions => (plain(context, &fields, "prompt")?, 0),
        Api::Generate => (plain(context, &fields, "text")?, 0),
        Api::Embeddings => return None,
    };
    let Encoded { ids, whole, known_bytes, text_bytes } = encoded;
    // A namespace in a form that is not understood: nothing may be said of its KV.
    let named = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Some(None),
        Some(Value::String(text)) => Some(Some(text.clone())),
        Some(_) => None,
    };
    let prompt = PromptIds {
        ids,
        opening_tokens,
        cache_salt: named("cache_salt")?,
        extra_key: named("extra_key")?,
        lora: named("lora_path")?,
    };
    Some(TextIds { prompt, whole, known_bytes, text_bytes })
}

fn flag(fields: &Map<String, Value>, name: &str, default: bool) -> Option<bool> {
    match fields.get(name) {
        None | Some(Value::Null) => Some(default),
        Some(value) => value.as_bool(),
    }
}

fn plain(context: &Context<'_>, fields: &Map<String, Value>, name: &str) -> Option<Encoded> {
    let prompt = match fields.get(name)? {
        Value::String(prompt) => prompt,
        Value::Array(list) => match list.as_slice() {
            [Value::String(prompt)] => prompt,
            _ => return None,
        },
        _ => return None,
    };
    context.encode(prompt, flag(fields, "add_special_tokens", true)?)
}

/// Also how many of the ids only open the answer.
fn chat(context: &Context<'_>, fields: &mut Map<String, Value>) -> Option<(Encoded, usize)> {
    // A template of the request's own, or documents, is for the engine to judge.
    if ["chat_template", "documents"].iter().any(|name| fields.get(*name).is_some_and(|value| !value.is_null())) {
        return None;
    }
    let Some(Value::Array(messages)) = fields.get_mut("messages").map(Value::take) else { return None };
    let tools = match (fields.get("tools"), fields.get("tool_choice")) {
        (None | Some(Value::Null), _) => None,
        (Some(Value::Array(list)), _) if list.is_empty() => None,
        (Some(_), Some(Value::String(choice))) if choice == "none" => None,
        (Some(tools), _) => Some(tools),
    };
    let template = context.text.template(tools.is_some())?;
    let messages = template.prepare(messages, context.joint).ok()?;
    let mut extra = match fields.get("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(extra)) => extra.clone(),
        Some(_) => return None,
    };
    if let Some(effort @ Value::String(_)) = fields.get("reasoning_effort") {
        extra.insert("reasoning_effort".to_owned(), effort.clone());
    }
    let continue_final_message = flag(fields, "continue_final_message", false)?;
    let conversation = Conversation {
        messages: &messages,
        tools,
        add_generation_prompt: flag(fields, "add_generation_prompt", !continue_final_message)?,
        continue_final_message,
        extra: Some(&extra),
        now: context.now,
    };
    let prompt = template.render(&conversation).ok()?;
    let encoded = context.encode(&prompt, flag(fields, "add_special_tokens", false)?)?;
    let opening = template.opening(&conversation).filter(|_| conversation.add_generation_prompt);
    let opening = opening.filter(|opening| prompt.ends_with(opening.text()));
    let opening_tokens = opening.and_then(|opening| context.opening_tokens(&encoded.ids, &opening));
    Some((encoded, opening_tokens.unwrap_or(0)))
}

impl Context<'_> {
    /// How many of the ids are the opening's; `None` where behind another text it becomes other ids.
    fn opening_tokens(&self, ids: &[u32], opening: &Opening) -> Option<usize> {
        let without = self.encode(&opening.without, false)?.ids;
        let with = self.encode(&opening.with, false)?.ids;
        let opening = with.strip_prefix(without.as_slice())?;
        ids.ends_with(opening).then_some(opening.len())
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Encoded> {
        self.text.tokenizer.encode_known(self.cache, self.owner, text, add_special_tokens).ok()
    }
}
