//! One request inside the engine: its tokens, its pages, its end.

use crate::mailbox::Mailbox;
use crate::request::{Finish, Request, Task};
use crate::sampling::SamplingParams;
use crate::tokenizer::IM_END;
use crate::tokenizer::detokenize::Stream;
use parking_lot::Mutex;
use plimsoll_cache::Chain;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

#[cfg(test)]
mod tests;

/// Request ids in flight.
pub(crate) type RidSet = Arc<Mutex<HashSet<String>>>;

/// Keeps a request id taken until it is released: before the reader learns of the end, so that it can be used again
/// at once.
#[derive(Debug)]
pub(crate) struct RidGuard {
    rid: String,
    set: Option<RidSet>,
}

impl RidGuard {
    /// `None` when the id is in flight.
    pub(crate) fn take(rid: &str, set: &RidSet) -> Option<Self> {
        let fresh = set.lock().insert(rid.to_owned());
        fresh.then(|| RidGuard { rid: rid.to_owned(), set: Some(Arc::clone(set)) })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.rid
    }

    fn release(&mut self) {
        if let Some(set) = self.set.take() {
            set.lock().remove(&self.rid);
        }
    }
}

impl Drop for RidGuard {
    fn drop(&mut self) {
        self.release();
    }
}

#[derive(Debug)]
pub(crate) enum Job {
    Generate { params: SamplingParams, seed: u64, stream: Stream, sent_bytes: usize },
    Embed { sum: Vec<f32> },
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) rid: RidGuard,
    /// Prompt, then output.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Tokens whose KV is in `pages`.
    pub(crate) computed: usize,
    /// Tokens to compute in the step being planned.
    pub(crate) scheduled: usize,
    pub(crate) pages: Vec<u32>,
    pub(crate) committed_pages: usize,
    pub(crate) chain: Chain,
    pub(crate) job: Job,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Prompt tokens taken from the cache at the first admission; `None` before it.
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) retractions: u32,
    pub(crate) arrived: Instant,
    pub(crate) last_token: Option<Instant>,
}

impl Sequence {
    pub(crate) fn new(
        request: Request,
        rid: RidGuard,
        mailbox: Arc<Mailbox>,
        page_tokens: usize,
        arrived: Instant,
    ) -> Self {
        let job = match request.task {
            Task::Generate(params) => Job::Generate {
                seed: params.seed.unwrap_or_else(rand::random),
                stream: Stream::new(params.skip_special_tokens),
                params,
                sent_bytes: 0,
            },
            Task::Embed => Job::Embed { sum: Vec::new() },
        };
        let mut chain = Chain::new(page_tokens, request.chain_seed);
        chain.extend(&request.prompt);
        Sequence {
            rid,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            computed: 0,
            scheduled: 0,
            pages: Vec::new(),
            committed_pages: 0,
            chain,
            job,
            mailbox,
            cached_tokens: None,
            retractions: 0,
            arrived,
            last_token: None,
        }
    }

    /// Tokens that are known but not computed: 1 while decoding, more while in prefill.
    pub(crate) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub(crate) fn is_embed(&self) -> bool {
        matches!(self.job, Job::Embed { .. })
    }

    /// How many leading pages of its chain it may take from the cache: never the last token, whose logits are needed;
    /// nothing for an embedding, which needs every hidden state.
    pub(crate) fn matchable_pages(&self) -> usize {
        if self.is_embed() { 0 } else { (self.tokens.len() - 1) / self.chain.page_tokens() }
    }

    /// Appends a generated token and posts it. Says when the request is complete.
    pub(crate) fn push(&mut self, token: u32) -> Option<Finish> {
        let Job::Generate { params, stream, sent_bytes, .. } = &mut self.job else { return None };
        self.tokens.push(token);
        let generated = self.tokens.len() - self.prompt_len;
        let before = stream.text().len();
        let ends = (token == IM_END && !params.ignore_eos) || params.stop_token_ids.contains(&token);
        let mut finish = ends.then_some(Finish::StopToken(token));
        if !ends {
            stream.push(token);
            if let Some((at, stop)) = find_stop(stream.text(), before, &params.stop) {
                stream.truncate(if params.no_stop_trim { at + stop.len() } else { at });
                finish = Some(Finish::StopText(stop.to_owned()));
            }
        }
        if finish.is_none() && generated >= params.max_new_tokens {
            finish = Some(Finish::Length);
        }
        let visible = if finish.is_some() {
            stream.finish();
            stream.text().len()
        } else {
            stream.text().len() - held_back(stream.text(), &params.stop)
        };
        if finish.is_some() {
            self.rid.release();
        }
        let news = stream.text().get(*sent_bytes..visible).unwrap_or_default();
        self.mailbox.post(|update| {
            update.ids.push(token);
            update.text.push_str(news);
            update.finish.clone_from(&finish);
        });
        *sent_bytes = visible.max(*sent_bytes);
        finish
    }

    /// Ends the request without another token.
    pub(crate) fn abort(&mut self, message: &str, status: Option<u16>) {
        self.end(Finish::Abort { message: message.to_owned(), status }, None);
    }

    /// Posts the end, and an embedding if there is one.
    pub(crate) fn end(&mut self, finish: Finish, embedding: Option<Vec<f32>>) {
        self.rid.release();
        self.mailbox.post(|update| {
            update.embedding = embedding;
            update.finish = Some(finish);
        });
    }
}

impl Drop for Sequence {
    /// Whatever happens to the engine, no reader waits for ever. Does nothing after a regular finish.
    fn drop(&mut self) {
        self.abort("The engine is shutting down.", Some(503));
    }
}

/// The first stop string that ends after `before` bytes, and where it starts.
fn find_stop<'a>(text: &str, before: usize, stops: &'a [String]) -> Option<(usize, &'a str)> {
    stops
        .iter()
        .filter_map(|stop| {
            let mut from = (before + 1).saturating_sub(stop.len());
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            text[from..].find(stop.as_str()).map(|at| (from + at, stop.as_str()))
        })
        .min_by_key(|(at, _)| *at)
}

/// Bytes at the end of the text that may turn out to be the start of a stop string.
fn held_back(text: &str, stops: &[String]) -> usize {
    let longest = |stop: &String| {
        (1..stop.len().min(text.len() + 1))
            .rev()
            .find(|k| text.is_char_boundary(text.len() - k) && stop.starts_with(&text[text.len() - k..]))
            .unwrap_or(0)
    };
    stops.iter().map(longest).max().unwrap_or(0)
}
