//! Log-probabilities as each of the three APIs asks for them and shows them.

use super::State;
use super::errors::ApiError;
use super::fields::{Fields, token_ids};
use crate::mailbox::Update;
use crate::sampling::limits::MAX_LOGPROB_IDS;
use crate::sampling::logprobs::{LogprobAsk, TokenLogprobs};
use serde_json::{Map, Value, json};

/// OpenAI's limit of alternatives per position, and vLLM's default.
const MOST_TOP: i64 = 20;

/// Chat: `logprobs: true` and `top_logprobs: 0..20`.
pub(crate) fn chat_ask(fields: &Fields) -> Result<Option<LogprobAsk>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    let top = bounded(fields, "top_logprobs")?;
    match (wanted, top) {
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "needs logprobs: true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(LogprobAsk { top: top.unwrap_or(0), ..LogprobAsk::default() })),
    }
}

/// Completions: `logprobs: 0..20`; with `echo` the prompt's too.
pub(crate) fn completion_ask(fields: &Fields, echo: bool) -> Result<Option<LogprobAsk>, ApiError> {
    if fields.get("logprobs") == Some(&Value::Bool(false)) {
        return Ok(None);
    }
    let top = bounded(fields, "logprobs")?;
    Ok(top.map(|top| LogprobAsk { top, ids: Vec::new(), prompt_from: echo.then_some(0) }))
}

fn bounded(fields: &Fields, name: &str) -> Result<Option<usize>, ApiError> {
    match fields.integer(name)? {
        Some(count @ 0..=MOST_TOP) => Ok(Some(count as usize)),
        Some(other) => Err(ApiError::field(name, format!("{other} is not between 0 and {MOST_TOP}"))),
        None => Ok(None),
    }
}

/// `/generate`: `return_logprob`, `logprob_start_len` (-1: output only), `top_logprobs_num`, `token_ids_logprob`; each one
/// value for all inputs or a list with one per input.
pub(crate) fn native_ask(
    fields: &Fields,
    input: usize,
    inputs: usize,
    prompt_len: usize,
    vocab_tokens: usize,
) -> Result<Option<LogprobAsk>, ApiError> {
    let own = |name: &str| match fields.get(name) {
        Some(Value::Array(list)) if list.len() == inputs => Ok(list.get(input).filter(|value| !value.is_null())),
        Some(Value::Array(list)) => Err(ApiError::field(name, format!("{} values for {inputs} inputs", list.len()))),
        one => Ok(one),
    };
    match own("return_logprob")? {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(Value::Bool(true)) => {}
        Some(_) => return Err(ApiError::field("return_logprob", "expected true or false")),
    }
    let integer = |name: &str, default: i64| match own(name)? {
        None => Ok(default),
        Some(value) => value.as_i64().ok_or_else(|| ApiError::field(name, "expected an integer")),
    };
    let start = integer("logprob_start_len", -1)?;
    let from = match usize::try_from(start) {
        Ok(from) if from < prompt_len => from,
        Err(_) if start == -1 => prompt_len - 1,
        _ => {
            let what = format!("{start} is neither -1 nor a position in the prompt of {prompt_len} tokens");
            return Err(ApiError::field("logprob_start_len", what));
        }
    };
    let top = integer("top_logprobs_num", 0)?;
    let top = usize::try_from(top)
        .ok()
        .filter(|top| *top <= MAX_LOGPROB_IDS)
        .ok_or_else(|| ApiError::field("top_logprobs_num", format!("{top} is not between 0 and {MAX_LOGPROB_IDS}")))?;
    let ids = match fields.get("token_ids_logprob") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.iter().any(Value::is_array) => match own("token_ids_logprob")? {
            Some(Value::Array(ids)) => token_ids("token_ids_logprob", ids, vocab_tokens)?,
            Some(_) => return Err(ApiError::field("token_ids_logprob", "expected token ids or lists of token ids")),
            None => Vec::new(),
        },
        Some(Value::Array(ids)) => token_ids("token_ids_logprob", ids, vocab_tokens)?,
        Some(_) => return Err(ApiError::field("token_ids_logprob", "expected token ids or lists of token ids")),
    };
    if ids.len() > MAX_LOGPROB_IDS {
        return Err(ApiError::field("token_ids_logprob", format!("use at most {MAX_LOGPROB_IDS} ids")));
    }
    Ok(Some(LogprobAsk { top, ids, prompt_from: Some(from) }))
}

