//! Mixture-of-experts models under data-parallel attention: closed forms, as their expert kernels were not tabulated.
//!
//! Decode: a fixed time (expert weights are read whatever the batch, two all-to-alls a layer) plus a little per request.
//! Prefill: a rate per token that measured runs of the same model in another parallelism gave; that part is extrapolated.

use super::attention::{self, Gpu, H200, HEAD_DIM};
use super::table::Table;
use std::fmt::Write as _;
use std::path::Path;

const RUNS: &str = "aic_silicon_e2e_h100_h200.csv";

/// Per step, and per token while decoding.
const FIXED_US: f64 = 13_500.0;
const TOKEN_US: f64 = 20.0;

pub(super) fn profiles(perf: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let runs = Table::read(perf, RUNS)?;
    Ok(vec![qwen(perf, &runs)?, deepseek(&runs)?])
}

struct Closed<'a> {
    name: &'a str,
    summary: &'a str,
    ranks: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: f64,
    head_dim_why: &'a str,
    /// Bytes per token and layer.
    kv_layer_bytes: u32,
    kv_why: &'a str,
    kv_tokens: u32,
    kv_tokens_why: &'a str,
    page_tokens: u32,
    page_why: &'a str,
    efficiency: f64,
    efficiency_why: String,
    /// Prefill without attention, per token on one GPU.
    prefill_us: f64,
    prefill_why: String,
    attention_tflops: f64,
    diagonal_tokens: f64,
    attention_why: String,
}

/// 8 ranks on 8 GPUs.
fn qwen(perf: &Path, runs: &Table) -> anyhow::Result<(String, String)> {
    let gpu = H200;
    let given = [
        ("model_path", "Qwen/Qwen3-235B-A22B-FP8"),
        ("backend", "sglang"),
        ("system", gpu.system),
        ("tp_size", "2"),
        ("batch_size", "2"),
        ("isl", "4000"),
    ];
    let ttft = runs.select(&given, ["silicon_ttft_ms"])?;
    let mean_ms = ttft.iter().map(|[ms]| ms).sum::<f64>() / ttft.len() as f64;
    let half = attention::prefill(perf, &gpu, 32, 2)?;
    let attention_us = 94.0 * attention::prefill_us(&half, &gpu, 32.0, 2.0, 4000.0);
    let prefill_us = (mean_ms * 1e3 - attention_us) * 2.0 / 8000.0;
    let whole = attention::prefill(perf, &gpu, 64, 4)?;
    Ok(render(
        &gpu,
        &Closed {
            name: "h200-qwen3-235b-dp8",
            summary: "Qwen3 235B A22B, fp8 experts, on 8 H200 SXM, data-parallel attention",
            ranks: 8,
            layers: 94,
            heads: 64,
            kv_heads: 4,
            head_dim: HEAD_DIM,
            head_dim_why: "The model's config.json.",
            kv_layer_bytes: 2048,
            kv_why: "4 KV heads, keys and values in bf16",
            kv_tokens: 470_000,
            kv_tokens_why: "fp8 weights on 8 x 141 GB",
            page_tokens: 16,
            page_why: "Any; fewer tokens reuse more",
            efficiency: 0.90,
            efficiency_why:
                "0.90 gives the 44.6 ns per token of the workload notes; the decode table of this shape fits 0.88"
                    .to_owned(),
            prefill_us,
            prefill_why: format!(
                "{RUNS}: two prompts of 4,000 tokens on TP2 have a mean TTFT of {mean_ms:.0} ms, attention {:.0} ms of it",
                attention_us / 1e3
            ),
            attention_tflops: whole.tflops,
            diagonal_tokens: whole.diagonal_tokens,
            attention_why: format!(
                "Launches are in the fixed time; aic_{}_sglang{}_prefill_attn.csv, heads 64, KV heads 4: error {:.0} % in the \
                 median",
                gpu.system,
                gpu.sglang,
                whole.quality.median * 100.0
            ),
        },
    ))
}

