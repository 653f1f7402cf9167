//! What a model thinks, taken out of its text: by the parsers of the crate `reasoning-parser`, which are those of stock engines.

use plimsoll_protocol::tokenizer::Tokenizer;
use reasoning_parser::{ParserFactory, ParserResult, ReasoningParser};
use std::sync::Arc;

/// How a model's answers are taken apart.
#[derive(Clone)]
pub(crate) struct ReasoningRule {
    name: Arc<str>,
    factory: Arc<ParserFactory>,
}

impl std::fmt::Debug for ReasoningRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReasoningRule").field(&self.name).finish()
    }
}

/// One answer being taken apart.
pub(crate) struct Reasoning(Box<dyn ReasoningParser>);

/// Some of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub content: String,
    /// `None` where nothing is taken apart.
    pub reasoning: Option<String>,
}

/// How a prompt ends whose template has begun the thinking for the model.
const BEGUN: [&str; 2] = ["<think>", "◁think▷"];
/// Enough of a prompt to see that.
const TAIL_TOKENS: usize = 16;

impl ReasoningRule {
    /// # Errors
    /// Which names there are; or that the parser needs tokens that are not shown.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let factory = ParserFactory::new();
        let parser = factory.registry().create_parser(name);
        let parser = parser.ok_or_else(|| format!("`{name}` is none of {}", factory.list_parsers().join(", ")))?;
        if parser.requires_special_tokens() {
            return Err(format!("`{name}` needs special tokens, which are left out of the text here"));
        }
        Ok(ReasoningRule { name: name.into(), factory: Arc::new(factory) })
    }

    /// For the answer to `prompt`.
    pub(crate) fn begin(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> Reasoning {
        let registry = self.factory.registry();
        let mut parser = registry.create_parser(&self.name).unwrap_or_else(|| self.factory.create(""));
        let tail = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAIL_TOKENS)..], false);
        if BEGUN.iter().any(|begun| tail.trim_end().ends_with(begun)) {
            parser.mark_reasoning_started();
            parser.mark_think_start_stripped();
        }
        Reasoning(parser)
    }
}

impl Reasoning {
    /// More text of a stream; with `last` also what was held back.
    ///
    /// # Errors
    /// The parser's words: its buffer is bounded.
    pub(crate) fn more(&mut self, text: &str, last: bool) -> Result<Said, String> {
        let mut said = ParserResult::default();
        if !text.is_empty() {
            said = self.0.parse_reasoning_streaming_incremental(text).map_err(|error| error.to_string())?;
        }
        if last {
            let rest = self.0.flush().map_err(|error| error.to_string())?;
            said.normal_text.push_str(&rest.normal_text);
            said.reasoning_text.push_str(&rest.reasoning_text);
        }
        Ok(said.into())
    }

    /// A whole answer.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn whole(&mut self, text: &str) -> Result<Said, String> {
        self.0.detect_and_parse_reasoning(text).map(Said::from).map_err(|error| error.to_string())
    }
}

impl From<ParserResult> for Said {
    fn from(result: ParserResult) -> Self {
        Said { content: result.normal_text, reasoning: Some(result.reasoning_text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_told_with_those_that_are() {
        assert!(ReasoningRule::named("qwen3").is_ok());
        let why = ReasoningRule::named("qwen33").unwrap_err();
        assert!(why.contains("qwen3,") && why.contains("deepseek_r1"), "{why}");
    }
}