/// How tokens are named in OpenAI's forms.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) state: &'a State,
    /// `token_id:7` instead of the text (vLLM's `return_tokens_as_token_ids`), since texts of bytes are not unique.
    pub(crate) as_ids: bool,
}

impl Names<'_> {
    fn text(&self, id: u32) -> String {
        if self.as_ids { format!("token_id:{id}") } else { self.state.text().decode(&[id]) }
    }

    /// Chat's `logprobs` of these tokens.
    pub(crate) fn chat(&self, positions: &[TokenLogprobs]) -> Value {
        let entry = |id: u32, logprob: f32| json!({"token": self.text(id), "logprob": logprob, "bytes": self.state.text().token_bytes(id)});
        let content = positions.iter().map(|position| {
            let mut value = entry(position.id, position.logprob);
            value["top_logprobs"] = position.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect();
            value
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    /// Completions' `logprobs`; `echoed` is the prompt when it is part of the text. `offset` in characters goes on from
    /// chunk to chunk.
    pub(crate) fn completion(&self, echoed: &[u32], update: &Update, offset: &mut usize) -> Value {
        let (mut tokens, mut logprobs, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let first = echoed.first().map(|id| (*id, Value::Null, Value::Null));
        let scored = update.prompt_logprobs.iter().filter(|_| !echoed.is_empty()).chain(&update.logprobs);
        let scored = scored.map(|position| {
            let own = (position.id, position.logprob);
            let top = std::iter::once(&own).chain(&position.top);
            let top: Map<String, Value> = top.map(|(id, logprob)| (self.text(*id), json!(logprob))).collect();
            (position.id, json!(position.logprob), Value::Object(top))
        });
        for (id, logprob, top) in first.into_iter().chain(scored) {
            offsets.push(*offset);
            *offset += self.state.text().decode(&[id]).chars().count();
            tokens.push(self.text(id));
            logprobs.push(logprob);
            tops.push(top);
        }
        json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
    }
}

/// SGLang's form: `[logprob, id, text or null]`.
pub(crate) struct Native {
    pub(crate) ask: LogprobAsk,
    /// `return_text_in_logprobs`.
    pub(crate) texts: bool,
    /// The first prompt token of the list; it has no log-probability of its own there, as in SGLang.
    pub(crate) first: u32,
}

impl Native {
    /// Adds `input_*` (always all) and `output_*` (of `shown`) to `meta_info`.
    pub(crate) fn add(&self, state: &State, shown: &Update, whole: &Update, meta: &mut Map<String, Value>) {
        let entry = |(id, logprob): &(u32, f32)| json!([logprob, id, self.text(state, *id)]);
        let list = |list: &[(u32, f32)]| list.iter().map(entry).collect::<Value>();
        let own = |position: &TokenLogprobs| entry(&(position.id, position.logprob));
        let with_first = |first: Value, of: &dyn Fn(&TokenLogprobs) -> Value| {
            std::iter::once(first).chain(whole.prompt_logprobs.iter().map(of)).collect::<Value>()
        };
        let first = json!([null, self.first, self.text(state, self.first)]);
        let mut put = |name: &str, input: Value, output: Value| {
            meta.insert(format!("input_{name}"), input);
            meta.insert(format!("output_{name}"), output);
        };
        put("token_logprobs", with_first(first, &own), shown.logprobs.iter().map(own).collect());
        if self.ask.top > 0 {
            let top = |position: &TokenLogprobs| list(&position.top);
            put("top_logprobs", with_first(Value::Null, &top), shown.logprobs.iter().map(top).collect());
        }
        if !self.ask.ids.is_empty() {
            let asked = |position: &TokenLogprobs| list(&position.asked);
            put("token_ids_logprobs", with_first(Value::Null, &asked), shown.logprobs.iter().map(asked).collect());
        }
    }

    fn text(&self, state: &State, id: u32) -> Option<String> {
        self.texts.then(|| state.text().decode(&[id]))
    }
}
