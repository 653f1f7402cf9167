//! Constants of the attention model (`plimsoll_timing::attention`) from one-layer kernel times.

use super::squares::{dot, not_negative};
use super::table::Table;
use std::path::Path;

/// A GPU of the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    pub(super) name: &'static str,
    /// In `derived_llama3_nonattn_iteration.csv` and in file names.
    pub(super) system: &'static str,
    /// Version part of the attention tables' names.
    pub(super) sglang: &'static str,
    pub(super) bandwidth_gb_s: f64,
    pub(super) memory_gb: f64,
    pub(super) sms: u32,
}

pub(super) const H100: Gpu =
    Gpu { name: "H100 SXM", system: "h100_sxm", sglang: "0.5.14", bandwidth_gb_s: 3350.0, memory_gb: 80.0, sms: 132 };

pub(super) const H200: Gpu =
    Gpu { name: "H200 SXM", system: "h200_sxm", sglang: "0.5.14", bandwidth_gb_s: 4800.0, memory_gb: 141.0, sms: 132 };

/// Dimensions of a head in the tables.
pub(super) const HEAD_DIM: f64 = 128.0;

/// Relative errors of a fit over the rows it was made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quality {
    pub(super) rows: usize,
    pub(super) median: f64,
    pub(super) p90: f64,
}

fn quality(mut errors: Vec<f64>) -> Quality {
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| errors.get((errors.len() as f64 * share) as usize).copied().unwrap_or_default();
    Quality { rows: errors.len(), median: at(0.5), p90: at(0.9) }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DecodeFit {
    pub(super) c0_us: f64,
    pub(super) c1_us: f64,
    pub(super) efficiency: f64,
    pub(super) quality: Quality,
}

/// Shorter sequences say more about launches than about reading.
const SHORTEST_DECODE: f64 = 128.0;

pub(super) fn decode(perf: &Path, gpu: &Gpu, heads: u32, kv_heads: u32) -> anyhow::Result<DecodeFit> {
    let table = Table::read(perf, &format!("aic_{}_sglang{}_decode_attn.csv", gpu.system, gpu.sglang))?;
    let given = [("num_heads", &*heads.to_string()), ("num_key_value_heads", &*kv_heads.to_string())];
    let kv_heads = f64::from(kv_heads);
    let rows: Vec<([f64; 3], f64)> = table
        .select(&given, ["batch_size", "seq", "latency_us"])?
        .into_iter()
        .filter(|[_, seq, _]| *seq >= SHORTEST_DECODE)
        .map(|[batch, seq, us]| ([1.0, batch * kv_heads, batch * seq * 4.0 * kv_heads * HEAD_DIM], us))
        .collect();
    let found = not_negative(&rows);
    let errors = rows.iter().map(|(x, us)| (dot(x, &found) / us - 1.0).abs()).collect();
    Ok(DecodeFit {
        c0_us: found[0],
        c1_us: found[1],
        efficiency: 1.0 / (found[2] * gpu.bandwidth_gb_s * 1e3),
        quality: quality(errors),
    })
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillFit {
    pub(super) c0_us: f64,
    pub(super) tflops: f64,
    pub(super) diagonal_tokens: f64,
    pub(super) quality: Quality,
}

/// A step's budget of new tokens is rarely larger.
const MOST_PREFILL: f64 = 32_768.0;

pub(super) fn prefill(perf: &Path, gpu: &Gpu, heads: u32, kv_heads: u32) -> anyhow::Result<PrefillFit> {
    let table = Table::read(perf, &format!("aic_{}_sglang{}_prefill_attn.csv", gpu.system, gpu.sglang))?;
    let given = [("num_heads", &*heads.to_string()), ("num_key_value_heads", &*kv_heads.to_string())];
    let rows: Vec<[f64; 3]> = table
        .select(&given, ["batch_size", "isl", "latency_us"])?
        .into_iter()
        .filter(|[batch, isl, _]| *isl >= SHORTEST_DECODE && batch * isl <= MOST_PREFILL)
        .collect();
    let error_of = |fit: &PrefillFit, [batch, isl, us]: &[f64; 3]| {
        (prefill_us(fit, gpu, f64::from(heads), *batch, *isl) / us - 1.0).abs()
    };
    let mut best: Option<(PrefillFit, f64)> = None;
    // A grid: the maximum of two terms has no gradient worth following, and this takes a second.
    for diagonal in 0..13 {
        for c0 in 20..60 {
            for rate in 60..150 {
                let fit = PrefillFit {
                    c0_us: f64::from(c0) * 0.25,
                    tflops: f64::from(rate) * 5.0,
                    diagonal_tokens: f64::from(diagonal) * 128.0,
                    quality: quality(Vec::new()),
                };
                let error: f64 = rows.iter().map(|row| error_of(&fit, row).powi(2)).sum();
                if best.as_ref().is_none_or(|(_, least)| error < *least) {
                    best = Some((fit, error));
                }
            }
        }
    }
    let Some((fit, _)) = best else { anyhow::bail!("{}: no prefill rows with at least 128 tokens", gpu.system) };
    let quality = quality(rows.iter().map(|row| error_of(&fit, row)).collect());
    Ok(PrefillFit { quality, ..fit })
}

/// One layer's prefill attention of a batch of equal prompts, as `plimsoll_timing::attention` has it.
pub(super) fn prefill_us(fit: &PrefillFit, gpu: &Gpu, heads: f64, batch: f64, isl: f64) -> f64 {
    let rate = fit.tflops * 1e6;
    let operations = batch * 4.0 * heads * HEAD_DIM * isl * (isl + fit.diagonal_tokens) / 2.0;
    let tile = 4.0 * HEAD_DIM * 128.0 * isl.max(128.0);
    fit.c0_us + (operations / rate).max(tile / (rate / f64::from(gpu.sms)))
}
