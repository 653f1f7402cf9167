//! One rank, one step after another: plan, compute, sample, post. No threads, no sockets; time only for measuring.
//! [`crate::lockstep`] says when.

use crate::clock::processor_time;
use crate::config::EngineConfig;
use crate::driver::Size;
use crate::kv_events::publish::Sink;
use crate::kv_events::{CachedNames, KvEventsConfig, Medium};
use crate::mailbox::postman::{Bag, Postman};
use crate::model::{KvStore, Model, Output, Run, Want};
use crate::offload::worker::Worker;
use crate::sampling::TokenRules;
use crate::scheduler::{Limits, Scheduler};
use crate::sequence::Sequence;
use crate::stats::Stats;
use crate::transfer::Identity;
use plimsoll_timing::StepShape;
use std::time::{Duration, Instant};

mod finish;
mod legs;
pub(crate) mod moving;
mod offload;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use legs::LegCounts;
use legs::Legs;

#[derive(Debug)]
pub(crate) struct Core {
    model: Model,
    rules: TokenRules,
    kv: KvStore,
    pub(crate) scheduler: Scheduler,
    /// Where KV events go; `None`: nobody listens.
    pub(crate) events: Option<Sink>,
    pub(crate) legs: Legs,
    max_waiting: usize,
    /// Of the offload tier, until it has a thread.
    offload_worker: Option<Worker>,
    /// For the readers.
    bag: Bag,
    /// Of the step that is computed.
    lanes: Vec<Lane>,
    /// Of those lanes, whose that only add a token.
    plain_lanes: usize,
    pub(crate) stats: Stats,
    rate: Rate,
    /// Processor time of the model and of choosing tokens, since it was last taken.
    pub(crate) arithmetic: Duration,
}

/// A run of a step, and what becomes of it. Small, as every line of memory that was not touched since the last step must be
/// waited for.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Among the running.
    index: u32,
    /// Of the step's logits, the row that decides its next token; before [`Core::commit`], the first of its rows.
    row: u32,
    /// Its next one, when that is chosen.
    token: u32,
    /// It gets one.
    goes_on: bool,
    /// See [`Sequence::only_adds_a_token`]. What it computed is counted when the token is posted.
    plain: bool,
    /// And that token fills a page.
    fills: bool,
}

/// Tokens per second over windows of about a second.
#[derive(Debug)]
struct Rate {
    since: Instant,
    tokens: u64,
}

/// What a step has computed and not yet posted.
#[derive(Debug)]
pub(crate) struct Computed {
    output: Output,
    started: Instant,
    /// Time it took to decide what to compute.
    planning: Duration,
}

