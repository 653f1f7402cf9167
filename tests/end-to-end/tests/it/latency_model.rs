//! The gateway learns how long its engines take from what it sees of them, and says how well.

use crate::COMPLETIONS;
use plimsoll_end_to_end::Plan;
use plimsoll_end_to_end::engine::EngineProcess;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefill_and_decode_are_learnt_from_streams() {
    // A step of 10 ms is the whole truth here: prefill in chunks of 256 tokens, one token a step.
    let engine = EngineProcess::start(&["--step-delay-ms", "10", "--token-budget", "256"]);
    let gateway = Plan::with([format!("http://{}", engine.addr)]).start().await;
    for round in 0..24u32 {
        // No two prompts share a page.
        let prompt: Vec<u32> = (0..64 + 100 * (round % 4)).map(|at| (at * 7 + round * 31) % 200 + 3).collect();
        let ask = json!({"prompt": prompt, "max_tokens": 12, "ignore_eos": true, "stream": true,
            "stream_options": {"include_usage": true}});
        let answer = gateway.post(COMPLETIONS, &ask).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    gateway.settled().await;
    let read =
        async |name: &str, label: &str| gateway.metric(&format!("plimsoll_latency_model_{name}"), &[label]).await;
    for stage in ["prefill", "decode"] {
        let label = format!("stage=\"{stage}\"");
        assert!(read("samples", &label).await >= 16.0, "{stage}: {}", gateway.metrics().await);
        // Wide: the machine may be busy. The assumed coefficients would be 300 % off and more.
        let error = read("error_ratio", &label).await;
        assert!(error > 0.0 && error < 0.8, "{stage} is off by {error}");
    }
    let step = read("coefficient", "\"a\"").await + read("coefficient", "\"b\"").await;
    assert!((0.008..0.04).contains(&step), "a step is learnt to take {step} s");
    gateway.finish().await;
}
