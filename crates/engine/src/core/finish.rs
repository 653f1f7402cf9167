//! After the model: pages become findable, tokens are chosen and posted, and everything is counted.
//!
//! In three passes over the sequences of the step, so that choosing tokens, which costs with the vocabulary, is timed
//! apart from what the schedule costs.

use super::{Computed, Core};
use crate::clock::processor_time;
use crate::disagg::notes::First;
use crate::request::Finish;
use crate::sampling::logprobs::TokenLogprobs;
use crate::sequence::{Job, Sequence};
use plimsoll_core::Nanos;
use std::time::{Duration, Instant};

/// What decides the next token of the running sequence with this index.
struct Row<'a> {
    index: usize,
    plain: bool,
    logits: &'a [f32],
}

/// The next token of the running sequence with this index.
struct Drawn {
    index: usize,
    /// What it computed is not counted yet.
    plain: bool,
    token: u32,
    reported: Option<TokenLogprobs>,
}

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
        let rows = self.commit(computed, &mut tally);
        let committed = Instant::now();
        let before = processor_time();
        let drawn = self.draw(&rows);
        self.arithmetic += processor_time() - before;
        let chosen = Instant::now();
        self.post(drawn, now, &mut tally);
        let Tally { batch, generated, with_prefill, done, leaving } = tally;
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

    /// What was scheduled is computed. Returns whose next token is to be chosen, and by which logits. Does not look at those
    /// that only add a token: they are far from any cache, and [`Self::post`] comes by.
    fn commit<'a>(&mut self, computed: &'a Computed, tally: &mut Tally) -> Vec<Row<'a>> {
        let mut logits = computed.output.logits.chunks_exact(self.model.logit_count());
        let mut hidden = computed.output.hidden.chunks_exact(self.model.config().hidden);
        let mut rows = Vec::with_capacity(self.lanes.len());
        tally.batch = self.lanes.len() as u64;
        for lane in &self.lanes {
            let index = lane.index as usize;
            if lane.plain {
                rows.extend(logits.next().map(|row| Row { index, plain: true, logits: row }));
                continue;
            }
            let sequence = &self.scheduler.running[index];
            let (start, scheduled) = (sequence.computed, sequence.scheduled);
            let in_prompt = scheduled.min(sequence.prompt_len.saturating_sub(start));
            tally.with_prefill |= in_prompt > 0 || scheduled > 1;
            let end = start + scheduled;
            self.scheduler.running[index].take_prompt_logprobs(&mut logits, end, &self.rules);
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
            } else if sequence.remaining() == 0
                && let Some(row) = logits.next()
            {
                rows.push(Row { index, plain: false, logits: row });
            }
        }
        rows
    }

    /// The model has driven everything else out of the caches. Read in a loop of its own, what choosing tokens needs comes from
    /// memory many at a time; one request after another would be waited for one at a time.
    fn draw(&mut self, rows: &[Row<'_>]) -> Vec<Drawn> {
        let running = &mut self.scheduler.running;
        let touched = rows.iter().map(|row| running[row.index].touch()).fold(0, usize::wrapping_add);
        std::hint::black_box(touched);
        let drawn = rows.iter().filter_map(|Row { index, plain, logits }| {
            let (token, reported) = running[*index].draw(logits, &self.rules)?;
            Some(Drawn { index: *index, plain: *plain, token, reported })
        });
        drawn.collect()
    }

    fn post(&mut self, drawn: Vec<Drawn>, now: Instant, tally: &mut Tally) {
        let mut complete = Vec::new();
        // Most had their last token in the same step.
        let mut between = (now, 0);
        for Drawn { index, plain, token, reported } in drawn {
            tally.generated += 1;
            let sequence = &mut self.scheduler.running[index];
            sequence.computed += usize::from(plain);
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
