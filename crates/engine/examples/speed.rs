//! Measures prefill and decode of the default model on one core. `cargo run --release -p plimsoll-engine --example speed`

use plimsoll_engine::model::{KvStore, Model, ModelConfig, Run, Want};
use std::time::{Duration, Instant};

/// Time this process really had a core (Linux), so that a busy machine does not change the figure; else wall time.
fn core_time(started: Instant) -> Duration {
    let ns = std::fs::read_to_string("/proc/self/schedstat").ok().and_then(|text| text.split(' ').next()?.parse().ok());
    ns.map_or_else(|| started.elapsed(), Duration::from_nanos)
}

fn main() {
    let process = Instant::now();
    let started = Instant::now();
    let mut model = Model::new(ModelConfig::default());
    println!("weights: {} KiB in {:?}", model.weight_bytes() / 1024, started.elapsed());
    let mut kv = KvStore::new(&model.config().clone(), 4096, 16);
    let tokens: Vec<u32> = (0..4096).map(|i| 272 + (i * 37) % 752).collect();
    let pages: Vec<u32> = (0..4096).collect();
    for length in [512usize, 2048, 4096] {
        let before = core_time(process);
        for start in (0..length).step_by(512) {
            let run = Run { tokens: &tokens[start..start + 512], start, pages: &pages, want: Want::Logits };
            model.forward(&[run], &mut kv);
        }
        println!("prefill of {length}: {:.0} tokens/s", length as f64 / (core_time(process) - before).as_secs_f64());
    }
    for (batch, context) in [(1usize, 512usize), (8, 512), (8, 2048), (32, 1024)] {
        let before = core_time(process);
        let steps = 200;
        for step in 0..steps {
            let runs: Vec<Run<'_>> = (0..batch)
                .map(|i| Run {
                    tokens: &tokens[i..=i],
                    start: context - steps + step,
                    pages: &pages[i * 128..][..128],
                    want: Want::Logits,
                })
                .collect();
            model.forward(&runs, &mut kv);
        }
        let rate = (batch * steps) as f64 / (core_time(process) - before).as_secs_f64();
        println!("decode batch {batch}, context {context}: {rate:.0} tokens/s");
    }
}
