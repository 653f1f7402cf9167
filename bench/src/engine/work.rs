//! The models and what they are asked.

use super::{Cell, ModelFacts, Took};
use plimsoll_engine::model::{KvStore, Model, ModelConfig, Run, Want};
use plimsoll_engine::team::Team;
use std::sync::Arc;

/// Positions a sequence has behind it when decode is measured: hardly any KV, and more of it than is convenient.
const SHORT: usize = 64;
const LONG: usize = 512;
/// Tokens of a prefill, in chunks as the engine cuts them by default.
const PROMPT: usize = 2048;
const CHUNK: usize = 512;
const PAGE_TOKENS: usize = 16;
const MOST_SEQUENCES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Decode1,
    Decode16,
    LongDecode1,
    LongDecode16,
    Prefill512,
    Prefill2048,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Decode1, Kind::Decode16, Kind::LongDecode1, Kind::LongDecode16, Kind::Prefill512, Kind::Prefill2048];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Decode1 => "decode, batch 1, at 64",
            Kind::Decode16 => "decode, batch 16, at 64",
            Kind::LongDecode1 => "decode, batch 1, at 512",
            Kind::LongDecode16 => "decode, batch 16, at 512",
            Kind::Prefill512 => "prefill of 512",
            Kind::Prefill2048 => "prefill of 2048",
        }
    }
}

pub(super) struct Bench {
    name: &'static str,
    model: Model,
    threads: usize,
    kv: KvStore,
    tokens: Vec<u32>,
    pages: Vec<u32>,
}

impl Bench {
    /// The engine's own model, on one thread as the engine runs it.
    pub(super) fn tiny() -> anyhow::Result<Self> {
        Bench::new("tiny", ModelConfig::default(), 1)
    }

    /// A Llama of 100 million parameters (f32, tied embeddings), random.
    pub(super) fn hundred_million(threads: usize) -> anyhow::Result<Self> {
        let config = ModelConfig {
            vocab_tokens: 32_000,
            first_logit: 0,
            suppressed_tokens: Vec::new(),
            layers: 12,
            hidden: 768,
            heads: 12,
            head_dim: 64,
            kv_heads: 4,
            ffn: 2048,
            tied_embeddings: true,
            ..ModelConfig::default()
        };
        Bench::new("100M", config, threads)
    }

    fn new(name: &'static str, config: ModelConfig, threads: usize) -> anyhow::Result<Self> {
        let pages_each = PROMPT / PAGE_TOKENS;
        let kv = KvStore::new(&config, MOST_SEQUENCES * pages_each, PAGE_TOKENS);
        let vocab = config.vocab_tokens as u32;
        let mut model = Model::new(config);
        model.set_team(Arc::new(Team::new(threads)?));
        // Pages as scattered as those of an engine that has run for a while.
        let all = (MOST_SEQUENCES * pages_each) as u32;
        let pages = (0..all).map(|page| page * 37 % all).collect();
        let tokens = (0..PROMPT as u32).map(|i| (i * 7919 + 300) % vocab).collect();
        let mut bench = Bench { name, model, threads, kv, tokens, pages };
        for sequence in 0..MOST_SEQUENCES {
            bench.prefill(sequence, LONG);
        }
        Ok(bench)
    }

    pub(super) fn facts(&self) -> ModelFacts {
        let weight_bytes = self.model.weight_bytes();
        ModelFacts { name: self.name, parameters: weight_bytes / size_of::<f32>(), weight_bytes, threads: self.threads }
    }

    pub(super) fn measure(&mut self, model: usize, kind: Kind, quick: bool) -> Cell {
        // About the same processor time for every cell.
        let budget = if quick { 2e10 } else { 6e10 };
        match kind {
            Kind::Prefill512 => self.measure_prefill(model, kind, CHUNK, budget),
            Kind::Prefill2048 => self.measure_prefill(model, kind, PROMPT, budget),
            Kind::Decode1 => self.measure_decode(model, kind, (1, SHORT), budget),
            Kind::Decode16 => self.measure_decode(model, kind, (16, SHORT), budget),
            Kind::LongDecode1 => self.measure_decode(model, kind, (1, LONG), budget),
            Kind::LongDecode16 => self.measure_decode(model, kind, (16, LONG), budget),
        }
    }

