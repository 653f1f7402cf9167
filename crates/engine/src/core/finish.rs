//! After the model: pages become findable, tokens are chosen and posted, and everything is counted.
//!
//! In three passes over the sequences of the step, so that choosing tokens, which costs with the vocabulary, is timed
//! apart from what the schedule costs.

use super::{Computed, Core};
use crate::clock::processor_time;
use crate::disagg::notes::First;
use crate::request::Finish;
use crate::sampling::logprobs::TokenLogprobs;
use crate::scheduler::Scheduler;
use crate::sequence::{Job, Sequence};
use plimsoll_core::Nanos;
use std::time::{Duration, Instant};

/// How many rows before its turn a sequence is fetched that will be posted to: choosing a token takes longer than memory.
const TOUCHED_AHEAD: usize = 2;

/// Log-probabilities of next tokens, each with the number of its lane, rising.
type Reported = Vec<(usize, TokenLogprobs)>;

/// What the passes find out about the step.
#[derive(Default)]
struct Tally {
    batch: u64,
    generated: u64,
    with_prefill: bool,
    /// Indices of complete sequences, rising.
    done: Vec<usize>,
    /// Prefill legs whose first token goes elsewhere, with rising indices.
    leaving: Vec<(usize, First)>,
}

impl Core {
    /// Samples and posts what was computed. `now` is when the step ended, `spent` what it took.
    pub(crate) fn finish(&mut self, computed: &Computed, now: Instant, spent: Duration) {
        let began = Instant::now();
        let mut tally = Tally::default();
        self.commit(computed, &mut tally);
        let committed = Instant::now();
        let before = processor_time();
        let reported = self.draw(&computed.output.logits);
        self.arithmetic += processor_time() - before;
        let chosen = Instant::now();
        self.post(reported, now, &mut tally);
        let Tally { batch, generated, with_prefill, done, leaving, .. } = tally;
        self.scheduler.retire(&done);
        for (index, first) in leaving.into_iter().rev() {
            let before = done.partition_point(|done| *done < index);
            self.leave_with(index - before, first);
        }
        self.ship();
        self.scheduler.observe(self.scheduler.at(now), Nanos(spent.as_nanos() as u64));
        self.count(!with_prefill, batch, generated, spent, now);
        self.refresh();
        let sampling = chosen - committed;
        self.stats.sampling_ns += sampling.as_nanos() as u64;
        self.stats.scheduling_ns += (computed.planning + began.elapsed() - sampling).as_nanos() as u64;
    }

    /// What was scheduled is computed, and it is known whose next token is to be chosen by which logits. Does not look at those
    /// that only add a token: they are far from any cache, [`Self::draw`] fetches them and [`Self::post`] comes by.
    fn commit(&mut self, computed: &Computed, tally: &mut Tally) {
        let (logits, width) = (&computed.output.logits, self.model.logit_count());
        let mut hidden = computed.output.hidden.chunks_exact(self.model.config().hidden);
        tally.batch = self.lanes.len() as u64;
        if self.plain_lanes == self.lanes.len() {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| !lane.plain) {
            let index = lane.index as usize;
            let sequence = &self.scheduler.running[index];
            let (start, scheduled) = (sequence.computed, sequence.scheduled);
            let in_prompt = scheduled.min(sequence.prompt_len.saturating_sub(start));
            tally.with_prefill |= in_prompt > 0 || scheduled > 1;
            let end = start + scheduled;
            let rest = &logits[lane.row as usize * width..];
            lane.row += self.scheduler.running[index].take_prompt_logprobs(rest.chunks_exact(width), end, &self.rules);
            self.scheduler.commit(index);
            let sequence = &mut self.scheduler.running[index];
            if sequence.retractions == 0 {
                if sequence.cached_tokens == Some(start) {
                    let waited = computed.started.saturating_duration_since(sequence.arrived);
                    self.stats.queue_time.observe(waited.as_secs_f64());
                }
                self.stats.computed_prompt_tokens += in_prompt as u64;
                if start + scheduled >= sequence.prompt_len && in_prompt > 0 {
                    self.stats.prompt_tokens += sequence.prompt_len as u64;
                    self.stats.cached_tokens += sequence.cached_tokens.unwrap_or(0) as u64;
                    self.stats.recent.observe(sequence.prompt_len, sequence.cached_tokens.unwrap_or(0));
                    self.stats.host_tokens += sequence.host_tokens as u64;
                }
            }
            if sequence.is_embed() {
                if embed(sequence, scheduled, &mut hidden) {
                    tally.done.push(index);
                }
            } else {
                lane.goes_on = sequence.remaining() == 0;
            }
        }
    }

