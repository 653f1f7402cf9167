//! One request inside the engine: its tokens, its pages, its end.

use crate::block_manager::BlockManager;
use crate::disagg::leg::Outbound;
use crate::disagg::notes::First;
use crate::kv_events::names::{Names, Scheme};
use crate::kv_events::{Label, Owner};
use crate::mailbox::Mailbox;
use crate::mailbox::postman::{Bag, Slot};
use crate::offload::load::Load;
use crate::refusal::Refusal;
use crate::request::{Finish, Request, Task};
use crate::sampling::logprobs::{TokenLogprobs, logprobs};
use crate::sampling::penalties::Tally;
use crate::sampling::{SamplingParams, TokenRules, sample};
use crate::scheduler::claims::Claim;
use crate::urgency::Urgency;
use parking_lot::Mutex;
use plimsoll_cache::{Chain, Digest};
use plimsoll_core::Nanos;
use plimsoll_protocol::tokenizer::Detokenizer;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

mod moving;
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
    Generate(Box<Generation>),
    Embed { sum: Vec<f32> },
}

/// What a generation has besides its tokens. `seed`, `params` and the tokens decide everything that comes; the rest can
/// be made again from them.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) params: SamplingParams,
    pub(crate) seed: u64,
    tally: Tally,
    /// Prompt tokens whose log-probabilities were computed, beginning after the first one asked for.
    prompt_logprobs: Vec<TokenLogprobs>,
    /// Made with the first token.
    stream: Option<Detokenizer>,
    sent_bytes: usize,
}

impl Generation {
    fn new(params: SamplingParams) -> Box<Self> {
        Box::new(Generation {
            seed: params.seed.unwrap_or_else(rand::random),
            tally: Tally::default(),
            prompt_logprobs: Vec::new(),
            stream: None,
            params,
            sent_bytes: 0,
        })
    }

    /// First prompt position whose logits are still needed for log-probabilities of the prompt. None once there is
    /// output: they went out with its first token, here or where the request came from.
    fn prompt_logits_from(&self, tokens: &[u32], prompt_len: usize) -> Option<usize> {
        if tokens.len() > prompt_len {
            return None;
        }
        let from = self.params.logprobs.as_ref()?.prompt_from? + self.prompt_logprobs.len();
        // The logits after the prompt's last token belong to the output.
        (from + 1 < prompt_len).then_some(from)
    }
}

/// Where the text of the output is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// Not decided before the first token.
    Silent,
    /// Where the reader is: the mailbox gets token ids, from the step loop's bag.
    Ids,
    /// Here, because something here depends on it; the mailbox gets all there is to know.
    Text,
}

