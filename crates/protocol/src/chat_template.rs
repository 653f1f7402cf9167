//! Hugging Face chat templates, rendered as `transformers` renders them.
//!
//! Whoever renders a conversation decides its tokens: a space or a key order that differs from the engine's own rendering
//! is another prompt and a missed prefix. So this follows `apply_chat_template` byte by byte: jinja2's immutable sandbox
//! with `trim_blocks`, `lstrip_blocks` and loop controls, `tojson` as Python's `json.dumps(ensure_ascii=False)` (jinja's
//! own escapes `<>&'`), `raise_exception`, `strftime_now` and the `{% generation %}` tag. Golden texts from the real
//! jinja2 hold it (`tests/it/templates.rs`).
//!
//! Pure: the time is an argument. Rendering is linear in the messages for every sensible template; a template comes from
//! the operator's model folder and is trusted as the weights are.

use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};
use std::fmt::Write as _;

mod continuation;
pub mod messages;
mod methods;
pub mod opening;
mod python;
#[cfg(test)]
mod tests;

/// Why a conversation cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template itself is wrong.
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template called `raise_exception`: the conversation is one that the model does not take.
    #[error("{0}")]
    Refused(String),
    /// The template failed on these messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// `continue_final_message`, but the template does not print the final message.
    #[error("the final message cannot be continued: {0}")]
    Continue(&'static str),
}

/// A compiled template. Cheap to share, rendering needs no lock.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    wants_parts: bool,
    opening: opening::Plain,
}

/// What a template is given. `tools` and the messages are as in OpenAI's API, prepared by [`messages::prepare`].
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// A list of objects with `role` and `content`.
    pub messages: &'a Json,
    pub tools: Option<&'a Json>,
    /// The text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// The text ends inside the final message, which the answer goes on with. Not together with the above.
    pub continue_final_message: bool,
    /// Further variables (`chat_template_kwargs`), such as `enable_thinking`. None of those above.
    pub extra: Option<&'a Map<String, Json>>,
    /// For templates that print the date.
    pub now: DateTime,
}

const NAME: &str = "chat";
/// Variables that only the caller sets.
pub const RESERVED: [&str; 5] = ["messages", "tools", "documents", "add_generation_prompt", NOW];
/// Where `strftime_now` finds the time. No identifier in a template can spell it.
const NOW: &str = "now:";

impl ChatTemplate {
    /// Compiles the text of a `chat_template`. `special_tokens` are variables such as `bos_token` with their text.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line.
    pub fn compile(source: &str, special_tokens: Vec<(String, String)>) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Syntax(describe(&error)))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(python::print);
        environment.set_unknown_method_callback(methods::call);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("indent", methods::indent);
        environment.add_filter("string", |value: &Value| python::display(value));
        // Python's texts and dicts have a length and items too.
        environment.add_test("sequence", |value: &Value| {
            matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
        });
        environment.add_test("iterable", |value: &Value| !value.is_none() && minijinja::tests::is_iterable(value));
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, plain_generation_tags(source))
            .map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let mut template =
            ChatTemplate { environment, special_tokens, wants_parts: false, opening: opening::Plain::new() };
        template.wants_parts = template.takes_parts();
        Ok(template)
    }

    /// Whether the template takes `content` as a list of parts. Others are given the parts' text joined.
    #[must_use]
    pub fn wants_parts(&self) -> bool {
        self.wants_parts
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// When the template refuses the conversation or fails on it.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let none = Value::from(());
        let mut context: Vec<(&str, Value)> = vec![
            ("messages", Value::from(Serde(conversation.messages))),
            ("tools", conversation.tools.map_or(none.clone(), |tools| Value::from(Serde(tools)))),
            ("documents", none),
            ("add_generation_prompt", Value::from(conversation.add_generation_prompt)),
            (NOW, Value::from(conversation.now.to_string())),
        ];
        context.extend(self.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))));
        let extra = conversation.extra.into_iter().flatten();
        let extra = extra.filter(|(name, _)| !RESERVED.contains(&name.as_str()));
        context.extend(extra.map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        let template = self.environment.get_template(NAME).map_err(|error| failed(&error))?;
        let text = template.render(Value::from_pairs(context)).map_err(|error| failed(&error))?;
        if conversation.continue_final_message {
            return continuation::cut(text, conversation.messages);
        }
        Ok(text)
    }

    /// Tried, since a template does not say it: a part's text comes out, and nothing of the part's own spelling.
    fn takes_parts(&self) -> bool {
        const TEXT: &str = "4Kq9zX7mL2pW8vR3";
        let messages = serde_json::json!([{"role": "user", "content": [{"type": "text", "text": TEXT}]}]);
        let conversation = Conversation {
            messages: &messages,
            tools: None,
            add_generation_prompt: false,
            continue_final_message: false,
            extra: None,
            now: DateTime::constant(2000, 1, 1, 0, 0, 0, 0),
        };
        self.render(&conversation).is_ok_and(|text| {
            text.split_once(TEXT)
                .is_some_and(|(before, after)| !before.ends_with(['\'', '"']) && !after.starts_with(['\'', '"']))
        })
    }
}

/// `{% generation %}` marks what the assistant said, for training; it prints nothing. Its whitespace control stays.
fn plain_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        let Some(end) = tag.find("%}") else { break };
        out.push_str(before);
        let inner = &tag[2..end];
        let word = inner.trim_matches(['-', '+']).trim();
        let plain = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        };
        if plain == word {
            out.push_str(&tag[..end + 2]);
        } else {
            let _ = write!(out, "{{%{}%}}", inner.replace(word, &format!(" {plain} ")));
        }
        rest = &tag[end + 2..];
    }
    out + rest
}

/// Carries the words of a `raise_exception` through the engine's own errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception").with_source(Raised(message)))
}

/// `datetime.now().strftime(format)`, at the conversation's time.
fn strftime_now(state: &minijinja::State<'_, '_>, format: &str) -> Result<String, Error> {
    let now = state.lookup(NOW).and_then(|now| now.as_str().and_then(|text| text.parse::<DateTime>().ok()));
    let now = now.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "no time was given"))?;
    jiff::fmt::strtime::format(format, now).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

fn failed(error: &Error) -> TemplateError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        source = cause.source();
    }
    TemplateError::Failed(describe(error))
}

/// Kind, detail and line. Never the values: they are prompts.
fn describe(error: &Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    let kind = error.kind();
    match (kind, error.detail()) {
        (
            ErrorKind::SyntaxError
            | ErrorKind::UnknownFilter
            | ErrorKind::UnknownTest
            | ErrorKind::UnknownFunction
            | ErrorKind::UnknownMethod,
            Some(detail),
        ) => {
            format!("{kind}: {detail}{line}")
        }
        _ => format!("{kind}{line}"),
    }
}