    /// The model has driven everything else out of the caches. Read in a loop of its own, what choosing tokens needs comes from
    /// memory many at a time; one request after another would be waited for one at a time. What posting needs comes while
    /// tokens are chosen.
    fn draw(&mut self, logits: &[f32]) -> Reported {
        let width = self.model.logit_count();
        let Scheduler { running, blocks, .. } = &mut self.scheduler;
        let lanes = &mut self.lanes;
        lanes.retain(|lane| lane.goes_on);
        let touched = lanes.iter().map(|lane| running[lane.index as usize].touch()).fold(0, usize::wrapping_add);
        std::hint::black_box(touched);
        let mut reported = Vec::new();
        let mut touched = 0;
        for at in 0..lanes.len() {
            if let Some(later) = lanes.get(at + TOUCHED_AHEAD) {
                let sequence = &running[later.index as usize];
                let page = if later.fills { sequence.touch_page(blocks) } else { 0 };
                touched = sequence.touch_end().wrapping_add(touched).wrapping_add(page);
            }
            let lane = &mut lanes[at];
            let row = &logits[lane.row as usize * width..][..width];
            if let Some((token, of_token)) = running[lane.index as usize].draw(row, &self.rules) {
                lane.token = token;
                reported.extend(of_token.map(|it| (at, it)));
            }
        }
        std::hint::black_box(touched);
        reported
    }

    fn post(&mut self, reported: Reported, now: Instant, tally: &mut Tally) {
        self.scheduler.commit_full(self.lanes.iter().filter(|lane| lane.fills).map(|lane| lane.index as usize));
        tally.generated = self.lanes.len() as u64;
        let mut reported = reported.into_iter().peekable();
        let mut complete = Vec::new();
        // Most had their last token in the same step.
        let mut between = (now, 0);
        for (at, lane) in self.lanes.iter().enumerate() {
            let (index, token) = (lane.index as usize, lane.token);
            let reported = reported.next_if(|(of, _)| *of == at).map(|(_, reported)| reported);
            let sequence = &mut self.scheduler.running[index];
            if lane.plain && !lane.fills {
                sequence.computed += std::mem::take(&mut sequence.scheduled);
            }
            if sequence.outbound.is_some() {
                let cached = sequence.cached_tokens.unwrap_or(0);
                tally.leaving.push((index, First::new(token, cached, reported.as_ref())));
                continue;
            }
            match sequence.last_token.replace(now) {
                Some(last) if last == between.0 => between.1 += 1,
                Some(last) => {
                    self.stats.itl.observe_times((now - between.0).as_secs_f64(), between.1);
                    between = (last, 1);
                }
                None => self.stats.ttft.observe((now - sequence.arrived).as_secs_f64()),
            }
            let finish = sequence.push(token, reported, &self.rules, None, Some(&mut self.bag));
            if finish.is_some() {
                self.stats.e2e.observe((now - sequence.arrived).as_secs_f64());
                complete.push(index);
            }
        }
        self.stats.itl.observe_times((now - between.0).as_secs_f64(), between.1);
        // Embeddings are among those that are done already.
        tally.done.extend(complete);
        tally.done.sort_unstable();
    }
}

/// Adds the hidden states of this step; true when the prompt is complete and the embedding posted.
fn embed<'a>(sequence: &mut Sequence, rows: usize, hidden: &mut impl Iterator<Item = &'a [f32]>) -> bool {
    let complete = sequence.remaining() == 0;
    let Job::Embed { sum } = &mut sequence.job else { return false };
    // Token by token in order: the sum has the same bits however the prompt was chunked.
    for row in hidden.take(rows) {
        sum.resize(row.len(), 0.0);
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
    if !complete {
        return false;
    }
    // The mean's scale cancels in the normalisation.
    let length = sum.iter().map(|v| v * v).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    let vector: Vec<f32> = sum.iter().map(|v| v / length).collect();
    sequence.end(Finish::Embedded, Some(vector));
    true
}
