//! What a reader was not told yet.

use super::Update;
use crate::request::Finish;
use plimsoll_protocol::tokenizer::Detokenizer;

#[derive(Debug, Default)]
pub(super) struct News {
    update: Update,
    /// Tokens that were deposited, and how many there are to be before the end counts.
    deposited: usize,
    ends_after: usize,
    /// Where the reader makes the text.
    text: Option<Text>,
}

#[derive(Debug)]
struct Text {
    stream: Detokenizer,
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
        self.text = Some(Text { stream, shown_bytes: 0 });
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

    /// What is new, which is none any more; `None` when nothing is. Memory for ids and text stays where it is: it is filled
    /// again, and nobody asked for more.
    pub(super) fn take(&mut self) -> Option<Update> {
        let complete = self.is_complete();
        if self.update.ids.is_empty() && !complete {
            return None;
        }
        let update = &mut self.update;
        if let Some(text) = &mut self.text {
            text.read(&update.ids, update.finish.as_ref().filter(|_| complete), &mut update.text);
        }
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

impl Text {
    /// Appends the text of `ids`, which are the last ones if there is an end.
    fn read(&mut self, ids: &[u32], end: Option<&Finish>, to: &mut String) {
        // The token that ends an answer is none of its text.
        let silent = usize::from(matches!(end, Some(Finish::StopToken(_))));
        ids[..ids.len().saturating_sub(silent)].iter().for_each(|id| self.stream.push(*id));
        // A request that was cut off shows no half character.
        if matches!(end, Some(Finish::StopToken(_) | Finish::Length | Finish::HandedOver)) {
            self.stream.finish();
        }
        to.push_str(self.stream.text().get(self.shown_bytes..).unwrap_or_default());
        self.shown_bytes = self.stream.text().len();
    }
}
