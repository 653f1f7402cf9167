//! Everything textual of a model folder: `tokenizer.json`, `tokenizer_config.json`, and the chat templates wherever a
//! release of `transformers` put them.

use super::{Tokenizer, TokenizerError};
use crate::chat_template::{ChatTemplate, TemplateError};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// What is wrong with a folder, by file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("{}: {what}", file.display())]
    File { file: PathBuf, what: String },
    #[error("{}: {error}", file.display())]
    Template { file: PathBuf, error: TemplateError },
    #[error("{}: has token {largest}, but the model has only {vocab_tokens}: it is another model's tokenizer", file.display())]
    DoesNotFit { file: PathBuf, largest: usize, vocab_tokens: usize },
}

/// Tokenizer, chat templates and special tokens of one model.
#[derive(Debug)]
pub struct ModelText {
    pub tokenizer: Tokenizer,
    /// `None`: the model has none and takes no conversations.
    pub chat: Option<ChatTemplate>,
    /// The template for conversations with tools, where it is another.
    pub chat_with_tools: Option<ChatTemplate>,
    /// Id of `eos_token`, where the folder names one.
    pub eos_token: Option<u32>,
}

/// Larger files are a mistake.
const MOST_BYTES: u64 = 256 << 20;
/// Tokens that templates know by name.
const SPECIALS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ModelText {
    /// Reads a folder for a model with ids below `vocab_tokens`.
    ///
    /// # Errors
    /// Names the file: missing, not what it should be, or another model's.
    pub fn open(folder: &Path, vocab_tokens: usize) -> Result<Self, FolderError> {
        let file = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::open(&file)?;
        if tokenizer.vocab_tokens() > vocab_tokens {
            let largest = tokenizer.vocab_tokens() - 1;
            return Err(FolderError::DoesNotFit { file, largest, vocab_tokens });
        }
        let config = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let special = |name: &&str| {
            let token = [&config, &map].into_iter().find_map(|from| token_text(from.get(*name)?))?;
            Some(((*name).to_owned(), token))
        };
        let specials: Vec<(String, String)> = SPECIALS.iter().filter_map(special).collect();
        let eos = specials.iter().find(|(name, _)| name == "eos_token");
        let eos_token = eos.and_then(|(_, token)| tokenizer.token_id(token));
        let compile = |(file, source): (PathBuf, String)| {
            ChatTemplate::compile(&source, specials.clone()).map_err(|error| FolderError::Template { file, error })
        };
        let chat = source(folder, &config, "default")?.map(compile).transpose()?;
        let chat_with_tools = source(folder, &config, "tool_use")?.map(compile).transpose()?;
        Ok(ModelText { tokenizer, chat, chat_with_tools, eos_token })
    }

    /// The template for a conversation with or without tools.
    #[must_use]
    pub fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        self.chat_with_tools.as_ref().filter(|_| with_tools).or(self.chat.as_ref())
    }
}

/// A template by name, with the file that it came from: files of their own before `tokenizer_config.json`.
fn source(folder: &Path, config: &Map<String, Value>, name: &str) -> Result<Option<(PathBuf, String)>, FolderError> {
    let own = match name {
        "default" => folder.join("chat_template.jinja"),
        other => folder.join("additional_chat_templates").join(format!("{other}.jinja")),
    };
    if let Some(text) = text(&own)? {
        return Ok(Some((own, text)));
    }
    let legacy = folder.join("chat_template.json");
    if name == "default"
        && let Some(Value::String(text)) = json(&legacy)?.unwrap_or_default().get("chat_template")
    {
        return Ok(Some((legacy, text.clone())));
    }
    let file = folder.join("tokenizer_config.json");
    let found = match config.get("chat_template") {
        Some(Value::String(text)) if name == "default" => Some(text),
        Some(Value::Array(list)) => {
            list.iter().find(|entry| entry["name"] == name).and_then(|entry| entry.get("template")).and_then(
                |template| match template {
                    Value::String(text) => Some(text),
                    _ => None,
                },
            )
        }
        Some(Value::Null | Value::String(_)) | None => None,
        Some(_) => {
            let what = "chat_template is neither a text nor a list of templates".to_owned();
            return Err(FolderError::File { file, what });
        }
    };
    Ok(found.map(|text| (file, text.clone())))
}

/// A token as text or as `{"content": text}`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// A file's text; `None` when there is no such file.
fn text(file: &Path) -> Result<Option<String>, FolderError> {
    let failed = |what: String| FolderError::File { file: file.to_owned(), what };
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(format!("cannot be read: {error}"))),
        Ok(about) if about.len() > MOST_BYTES => return Err(failed(format!("is larger than {MOST_BYTES} bytes"))),
        Ok(_) => {}
    }
    std::fs::read_to_string(file).map(Some).map_err(|error| failed(format!("cannot be read: {error}")))
}

fn json(file: &Path) -> Result<Option<Map<String, Value>>, FolderError> {
    let Some(text) = text(file)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(_) => Err(FolderError::File { file: file.to_owned(), what: "is not a JSON object".to_owned() }),
        Err(error) => Err(FolderError::File { file: file.to_owned(), what: format!("is not valid JSON: {error}") }),
    }
}