impl Core {
    #[cfg(test)]
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let mut core = Core::with_model(config, config.build_model().unwrap());
        let identity = core.identity(config.page_tokens);
        core.open_offload(config, &identity);
        core
    }

    /// An empty rank.
    pub(crate) fn with_model(config: &EngineConfig, model: Model) -> Self {
        let kv = KvStore::new(model.config(), config.pages(), config.page_tokens);
        let rules = TokenRules {
            first_logit: model.config().first_logit,
            end_tokens: model.config().eos_tokens.clone(),
            end_is_silent: config.text.is_tiny(),
            text: config.text.clone(),
        };
        let limits = Limits {
            page_tokens: config.page_tokens,
            max_running: config.max_running,
            max_waiting: config.max_waiting,
            token_budget: config.token_budget,
            naming: config.kv_events.as_ref().map(KvEventsConfig::scheme),
        };
        let mut core = Core {
            scheduler: Scheduler::new(kv.pages(), limits, config.order, Instant::now()),
            legs: Legs::default(),
            max_waiting: config.max_waiting,
            offload_worker: None,
            model,
            rules,
            kv,
            bag: Bag::default(),
            lanes: Vec::new(),
            plain_lanes: 0,
            stats: Stats::default(),
            rate: Rate { since: Instant::now(), tokens: 0 },
            arithmetic: Duration::ZERO,
            events: None,
        };
        core.refresh();
        core
    }

    pub(crate) fn size(&self, page_tokens: usize) -> Size {
        Size {
            weight_bytes: self.model.weight_bytes(),
            kv_bytes: self.kv.len_bytes(),
            kv_tokens: self.kv.pages() * page_tokens,
            page_tokens,
        }
    }

    pub(crate) fn identity(&mut self, page_tokens: usize) -> Identity {
        let model = self.model.fingerprint();
        Identity { model, page_tokens: page_tokens as u32, page_bytes: self.kv.page_bytes() as u32 }
    }

    pub(crate) fn submit(&mut self, sequence: Sequence) {
        self.stats.requests += 1;
        let now = self.scheduler.at(Instant::now());
        if let Err((mut sequence, refusal)) = self.scheduler.submit(sequence, now) {
            self.refuse(&mut sequence, refusal);
        }
        self.tell_the_turned_away();
        self.refresh();
    }

    fn tell_the_turned_away(&mut self) {
        for (mut sequence, refusal) in std::mem::take(&mut self.scheduler.turned_away) {
            self.refuse(&mut sequence, refusal);
        }
    }

    /// Ends requests whose id starts with `prefix` (all for `None`), as SGLang's `/abort_request` does.
    pub(crate) fn abort(&mut self, prefix: Option<&str>) {
        let matches = |rid: &str| prefix.is_none_or(|prefix| rid.starts_with(prefix));
        let mut gone = self.scheduler.remove(|sequence| matches(sequence.rid.as_str()));
        gone.extend(self.remove_legs(|sequence| matches(sequence.rid.as_str())));
        self.stats.aborted += gone.len() as u64;
        for (mut sequence, running) in gone {
            sequence.abort(if running { "Aborted" } else { "Abort before prefill" }, None);
        }
        self.refresh();
    }

    /// Keeps a share of the pages away from everybody.
    pub(crate) fn press(&mut self, share: f32) {
        let blocks = &mut self.scheduler.blocks;
        if blocks.press((blocks.total() as f32 * share).round() as usize) {
            self.refresh();
        }
    }

    /// Drops what nobody reads any more.
    pub(crate) fn sweep(&mut self) {
        let (mut gone, others) = self.scheduler.sweep();
        if !others.is_empty() {
            gone += self.remove_legs(|sequence| others.contains(&sequence.serial)).len();
        }
        if gone > 0 {
            self.stats.aborted += gone as u64;
            self.refresh();
        }
    }

    /// Computes one step, to be posted with [`Core::finish`]; `None` when no sequence could be scheduled. What was posted
    /// before is told between planning and computing: whom that wakes may take this processor at once, and leave what
    /// planning reads nowhere near.
    pub(crate) fn compute(&mut self, started: Instant) -> Option<Computed> {
        let began = Instant::now();
        self.sweep();
        self.attend();
        self.take_in_loads(started);
        let before = self.scheduler.retractions;
        let planned = self.scheduler.plan(self.scheduler.at(started));
        self.tell_the_turned_away();
        self.stats.retractions += self.scheduler.retractions - before;
        self.save_evicted();
        self.begin_loads(started);
        self.lanes.clear();
        self.plain_lanes = 0;
        let mut rows = 0;
        let mut runs = Vec::with_capacity(self.scheduler.running.len());
        for (index, sequence) in self.scheduler.running.iter().enumerate().filter(|(_, it)| it.scheduled > 0) {
            let run = run_of(sequence);
            let plain = sequence.only_adds_a_token();
            let fills = plain && sequence.is_about_to_fill_a_page(self.scheduler.page_tokens());
            self.lanes.push(Lane { index: index as u32, row: rows, token: 0, goes_on: plain, plain, fills });
            self.plain_lanes += usize::from(plain);
            rows += match run.want {
                Want::LogitsFrom(from) => (run.tokens.len() - from) as u32,
                Want::Logits => 1,
                Want::Nothing | Want::Hidden => 0,
            };
            runs.push(run);
        }
        self.bag.hand_over();
        if planned == 0 {
            drop(runs);
            self.refresh();
            return None;
        }
        let planning = began.elapsed();
        let before = processor_time();
        let output = self.model.forward(&runs, &mut self.kv);
        self.arithmetic += processor_time() - before;
        Some(Computed { output, started, planning })
    }

    /// Tells what entered and left the cache since the last time.
    pub(crate) fn publish(&mut self) {
        self.save_evicted();
        let Some(log) = self.scheduler.blocks.log() else { return };
        let events = log.take();
        if let Some(sink) = &mut self.events {
            sink.publish(events);
        }
    }

    /// The names that are cached now.
    pub(crate) fn cached(&mut self) -> CachedNames {
        self.publish();
        let next_batch = self.events.as_ref().map_or(0, Sink::next_number);
        let log = self.scheduler.blocks.log();
        let names = |medium| log.as_ref().map(|log| log.names(medium)).unwrap_or_default();
        CachedNames { next_batch, gpu: names(Medium::Gpu), cpu: names(Medium::Cpu) }
    }

    /// Who brings the readers what was posted.
    pub(crate) fn postman(&self) -> Postman {
        self.bag.postman().clone()
    }

    /// Sends the readers what was posted.
    pub(crate) fn tell_readers(&mut self) {
        self.bag.hand_over();
    }

    /// Takes back the room of a step that was posted.
    pub(crate) fn give_back(&mut self, computed: Computed) {
        self.model.give_back(computed.output);
    }

    /// One step of a rank that waits for nobody.
    #[cfg(test)]
    pub(crate) fn step(&mut self) {
        if let Some(computed) = self.compute(Instant::now()) {
            self.finish(&computed, Instant::now(), Duration::ZERO);
            self.give_back(computed);
            self.tell_readers();
        }
    }

    /// The step that was computed and is not yet posted, as a cost model sees it.
    pub(crate) fn shape(&self, shape: &mut StepShape) {
        shape.clear();
        for sequence in self.scheduler.running.iter().filter(|sequence| sequence.scheduled > 0) {
            let (cached, new) = (sequence.computed, sequence.scheduled);
            if new == 1 && cached >= sequence.prompt_len {
                shape.add_decode(cached as u64 + 1);
            } else {
                let last = cached + new == sequence.tokens.len() && !sequence.is_embed();
                shape.add_prefill(new as u64, cached as u64, last);
            }
        }
    }

    fn count(&mut self, decode_only: bool, batch: u64, generated: u64, spent: Duration, now: Instant) {
        let us = spent.as_micros() as u64;
        self.stats.steps += 1;
        self.stats.generated_tokens += generated;
        if decode_only {
            let sums = [1, batch, us, batch * batch, batch * us, generated];
            for (moment, value) in self.stats.decode_moments.iter_mut().zip(sums) {
                *moment += value;
            }
        } else {
            self.stats.prefill_busy_us += us;
        }
        self.rate.tokens += generated;
        let window = now - self.rate.since;
        if window >= Duration::from_secs(1) {
            self.stats.generation_rate = self.rate.tokens as f64 / window.as_secs_f64();
            self.rate = Rate { since: now, tokens: 0 };
        }
    }

    /// Work begins after a pause: the pause does not count as slow generation.
    pub(crate) fn resume(&mut self) {
        self.rate = Rate { since: Instant::now(), tokens: 0 };
    }

    fn refresh(&mut self) {
        let blocks = &self.scheduler.blocks;
        self.stats.delivery_cpu_ns = self.bag.postman().processor_ns();
        self.stats.running = self.scheduler.running.len();
        self.stats.waiting = self.scheduler.waiting.len();
        (self.stats.waiting_tokens, self.stats.waiting_uncached_tokens) =
            self.scheduler.waiting_tokens(self.stats.recent.miss_rate());
        self.stats.held_pages = blocks.held();
        self.stats.idle_cached_pages = blocks.idle_cached();
        self.stats.total_pages = blocks.total();
        self.stats.evicted_pages = blocks.evicted_pages();
        self.stats.legs = self.legs.counts();
        self.stats.offload = self.scheduler.offload.as_ref().map(|offload| offload.stats);
        if self.scheduler.is_idle() {
            self.stats.generation_rate = 0.0;
        }
    }
}

fn run_of(sequence: &Sequence) -> Run<'_> {
    let end = sequence.computed + sequence.scheduled;
    let want = match sequence.logits_from(end) {
        _ if sequence.is_embed() => Want::Hidden,
        Some(first) => Want::LogitsFrom(first - sequence.computed),
        None => Want::Nothing,
    };
    Run { tokens: &sequence.tokens[sequence.computed..end], start: sequence.computed, pages: &sequence.pages, want }
}
