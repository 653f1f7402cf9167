//! What looking at one stream event costs: `cargo run --release -p plimsoll-pools --example chunk_cost`.
//! Prints the best of several rounds, in nanoseconds an event.

use plimsoll_pools::chunk::{ChunkFacts, inspect_openai_chunk, inspect_sglang_chunk};
use std::hint::black_box;
use std::time::Instant;

type Inspect = fn(&[u8]) -> ChunkFacts;

fn main() {
    let delta = r#"{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1796000000,"model":"tiny","choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null}]}"#;
    let usage = delta.replace("]}", r#"],"usage":{"prompt_tokens":100,"total_tokens":116,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":96}}}"#);
    let last = delta.replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#);
    let code = delta.replace(" the", &r#"fn a() { b::c(\"d\": 1); }\n"#.repeat(40));
    let native = |ids: usize| {
        let (text, ids) = ("word ".repeat(ids), vec!["1234"; ids].join(","));
        format!(
            r#"{{"text":"{text}","output_ids":[{ids}],"meta_info":{{"id":"0123","finish_reason":null,"prompt_tokens":100,"weight_version":"default","num_retractions":0,"completion_tokens":2,"cached_tokens":96,"cached_tokens_details":{{"device":96,"host":0}},"dp_rank":null}}}}"#
        )
    };
    let cases: [(&str, String, Inspect); 7] = [
        ("openai delta", delta.to_owned(), inspect_openai_chunk),
        ("openai delta with usage", usage, inspect_openai_chunk),
        ("openai finish", last, inspect_openai_chunk),
        ("openai, 1 kB of code", code, inspect_openai_chunk),
        ("sglang, 2 tokens so far", native(2), inspect_sglang_chunk),
        ("sglang, 500 tokens so far", native(500), inspect_sglang_chunk),
        ("sglang, 8000 tokens so far", native(8000), inspect_sglang_chunk),
    ];
    println!("{:<28} {:>7} {:>10}", "event", "bytes", "ns");
    for (name, data, inspect) in cases {
        let rounds = 20_000_000 / (data.len() as u128 + 200);
        let best = (0..7).map(|_| {
            let start = Instant::now();
            for _ in 0..rounds {
                black_box(inspect(black_box(data.as_bytes())));
            }
            start.elapsed().as_nanos() / rounds
        });
        println!("{name:<28} {:>7} {:>10}", data.len(), best.min().unwrap_or(0));
    }
}
