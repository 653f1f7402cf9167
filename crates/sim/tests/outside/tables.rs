//! A step's time from measured kernel tables themselves (LLMServingSim's, vLLM 0.19, Llama-3.1-8B), without a fit between.

use crate::shared::Csv;
use plimsoll_sim::step_time::StepTime;
use plimsoll_timing::StepShape;
use std::collections::BTreeMap;

const LAYERS: f64 = 32.0;

/// Values over two axes, straight between the points.
#[derive(Debug, Default)]
struct Grid {
    rows: BTreeMap<u64, BTreeMap<u64, f64>>,
}

/// The neighbours of `x` among keys, and how far `x` is from the lower towards the upper. Beyond the ends the last piece goes on.
fn around<V>(map: &BTreeMap<u64, V>, x: f64) -> (&V, &V, f64) {
    let at = x.max(0.0).ceil() as u64;
    let upper = map.range(at.max(1)..).next().or_else(|| map.iter().next_back()).unwrap();
    let lower = map.range(..*upper.0).next_back().unwrap_or(upper);
    let (x0, x1) = (*lower.0 as f64, *upper.0 as f64);
    let share = if x1 > x0 { (x - x0) / (x1 - x0) } else { 0.0 };
    (lower.1, upper.1, share)
}

impl Grid {
    fn put(&mut self, x: u64, y: u64, value: f64) {
        self.rows.entry(x).or_default().insert(y, value);
    }

    fn at(&self, x: f64, y: f64) -> f64 {
        let along = |row: &BTreeMap<u64, f64>| {
            let (low, high, share) = around(row, y);
            low + (high - low) * share
        };
        let (low, high, share) = around(&self.rows, x);
        let (low, high) = (along(low), along(high));
        low + (high - low) * share
    }
}

fn curve(map: &BTreeMap<u64, f64>, x: f64) -> f64 {
    let (low, high, share) = around(map, x);
    low + (high - low) * share
}

/// The tables of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Decoding requests and their context.
    decode: Grid,
    /// New tokens and those before them.
    prefill: Grid,
    block: BTreeMap<u64, f64>,
    once: BTreeMap<u64, f64>,
    head: BTreeMap<u64, f64>,
    /// Share of the way from mean to longest context that unequal lengths cost.
    pub(crate) skew: f64,
    pub(crate) host_us: f64,
}

impl Tables {
    pub(crate) fn read(test: &str, gpu: &str) -> Option<Tables> {
        let name = |what: &str| format!("perf/{gpu}_meta-llama_Llama-3.1-8B.{what}.csv");
        let mut tables = Tables::default();
        for row in Csv::read(test, &name("attention"))?.rows() {
            let number = |name: &str| row.number(name) as u64;
            let us = row.number("time_us");
            if number("prefill_chunk") == 0 {
                tables.decode.put(number("n_decode"), number("kv_decode"), us);
            } else if number("n_decode") == 0 {
                tables.prefill.put(number("prefill_chunk"), number("kv_prefill"), us);
            }
        }
        for row in Csv::read(test, &name("dense"))?.rows() {
            let (tokens, us) = (row.number("tokens") as u64, row.number("time_us"));
            let (map, times) = match row.text("layer") {
                "embedding" | "final_layernorm" => (&mut tables.once, 1.0),
                "layernorm" => (&mut tables.block, 2.0),
                _ => (&mut tables.block, 1.0),
            };
            *map.entry(tokens).or_insert(0.0) += times * us;
        }
        for row in Csv::read(test, &name("per_sequence"))?.rows() {
            *tables.head.entry(row.number("sequences") as u64).or_insert(0.0) += row.number("time_us");
        }
        Some(tables)
    }
}

impl StepTime for Tables {
    fn step_us(&self, shape: &StepShape) -> f64 {
        if shape.is_empty() {
            return 0.0;
        }
        let mut attention = 0.0;
        if shape.decodes() > 0 {
            let requests = shape.decodes() as f64;
            let mean = shape.decode_tokens() as f64 / requests;
            let even = self.decode.at(requests, mean);
            let longest = self.decode.at(requests, shape.longest_decode_tokens() as f64);
            attention += even + self.skew * (longest - even);
        }
        for chunk in shape.chunks().iter().filter(|chunk| chunk.new_tokens > 0) {
            attention += self.prefill.at(chunk.new_tokens as f64, chunk.cached_tokens as f64);
        }
        let tokens = shape.new_tokens() as f64;
        let head = if shape.outputs() > 0 { curve(&self.head, shape.outputs() as f64) } else { 0.0 };
        self.host_us + LAYERS * (curve(&self.block, tokens) + attention) + curve(&self.once, tokens) + head
    }

    /// A table is not affine.
    fn context_token_us(&self) -> Option<f64> {
        None
    }
}
