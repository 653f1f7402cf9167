//! Dense models whose every kernel was measured: Llama 3 8B and 70B.

use super::attention::{self, Gpu, H100, H200, HEAD_DIM, Quality};
use super::knots;
use super::table::Table;
use std::fmt::Write as _;
use std::path::Path;

struct Model {
    name: &'static str,
    title: &'static str,
    /// In the table of iterations.
    table: &'static str,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    parameters: f64,
}

const LLAMA_8B: Model = Model {
    name: "llama3-8b",
    title: "Llama 3 8B",
    table: "8B",
    layers: 32,
    heads: 32,
    kv_heads: 8,
    parameters: 8.03e9,
};

const LLAMA_70B: Model = Model {
    name: "llama3-70b",
    title: "Llama 3 70B",
    table: "70B",
    layers: 80,
    heads: 64,
    kv_heads: 8,
    parameters: 70.55e9,
};

/// Share of a GPU's memory for weights and KV.
const MEMORY_SHARE: f64 = 0.88;

const ITERATIONS: &str = "derived_llama3_nonattn_iteration.csv";

pub(super) fn profiles(perf: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for gpu in [H100, H200] {
        for (model, tensor_parallel) in [(&LLAMA_8B, 1), (&LLAMA_70B, 4), (&LLAMA_70B, 8)] {
            all.push(profile(perf, &gpu, model, tensor_parallel)?);
        }
    }
    Ok(all)
}

fn profile(perf: &Path, gpu: &Gpu, model: &Model, tp: u32) -> anyhow::Result<(String, String)> {
    let short = gpu.name.split(' ').next().unwrap_or_default().to_lowercase();
    let suffix = if tp == 1 { String::new() } else { format!("-tp{tp}") };
    let name = format!("{short}-{}{suffix}", model.name);
    let (heads, kv_heads) = (model.heads / tp, model.kv_heads / tp);
    let given = [("system", gpu.system), ("model", model.table), ("tp", &*tp.to_string())];
    let iterations =
        Table::read(perf, ITERATIONS)?.select(&given, ["m", "gemm_layer_us", "allreduce_layer_us", "lm_head_us"])?;
    let dense = knots::choose(&iterations.iter().map(|[m, gemm, reduce, _]| (*m, gemm + reduce)).collect::<Vec<_>>());
    // The table repeats the value of 256 rows from there on.
    let head: Vec<_> = iterations.iter().filter(|row| row[0] <= 256.0).map(|[m, _, _, us]| (*m, *us)).collect();
    let head = knots::choose(&head);
    let decode = attention::decode(perf, gpu, heads, kv_heads)?;
    let prefill = attention::prefill(perf, gpu, heads, kv_heads)?;
    let kv_bytes = 4.0 * HEAD_DIM * f64::from(model.kv_heads * model.layers);
    let room = MEMORY_SHARE * gpu.memory_gb * 1e9 * f64::from(tp) - 2.0 * model.parameters;
    let mut text = String::new();
    let gpus = if tp == 1 { format!("one {}", gpu.name) } else { format!("{tp} {}, tensor parallel", gpu.name) };
    write!(
        text,
        "\
# Written by `cargo run -p xtask -- fit-profiles` from the tables it names; do not edit.
name = \"{name}\"
summary = \"{title}, bf16, on {gpus}\"
founded = \"measured\"

[machine]
gpu = \"{gpu_name}\"
# Data sheet.
sms = {sms}
bandwidth_gb_s = {bandwidth:.1}
tensor_parallel = {tp}
data_parallel = 1

[model]
# The model's config.json; heads are those on one GPU.
layers = {layers}
heads = {heads}.0
kv_heads = {kv_heads}.0
head_dim = {HEAD_DIM:.1}
# Keys and values in bf16.
kv_bytes_token_layer = {read:.1}

[serving]
# 4 bytes x KV heads x head_dim x layers.
kv_bytes_token = {kv_bytes:.0}
# ({MEMORY_SHARE} x {memory:.0} GB x {tp} - 2 bytes x {billions:.2}e9 weights) / kv_bytes_token, in thousands.
kv_tokens = {kv_tokens:.0}
# Llama 3.1.
context_tokens = 131072
page_tokens = 16
# SGLang's chunked_prefill_size on GPUs of this size.
token_budget = 8192
max_running = 256

[step]
# 1.0 to 1.5 ms with an overlapping scheduler.
host_us = 1250.0
# Norms, rotary positions, activation under CUDA graphs.
layer_us = 12.0

# {ITERATIONS}: gemm_layer_us + allreduce_layer_us (both all-reduces), knots within {tolerance:.1} %.
[dense]
at = {dense_at}
us = {dense_us}

# {ITERATIONS}: lm_head_us, knots within {tolerance:.1} %.
[head]
at = {head_at}
us = {head_us}

# aic_{system}_sglang{sglang}_decode_attn.csv, heads {heads}, KV heads {kv_heads}: {decode_quality}.
[decode]
c0_us = {d0:.2}
c1_us = {d1:.4}
efficiency = {eta:.3}

# aic_{system}_sglang{sglang}_prefill_attn.csv, heads {heads}, KV heads {kv_heads}: {prefill_quality}.
[prefill]
c0_us = {p0:.2}
tflops = {rate:.1}
diagonal_tokens = {diagonal:.1}

# FA3 sets its splits per sequence (read in its source, not measured); the skew is what was measured elsewhere, 0.03 to
# 0.05.
[kernel]
family = \"K0\"
skew = 0.04
",
        title = model.title,
        gpu_name = gpu.name,
        sms = gpu.sms,
        bandwidth = gpu.bandwidth_gb_s,
        layers = model.layers,
        read = 4.0 * HEAD_DIM * f64::from(kv_heads),
        memory = gpu.memory_gb,
        billions = model.parameters / 1e9,
        kv_tokens = (room / kv_bytes / 1e3).floor() * 1e3,
        tolerance = knots::TOLERANCE * 100.0,
        dense_at = list(&dense, |knot| knot.0, 1),
        dense_us = list(&dense, |knot| knot.1, 2),
        head_at = list(&head, |knot| knot.0, 1),
        head_us = list(&head, |knot| knot.1, 2),
        system = gpu.system,
        sglang = gpu.sglang,
        decode_quality = words(decode.quality),
        d0 = decode.c0_us,
        d1 = decode.c1_us,
        eta = decode.efficiency,
        prefill_quality = words(prefill.quality),
        p0 = prefill.c0_us,
        rate = prefill.tflops,
        diagonal = prefill.diagonal_tokens,
    )?;
    Ok((format!("{name}.toml"), text))
}

fn list(knots: &[(f64, f64)], of: impl Fn(&(f64, f64)) -> f64, digits: usize) -> String {
    let all: Vec<String> = knots.iter().map(|knot| format!("{:.digits$}", of(knot))).collect();
    format!("[{}]", all.join(", "))
}

fn words(quality: Quality) -> String {
    let Quality { rows, median, p90 } = quality;
    format!("{rows} rows, error {:.0} % in the median, {:.0} % at p90", median * 100.0, p90 * 100.0)
}
