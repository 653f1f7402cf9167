//! What a reader was not told yet, and the text that the reader makes of it.
//!
//! Text is made outside the lock: whoever brings tokens must not wait for a long answer to be spelt out.

use super::Update;
use crate::request::Finish;
use plimsoll_protocol::tokenizer::Detokenizer;

#[derive(Debug, Default)]
pub(super) struct News {
    update: Update,
    /// Tokens that were deposited, and how many there are to be before the end counts.
    deposited: usize,
    ends_after: usize,
    /// For the reader, with the first tokens, where it makes the text.
    stream: Option<Detokenizer>,
}

/// How far a reader is in the text that it makes. Nothing where the text comes with the news.
#[derive(Debug, Default)]
pub(crate) struct Spelling {
    stream: Option<Detokenizer>,
    shown_bytes: usize,
}

impl News {
    /// False, and nothing done, after the end.
    pub(super) fn add(&mut self, change: impl FnOnce(&mut Update)) -> bool {
        let open = self.update.finish.is_none();
        if open {
            change(&mut self.update);
        }
        open
    }

    pub(super) fn read_by(&mut self, stream: Detokenizer) {
        self.stream = Some(stream);
    }

    pub(super) fn deposit(&mut self, token: u32) {
        debug_assert!(!self.is_complete(), "a token after the last one");
        self.update.ids.push(token);
        self.deposited += 1;
    }

    /// True when it counts already and is the first.
    pub(super) fn end(&mut self, after_tokens: usize, finish: Finish, embedding: Option<Vec<f32>>) -> bool {
        if self.update.finish.is_some() {
            return false;
        }
        (self.update.finish, self.update.embedding, self.ends_after) = (Some(finish), embedding, after_tokens);
        self.is_complete()
    }

    /// Said or not.
    pub(super) fn finish(&self) -> Option<&Finish> {
        self.update.finish.as_ref()
    }

    pub(super) fn has_tokens(&self) -> bool {
        !self.update.ids.is_empty()
    }

    fn is_complete(&self) -> bool {
        self.update.finish.is_some() && self.deposited >= self.ends_after
    }

    /// What is new, which is none any more; `None` when nothing is. Its text is complete after [`Spelling::spell`]. Memory
    /// for ids and text stays where it is: it is filled again, and nobody asked for more.
    pub(super) fn take(&mut self, spelling: &mut Spelling) -> Option<Update> {
        let complete = self.is_complete();
        if self.update.ids.is_empty() && !complete {
            return None;
        }
        if let Some(stream) = self.stream.take() {
            spelling.stream = Some(stream);
        }
        let update = &mut self.update;
        let taken = Update {
            ids: update.ids.as_slice().into(),
            text: update.text.as_str().into(),
            logprobs: std::mem::take(&mut update.logprobs),
            prompt_logprobs: std::mem::take(&mut update.prompt_logprobs),
            finish: if complete { update.finish.take() } else { None },
            embedding: update.embedding.take(),
            ..*update
        };
        update.ids.clear();
        update.text.clear();
        Some(taken)
    }
}

impl Spelling {
    /// Appends the text of the update's ids, which are the last ones if it has an end.
    pub(super) fn spell(&mut self, update: &mut Update) {
        let Spelling { stream: Some(stream), shown_bytes } = self else { return };
        let Update { ids, text, finish, .. } = update;
        // The token that ends an answer is none of its text.
        let silent = usize::from(matches!(finish, Some(Finish::StopToken(_))));
        ids[..ids.len().saturating_sub(silent)].iter().for_each(|id| stream.push(*id));
        // A request that was cut off shows no half character.
        if matches!(finish, Some(Finish::StopToken(_) | Finish::Length | Finish::HandedOver)) {
            stream.finish();
        }
        text.push_str(stream.text().get(*shown_bytes..).unwrap_or_default());
        *shown_bytes = stream.text().len();
    }
}
