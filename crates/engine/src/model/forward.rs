//! One pass of a ragged batch through the layers.

use super::attention::{self, attend};
use super::kv::{HeadKv, KvStore};
use super::weights::{Layer, Weights};
use super::{ModelConfig, Output, Run, Want, rope};
use crate::kernels::elementwise::{rms_norm, rms_norm_one, swiglu};
use crate::kernels::lanes::{Kernel, Lanes, ZERO};
use crate::kernels::{Block, Grid, Isa, LANES};
use crate::team::Team;

/// Reused between passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    x: Grid,
    norm: Grid,
    qkv: Grid,
    mixed: Grid,
    gate_up: Grid,
    gated: Grid,
    delta: Grid,
    /// Rows that are carried into the last layer's second half.
    kept: Grid,
    logits: Grid,
}

/// What a pass needs and does not change.
pub(crate) struct Pass<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) rope: &'a rope::Table,
    pub(crate) isa: Isa,
    pub(crate) team: &'a Team,
}

/// Key elements below which placing them is not worth a second thread.
const WORTH_SHARING: usize = 1 << 15;

impl Pass<'_> {
    /// Runs the batch: writes the KV of every token into its page and returns what was wanted, in the room of `output`.
    pub(crate) fn run(&self, runs: &[Run<'_>], kv: &mut KvStore, buffers: &mut Buffers, mut output: Output) -> Output {
        let rows = runs.iter().map(|run| run.tokens.len()).sum();
        output.hidden.clear();
        if rows == 0 {
            output.logits.clear();
            return output;
        }
        kv.back_runs(runs);
        buffers.x.resize(rows, self.config.hidden);
        for (row, id) in runs.iter().flat_map(|run| run.tokens).enumerate() {
            self.weights.embed(self.config, *id, buffers.x.row_mut(row));
        }
        let (last, before) = match self.weights.layers.split_last() {
            Some((last, before)) => (Some(last), before),
            None => (None, [].as_slice()),
        };
        for (index, layer) in before.iter().enumerate() {
            self.keys_and_values(layer, runs, kv.layer_mut(index), buffers);
            self.rest(layer, runs, kv.layer(index), buffers);
        }
        // After its keys and values, the last layer only matters for rows somebody wants.
        let wanted: Vec<Run<'_>> = runs.iter().filter_map(wanted_part).collect();
        if let Some(layer) = last {
            let index = before.len();
            self.keys_and_values(layer, runs, kv.layer_mut(index), buffers);
            keep_wanted(runs, &mut buffers.x, &mut buffers.kept);
            keep_wanted(runs, &mut buffers.qkv, &mut buffers.kept);
            if buffers.x.rows() > 0 {
                self.rest(layer, &wanted, kv.layer(index), buffers);
            }
        }
        if buffers.x.rows() > 0 {
            self.hand_out(&wanted, buffers, &mut output);
        } else {
            output.logits.clear();
        }
        output
    }

    /// `qkv(norm(x))`; keys and values go to their pages.
    fn keys_and_values(&self, layer: &Layer, runs: &[Run<'_>], kv: &mut [HeadKv], buffers: &mut Buffers) {
        let Buffers { x, norm, qkv, .. } = buffers;
        let config = self.config;
        rms_norm(self.isa, x, &layer.attention_gain, config.norm_epsilon, norm);
        layer.qkv.multiply(self.isa, self.team, norm, qkv);
        let rows = qkv.rows();
        let (keys, values) =
            qkv.blocks()[config.query_width() / LANES * rows..].split_at(kv.len() * config.head_dim / LANES * rows);
        let own = config.head_dim / LANES * rows;
        let place =
            |kv, keys, values| Place { pass: self, gain: layer.key_gain.as_deref(), runs, kv, keys, values, rows };
        let tasks: Vec<_> = kv
            .iter_mut()
            .zip(keys.chunks_exact(own).zip(values.chunks_exact(own)))
            .map(|(kv, (keys, values))| place(kv, keys, values))
            .collect();
        if self.team.parts(rows * config.kv_width(), WORTH_SHARING) == 1 {
            tasks.into_iter().for_each(|task| self.isa.run(task));
        } else {
            self.team.each(tasks, |(), task| self.isa.run(task));
        }
    }

    /// `x += output(attention(q))`, then `x += down(silu(gate(norm(x))) * up(norm(x)))`.
    fn rest(&self, layer: &Layer, runs: &[Run<'_>], kv: &[HeadKv], buffers: &mut Buffers) {
        let Buffers { x, norm, qkv, mixed, gate_up, gated, delta, .. } = buffers;
        let (isa, team) = (self.isa, self.team);
        let rows = x.rows();
        mixed.resize(rows, self.config.query_width());
        let shared = attention::Layer {
            config: self.config,
            rope: self.rope,
            query_gain: layer.query_gain.as_deref(),
            queries: qkv.blocks(),
            rows,
        };
        let tasks = attention::tasks(self.config, runs, kv, rows, mixed.blocks_mut());
        let work = runs.iter().map(|run| run.tokens.len() * (run.start + run.tokens.len())).sum::<usize>();
        team.each_if(work * self.config.query_width(), tasks, |scratch, task| attend(isa, &shared, task, scratch));
        layer.output.multiply(isa, team, mixed, delta);
        x.add(delta);
        rms_norm(isa, x, &layer.ffn_gain, self.config.norm_epsilon, norm);
        layer.gate_up.multiply(isa, team, norm, gate_up);
        swiglu(isa, team, gate_up, gated);
        layer.down.multiply(isa, team, gated, delta);
        x.add(delta);
    }

    /// The final norm and the head, for the rows that are left.
    fn hand_out(&self, wanted: &[Run<'_>], buffers: &mut Buffers, output: &mut Output) {
        let Buffers { x, norm, kept, logits, .. } = buffers;
        rms_norm(self.isa, x, &self.weights.final_gain, self.config.norm_epsilon, norm);
        let mut for_logits = Vec::new();
        let mut row = 0;
        for run in wanted {
            for _ in run.tokens {
                if run.want == Want::Hidden {
                    output.hidden.extend(norm.row(row).flat_map(|block| block.0));
                } else {
                    for_logits.push(row);
                }
                row += 1;
            }
        }
        kept.take_rows(norm, &for_logits);
        self.weights.head.multiply(self.isa, self.team, kept, logits);
        let count = self.config.logit_count();
        // Every number is written below.
        output.logits.resize(for_logits.len() * count, 0.0);
        for (row, to) in output.logits.chunks_exact_mut(count).enumerate() {
            for (to, from) in to.chunks_mut(LANES).zip(logits.row(row)) {
                to.copy_from_slice(&from.0[..to.len()]);
            }
            for range in &self.config.suppressed_tokens {
                let at = |id: u32| ((id.max(self.config.first_logit) - self.config.first_logit) as usize).min(count);
                to[at(range.start)..at(range.end)].fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// The part of a run that somebody wants to see after the last layer.
fn wanted_part<'a>(run: &Run<'a>) -> Option<Run<'a>> {
    let from = match run.want {
        Want::Nothing => return None,
        Want::Logits => run.tokens.len().checked_sub(1)?,
        Want::LogitsFrom(from) => from,
        Want::Hidden => 0,
    };
    Some(Run { tokens: &run.tokens[from..], start: run.start + from, ..*run })
}

/// Leaves those rows of `grid` that [`wanted_part`] leaves of the runs.
fn keep_wanted(runs: &[Run<'_>], grid: &mut Grid, spare: &mut Grid) {
    let mut rows = Vec::new();
    let mut first = 0;
    for run in runs {
        if let Some(part) = wanted_part(run) {
            rows.extend(first + run.tokens.len() - part.tokens.len()..first + run.tokens.len());
        }
        first += run.tokens.len();
    }
    if rows.len() < grid.rows() {
        spare.take_rows(grid, &rows);
        std::mem::swap(grid, spare);
    }
}

/// The keys and values of one head of all rows, on their way to their pages.
struct Place<'a, 'b> {
    pass: &'a Pass<'a>,
    gain: Option<&'a [Block]>,
    runs: &'a [Run<'b>],
    kv: &'a mut HeadKv,
    /// `[head_dim / 16][rows]`, before norm and rotation.
    keys: &'a [Block],
    values: &'a [Block],
    rows: usize,
}

impl Kernel for Place<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let mut key = [ZERO; attention::MOST_BLOCKS];
        let key = &mut key[..self.pass.config.head_dim / LANES];
        let mut row = 0;
        for run in self.runs {
            for position in run.start..run.start + run.tokens.len() {
                for (to, from) in key.iter_mut().zip(self.keys.chunks_exact(self.rows)) {
                    *to = from[row];
                }
                if let Some(gain) = self.gain {
                    rms_norm_one(key, gain, self.pass.config.norm_epsilon);
                }
                self.pass.rope.rotate(key, position);
                let value = self.values.chunks_exact(self.rows).map(|column| &column[row]);
                self.kv.write(run.pages, position, key, value);
                row += 1;
            }
        }
    }
}