/// What every step needs comes first and fills few cache lines, in this order: the model drives all of it out of the caches
/// between two steps, for every running sequence.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Sequence {
    /// Prompt, then output.
    pub(crate) tokens: Vec<u32>,
    pub(crate) pages: Vec<u32>,
    /// Tokens whose KV is in `pages`.
    pub(crate) computed: usize,
    /// Tokens to compute in the step being planned.
    pub(crate) scheduled: usize,
    pub(crate) prompt_len: usize,
    pub(crate) committed_pages: usize,
    /// Pages of its prefix that come from the offload tier, behind the computed ones; nothing is computed before.
    pub(crate) load: Option<Box<Load>>,
    /// Of a prefill leg: where its pages and its first token go.
    pub(crate) outbound: Option<Box<Outbound>>,
    /// Its mailbox's in the bag.
    slot: Option<Slot>,
    pub(crate) last_token: Option<Instant>,
    pub(crate) job: Job,
    voice: Voice,
    /// What the mailbox says of itself: that is in a reader's cache more often than in ours.
    pub(crate) lingers: bool,
    pub(crate) retractions: u32,
    /// Number of arrival at its scheduler, from 1; 0 before.
    pub(crate) serial: u64,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) urgency: Urgency,
    pub(crate) rid: RidGuard,
    pub(crate) chain: Chain,
    pub(crate) owner: Arc<Owner>,
    /// What KV events call its pages; made when they are first committed, if anybody listens.
    pub(crate) names: Option<Names>,
    /// Prompt tokens taken from the cache at the first admission; `None` before it.
    pub(crate) cached_tokens: Option<usize>,
    /// Of them, those that came from the offload tier.
    pub(crate) host_tokens: usize,
    pub(crate) arrived: Instant,
    /// The same on its scheduler's clock.
    pub(crate) arrived_at: Nanos,
    /// Pages that it is expected to compute and others need not, until it has.
    pub(crate) claim: Option<Claim>,
    /// Tokens of the prompt that were cached, or going to be, when it came.
    pub(crate) expected_hit: usize,
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
            Task::Generate(params) => Job::Generate(Generation::new(params)),
            Task::Embed => Job::Embed { sum: Vec::new() },
        };
        let mut chain = Chain::new(page_tokens, request.owner.namespace.seed());
        chain.extend(&request.prompt);
        Sequence {
            rid,
            serial: 0,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            computed: 0,
            scheduled: 0,
            pages: Vec::new(),
            committed_pages: 0,
            chain,
            owner: request.owner,
            names: None,
            job,
            lingers: mailbox.lingers(),
            mailbox,
            cached_tokens: None,
            host_tokens: 0,
            retractions: 0,
            arrived,
            arrived_at: Nanos::ZERO,
            urgency: request.urgency,
            claim: None,
            expected_hit: 0,
            last_token: None,
            load: None,
            outbound: None,
            slot: None,
            voice: Voice::Silent,
        }
    }

    /// Reads a bit of everything that choosing a token needs of a running sequence, so that it lies in a cache. The number
    /// means nothing.
    #[inline]
    pub(crate) fn touch(&self) -> usize {
        let Job::Generate(generation) = &self.job else { return 0 };
        generation.params.max_new_tokens.wrapping_add(generation.sent_bytes).wrapping_add(self.tokens.len())
    }

    /// As [`Self::touch`], of what pushing a token writes to.
    #[inline]
    pub(crate) fn touch_end(&self) -> usize {
        self.tokens.last().map_or(0, |token| *token as usize)
    }

    /// As [`Self::touch`], of what making a page findable needs.
    #[inline]
    pub(crate) fn touch_page(&self, blocks: &BlockManager) -> usize {
        let page = self.pages.get(self.committed_pages).map_or(0, |page| blocks.touch(*page));
        let token = self.tokens.get(self.committed_pages * self.chain.page_tokens()).map_or(0, |token| *token as usize);
        page.wrapping_add(token).wrapping_add(self.chain.digests().last().map_or(0, |digest| usize::from(digest[0])))
    }

    /// The step being planned computes one token behind its prompt, the last one: when it is computed nothing follows but
    /// the next token, and a page that may be full.
    #[inline]
    pub(crate) fn only_adds_a_token(&self) -> bool {
        self.computed >= self.prompt_len && self.computed + 1 == self.tokens.len() && self.outbound.is_none()
    }

    /// One more token fills a page.
    #[inline]
    pub(crate) fn is_about_to_fill_a_page(&self, page_tokens: usize) -> bool {
        self.computed + 1 >= (self.committed_pages + 1) * page_tokens
    }

    /// Names the full pages of its tokens that have no name yet.
    pub(crate) fn name_pages(&mut self) {
        self.chain.extend(&self.tokens);
    }

    /// The name of its next page to become findable, if it has one.
    pub(crate) fn next_name(&self) -> Option<&Digest> {
        self.chain.digests().get(self.committed_pages)
    }

    /// Tokens that are known but not computed: 1 while decoding, more while in prefill.
    pub(crate) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// It has more than one token to compute, and nothing to wait for.
    pub(crate) fn is_in_prefill(&self) -> bool {
        self.remaining() > 1 && self.load.is_none()
    }

    /// When its first token is wanted.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let ttft = self.urgency.ttft?;
        Some(self.arrived_at + Nanos(u64::try_from(ttft.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Its first token is still to come in time, and it has not been paid for by a preemption.
    pub(crate) fn is_promised(&self) -> bool {
        self.urgency.ttft.is_some() && self.is_untouched()
    }

    /// It has not been served: nothing was said, and nothing computed for it was given up.
    pub(crate) fn is_untouched(&self) -> bool {
        self.retractions == 0 && self.tokens.len() == self.prompt_len
    }

    /// Tokens that its prefill is expected to compute; at least the last one.
    pub(crate) fn expected_prefill(&self) -> usize {
        self.remaining().saturating_sub(self.expected_hit).max(1)
    }

    pub(crate) fn is_embed(&self) -> bool {
        matches!(self.job, Job::Embed { .. })
    }

    /// Tokens that it may have in the KV cache at the most: the last one it generates is not computed.
    pub(crate) fn most_computed(&self) -> usize {
        match &self.job {
            Job::Embed { .. } => self.prompt_len,
            Job::Generate(generation) => {
                self.prompt_len.saturating_add(generation.params.max_new_tokens.saturating_sub(1))
            }
        }
    }

    /// How many leading pages of its chain it may take from the cache: never the last token, whose logits are needed;
    /// nothing for an embedding, which needs every hidden state; nothing whose logits are needed.
    pub(crate) fn matchable_pages(&self) -> usize {
        let last = self.tokens.len() - 1;
        let tokens = match &self.job {
            Job::Embed { .. } => 0,
            Job::Generate(generation) => {
                generation.prompt_logits_from(&self.tokens, self.prompt_len).map_or(last, |at| at.min(last))
            }
        };
        tokens / self.chain.page_tokens()
    }

    /// Full pages whose tokens are computed become findable. A page that somebody else committed first takes the place
    /// of the own one.
    pub(crate) fn commit_pages(&mut self, blocks: &mut BlockManager, naming: Option<Scheme>, page_tokens: usize) {
        debug_assert_eq!(page_tokens, self.chain.page_tokens());
        if self.computed < (self.committed_pages + 1) * page_tokens {
            return;
        }
        let Sequence { chain, names, tokens, owner, pages, .. } = self;
        chain.extend(tokens);
        if let Some(naming) = naming {
            let new = || Names::new(naming, Arc::clone(owner), chain.page_tokens());
            names.get_or_insert_with(new).extend(chain, tokens);
        }
        let full = self.computed / page_tokens;
        for page in self.committed_pages..full {
            let parent = page.checked_sub(1).map(|above| pages[above]);
            let label = || names.as_ref().map_or_else(Label::default, |names| names.label(page, tokens));
            pages[page] = blocks.commit(pages[page], chain.digests()[page], parent, label);
        }
        self.committed_pages = full;
    }

    /// Leaves its pages, which the caller has given up, and what was on the way to them.
    pub(crate) fn lose_pages(&mut self) {
        self.pages.clear();
        self.committed_pages = 0;
        self.computed = 0;
        self.load = None;
    }

    /// [`Self::matchable_pages`] of which the digests are known.
    pub(crate) fn matchable(&self) -> usize {
        self.matchable_pages().min(self.chain.digests().len())
    }

    /// The first of the tokens up to `end` whose logits this step must give; `None` when none are needed.
    pub(crate) fn logits_from(&self, end: usize) -> Option<usize> {
        let Job::Generate(generation) = &self.job else { return None };
        match generation.prompt_logits_from(&self.tokens, self.prompt_len) {
            Some(from) if from < end => Some(from.max(self.computed)),
            _ => (end == self.tokens.len()).then_some(end - 1),
        }
    }

    /// Takes log-probabilities of prompt tokens from the logits of a step that ended at `end`; call it before the step is
    /// committed. Leaves the row that decides the next token, if there is one. Returns how many rows it took.
    pub(crate) fn take_prompt_logprobs<'a>(
        &mut self,
        mut rows: impl Iterator<Item = &'a [f32]>,
        end: usize,
        rules: &TokenRules,
    ) -> u32 {
        let mut taken = 0;
        let Job::Generate(generation) = &mut self.job else { return taken };
        let Some(ask) = generation.params.logprobs.clone() else { return taken };
        while let Some(from) = generation.prompt_logits_from(&self.tokens, self.prompt_len).filter(|from| *from < end) {
            let Some(row) = rows.next() else { return taken };
            taken += 1;
            generation.prompt_logprobs.push(logprobs(row, rules.first_logit, self.tokens[from + 1], &ask));
        }
        taken
    }

    /// Chooses the next token by the logits after the last one, and pushes nothing. `None` for an embedding, which has none.
    pub(crate) fn draw(&mut self, logits: &[f32], rules: &TokenRules) -> Option<(u32, Option<TokenLogprobs>)> {
        let Job::Generate(generation) = &mut self.job else { return None };
        let index = self.tokens.len() - self.prompt_len;
        let params = &generation.params;
        if Tally::needed(params) {
            generation.tally.read(&self.tokens, self.prompt_len);
        }
        let token = sample(logits, rules, params, &generation.tally, generation.seed, index);
        let reported = params.logprobs.as_ref().map(|ask| logprobs(logits, rules.first_logit, token, ask));
        Some((token, reported))
    }

    /// A token that a prefill engine chose.
    pub(crate) fn go_on_from(&mut self, first: &First, rules: &TokenRules) -> Option<Finish> {
        let finish = self.push(first.token, first.logprobs(), rules, None, None);
        self.mailbox.ring();
        finish
    }

    /// Ends a prefill leg with its one token.
    pub(crate) fn hand_over(&mut self, first: &First, rules: &TokenRules) {
        self.push(first.token, first.logprobs(), rules, Some(Finish::HandedOver), None);
        self.mailbox.ring();
    }

    /// Leaves the log-probabilities of the prompt to the prefill leg, whose answer has them.
    pub(crate) fn report_no_prompt(&mut self) {
        if let Job::Generate(generation) = &mut self.job
            && let Some(ask) = &mut generation.params.logprobs
        {
            ask.prompt_from = None;
        }
    }

    /// Appends a generated token and sends it to the mailbox, in the bag or, without one, leaving it to the caller to wake
    /// the reader. Says when the request is complete; `last` completes it in any case.
    pub(crate) fn push(
        &mut self,
        token: u32,
        reported: Option<TokenLogprobs>,
        rules: &TokenRules,
        last: Option<Finish>,
        bag: Option<&mut Bag>,
    ) -> Option<Finish> {
        if self.voice == Voice::Silent {
            self.find_voice(rules);
        }
        if self.voice == Voice::Text {
            let finish = self.say(token, reported, rules, last);
            if let Some(bag) = bag {
                bag.note(&mut self.slot, &self.mailbox);
            }
            return finish;
        }
        let Job::Generate(generation) = &self.job else { return None };
        self.tokens.push(token);
        let ends = rules.ends(token, &generation.params);
        let is_long = self.tokens.len() - self.prompt_len >= generation.params.max_new_tokens;
        let finish = if ends || is_long || last.is_some() {
            let regular = if ends { Finish::StopToken(token) } else { Finish::Length };
            let finish = last.unwrap_or(regular);
            self.rid.release();
            // Before the token: who reads that finds out that it is the last.
            self.mailbox.end(self.handed_tokens(), finish.clone(), None);
            Some(finish)
        } else {
            None
        };
        match bag {
            Some(bag) => bag.token(&mut self.slot, &self.mailbox, token),
            None => self.mailbox.deposit(token),
        }
        finish
    }

    /// Tokens that its mailbox has, or gets from the bag, as ids.
    fn handed_tokens(&self) -> usize {
        if self.voice == Voice::Ids { self.tokens.len() - self.prompt_len } else { 0 }
    }

    fn find_voice(&mut self, rules: &TokenRules) {
        let Job::Generate(generation) = &self.job else { return };
        let params = &generation.params;
        let needs_text = self.lingers || params.logprobs.is_some() || !params.stop.is_empty();
        if needs_text {
            self.voice = Voice::Text;
        } else {
            self.voice = Voice::Ids;
            self.mailbox.read_by(rules.text.stream(params.skip_special_tokens));
        }
    }

    /// Appends a token with its text.
    fn say(
        &mut self,
        token: u32,
        reported: Option<TokenLogprobs>,
        rules: &TokenRules,
        last: Option<Finish>,
    ) -> Option<Finish> {
        let Job::Generate(generation) = &mut self.job else { return None };
        let Generation { params, stream, sent_bytes, prompt_logprobs, .. } = &mut **generation;
        let stream = stream.get_or_insert_with(|| rules.text.stream(params.skip_special_tokens));
        self.tokens.push(token);
        let generated = self.tokens.len() - self.prompt_len;
        let before = stream.text().len();
        let ends = rules.ends(token, params);
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
        finish = last.or(finish);
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
        self.mailbox.put(|update| {
            update.ids.push(token);
            update.text.push_str(news);
            update.logprobs.extend(reported);
            if generated == 1 {
                update.prompt_logprobs = std::mem::take(prompt_logprobs);
            }
            update.finish.clone_from(&finish);
        });
        *sent_bytes = visible.max(*sent_bytes);
        finish
    }

    /// It leaves its rank: what it says from now on goes into another bag, or none.
    pub(crate) fn leave_slot(&mut self) {
        self.slot = None;
    }

    /// Ends the request without another token.
    pub(crate) fn abort(&mut self, message: &str, status: Option<u16>) {
        self.end(Finish::Abort { message: message.to_owned(), status }, None);
    }

    /// Ends a request that is turned away.
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.end(Finish::Refused(refusal), None);
    }

    /// Posts the end, and an embedding if there is one.
    pub(crate) fn end(&mut self, finish: Finish, embedding: Option<Vec<f32>>) {
        self.rid.release();
        self.mailbox.end(self.handed_tokens(), finish, embedding);
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