/// Wide expert parallelism: 32 ranks on 32 GPUs.
fn deepseek(runs: &Table) -> anyhow::Result<(String, String)> {
    let gpu = H200;
    // Dimensions of keys and values that prefill multiplies (192 and 128), bytes of the latent per layer.
    let (layers, heads, head_dim, kv_layer_bytes) = (61.0, 128.0, 160.0, 1152.0);
    let (efficiency, tflops) = (0.80, 600.0);
    let run = |isl: &str, osl: &str| -> anyhow::Result<f64> {
        let given = [
            ("model_path", "deepseek-ai/DeepSeek-V3"),
            ("backend", "sglang"),
            ("system", gpu.system),
            ("mode", "agg"),
            ("batch_size", "64"),
            ("isl", isl),
            ("osl", osl),
        ];
        Ok(runs.select(&given, ["silicon_tpot_ms"])?[0][0])
    };
    // 64 requests in a closed loop: each waits for the prefill of the 63 others once per answer.
    let (long_ms, short_ms) = (run("8192", "1024")?, run("1024", "8192")?);
    let token_ns = layers * kv_layer_bytes / (gpu.bandwidth_gb_s * efficiency);
    let longer_ms = 64.0 * ((8192.0 + 512.0) - (1024.0 + 4096.0)) * token_ns / 1e6;
    let prefill_ms = (long_ms - short_ms - longer_ms) * 1024.0 / 63.0;
    let attention_ms = layers * 4.0 * heads * head_dim * 8192.0 * 4096.0 / 8.0 / (tflops * 1e12) * 1e3;
    let prefill_us = (prefill_ms - attention_ms) * 8.0 / 8192.0 * 1e3;
    Ok(render(
        &gpu,
        &Closed {
            name: "h200-deepseek-v3-dp32",
            summary: "DeepSeek V3, fp8, on 32 H200 SXM, data-parallel attention and wide expert parallelism",
            ranks: 32,
            layers: 61,
            heads: 128,
            kv_heads: 1,
            head_dim,
            head_dim_why: "Multi-head latent attention: keys have 192 dimensions, values 128.",
            kv_layer_bytes: 1152,
            kv_why: "one latent of 576 in bf16",
            kv_tokens: 1_280_000,
            kv_tokens_why: "fp8 weights on 32 x 141 GB",
            page_tokens: 64,
            page_why: "What FlashMLA takes",
            efficiency,
            efficiency_why: "gives the 18.3 ns per token of the workload notes".to_owned(),
            prefill_us,
            prefill_why: format!(
                "{RUNS}: 64 requests on 8 GPUs, TPOT {long_ms:.1} ms with prompts of 8,192 and {short_ms:.1} with 1,024; \
                 the rest is {prefill_ms:.0} ms a prompt, attention {attention_ms:.0} of it"
            ),
            attention_tflops: tflops,
            diagonal_tokens: 768.0,
            attention_why: "Launches are in the fixed time; the rate is what a GPU of this kind reaches with 64 heads"
                .to_owned(),
        },
    ))
}

fn render(gpu: &Gpu, closed: &Closed<'_>) -> (String, String) {
    let layers = f64::from(closed.layers);
    // Where the rate per token of prefill overtakes the fixed time.
    let knee = FIXED_US / (closed.prefill_us - TOKEN_US);
    let at = [0.0, knee, 8192.0];
    let us = [0.0, TOKEN_US * knee, closed.prefill_us * 8192.0 - FIXED_US].map(|us| us / layers);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\
# Written by `cargo run -p xtask -- fit-profiles`; do not edit. A closed form: good for ratios, not for the price of a
# cluster. Prefill is extrapolated from another parallelism.
name = \"{name}\"
summary = \"{summary}\"
founded = \"extrapolated\"

[machine]
gpu = \"{gpu_name}\"
# Data sheet.
sms = {sms}
bandwidth_gb_s = {bandwidth:.1}
tensor_parallel = 1
data_parallel = {ranks}

[model]
layers = {layer_count}
heads = {heads}.0
kv_heads = {kv_heads}.0
# {head_dim_why}
head_dim = {head_dim:.1}
# Per layer: {kv_why}.
kv_bytes_token_layer = {kv_layer}.0

[serving]
kv_bytes_token = {kv_bytes}
# Per rank: {kv_tokens_why} (workload notes, section 2).
kv_tokens = {kv_tokens}
context_tokens = 131072
# {page_why}.
page_tokens = {page_tokens}
token_budget = 8192
max_running = 64

[step]
# Expert weights 6 to 9 ms, two all-to-alls a layer, host: 13 to 14 ms (workload notes, sections 2 and 3).
host_us = {FIXED_US:.1}
layer_us = 0.0

# Per layer: {TOKEN_US:.0} us per token of a small step (workload notes, section 3), then {prefill_us:.0} us per token of a
# large one, fixed time included. {prefill_why}.
[dense]
at = [{at0:.1}, {at1:.1}, {at2:.1}]
us = [{us0:.2}, {us1:.2}, {us2:.2}]

# In the fixed time.
[head]
at = [1.0]
us = [0.0]

# Launches are in the fixed time; {efficiency_why}.
[decode]
c0_us = 0.0
c1_us = 0.0
efficiency = {efficiency:.3}

# {attention_why}.
[prefill]
c0_us = 0.0
tflops = {tflops:.1}
diagonal_tokens = {diagonal:.1}

# Work-conserving (FA3 and MLA tile schedulers, read in their sources), with the skew that was measured elsewhere.
[kernel]
family = \"K0\"
skew = 0.04
",
        name = closed.name,
        summary = closed.summary,
        gpu_name = gpu.name,
        sms = gpu.sms,
        bandwidth = gpu.bandwidth_gb_s,
        ranks = closed.ranks,
        layer_count = closed.layers,
        heads = closed.heads,
        kv_heads = closed.kv_heads,
        head_dim_why = closed.head_dim_why,
        head_dim = closed.head_dim,
        kv_why = closed.kv_why,
        kv_layer = closed.kv_layer_bytes,
        kv_bytes = closed.kv_layer_bytes * closed.layers,
        kv_tokens_why = closed.kv_tokens_why,
        kv_tokens = closed.kv_tokens,
        prefill_us = closed.prefill_us,
        prefill_why = closed.prefill_why,
        at0 = at[0],
        at1 = at[1],
        at2 = at[2],
        us0 = us[0],
        us1 = us[1],
        us2 = us[2],
        page_why = closed.page_why,
        page_tokens = closed.page_tokens,
        efficiency_why = closed.efficiency_why,
        efficiency = closed.efficiency,
        attention_why = closed.attention_why,
        tflops = closed.attention_tflops,
        diagonal = closed.diagonal_tokens,
    );
    (format!("{}.toml", closed.name), text)
}