    fn measure_decode(&mut self, model: usize, kind: Kind, (batch, context): (usize, usize), budget: f64) -> Cell {
        let flops = self.flops(batch, context * batch, batch);
        let bytes = self.bytes(batch, context);
        // A step of one sequence costs memory, not arithmetic.
        let steps = ((budget / flops.max(bytes * 4.0)) as usize).clamp(5, 5_000);
        self.decode(batch, context, 2);
        let took = Took::measure(|| self.decode(batch, context, steps));
        let (flops, bytes) = (flops * steps as f64, bytes * steps as f64);
        Cell { model, kind, tokens: batch * steps, flops, bytes, took }
    }

    fn measure_prefill(&mut self, model: usize, kind: Kind, length: usize, budget: f64) -> Cell {
        let chunks = (0..length / CHUNK).map(|chunk| {
            let (start, end) = (chunk * CHUNK, (chunk + 1) * CHUNK);
            self.flops(CHUNK, (start..end).map(|position| position + 1).sum(), usize::from(end == length))
        });
        let flops: f64 = chunks.sum();
        let times = ((budget / flops) as usize).clamp(1, 500);
        let took = Took::measure(|| (0..times).for_each(|_| self.prefill(0, length)));
        Cell { model, kind, tokens: length * times, flops: flops * times as f64, bytes: 0.0, took }
    }

    fn decode(&mut self, batch: usize, context: usize, steps: usize) {
        let each = self.pages.len() / MOST_SEQUENCES;
        for step in 0..steps {
            let token = step % self.tokens.len();
            let runs: Vec<Run<'_>> = (0..batch)
                .map(|sequence| Run {
                    tokens: &self.tokens[token..=token],
                    start: context,
                    pages: &self.pages[sequence * each..][..each],
                    want: Want::Logits,
                })
                .collect();
            std::hint::black_box(self.model.forward(&runs, &mut self.kv));
        }
    }

    fn prefill(&mut self, sequence: usize, length: usize) {
        let each = self.pages.len() / MOST_SEQUENCES;
        for start in (0..length).step_by(CHUNK) {
            let end = (start + CHUNK).min(length);
            let want = if end == length { Want::Logits } else { Want::Nothing };
            let pages = &self.pages[sequence * each..][..each];
            let run = Run { tokens: &self.tokens[start..end], start, pages, want };
            std::hint::black_box(self.model.forward(&[run], &mut self.kv));
        }
    }

    /// Of a pass over `rows` that look at `seen` positions together, of which `wanted` are finished. The last layer does
    /// only its keys and values for the others.
    fn flops(&self, rows: usize, seen: usize, wanted: usize) -> f64 {
        let config = self.model.config();
        let qkv = config.hidden * (config.query_width() + 2 * config.kv_width());
        let rest = config.query_width() * config.hidden + 3 * config.hidden * config.ffn;
        let attention = 2 * config.query_width() * seen;
        let before = (config.layers - 1) * (rows * (qkv + rest) + attention);
        let last = rows * qkv + wanted * rest + attention / rows * wanted;
        2.0 * (before + last + wanted * config.hidden * config.logit_count()) as f64
    }

    /// Weights and KV that a decode step reads.
    fn bytes(&self, batch: usize, context: usize) -> f64 {
        let config = self.model.config();
        let kv = 2 * config.layers * config.kv_width() * (context + 1) * size_of::<f32>();
        let embedding = if config.tied_embeddings { 0 } else { config.vocab_tokens * config.hidden * size_of::<f32>() };
        (self.model.weight_bytes() - embedding + batch * kv) as f64
    }
}
