//! What steps of an engine take on this machine: requests of many lengths, many and few at once, and the engine's own log of them.
//!
//! A fit knows only what it was shown, so the waves span what a replay will meet: decoding alone and beside a prompt, short
//! and long contexts, whole and broken chunks, prompts that are cached but for their end. All engines are asked at once,
//! because they will share the machine later.

use super::steps::{LOG_LAG, Logs, Steps};
use super::{PAGE_TOKENS, drive};
use crate::Failure;
use crate::commands::demo::client::Client;
use crate::output;
use plimsoll_timing::Profile;
use plimsoll_timing::fit::{Quality, fit};
use plimsoll_timing::profile::Serving;
use plimsoll_workload::{Call, Prompt, Run, Tail};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Requests at once, tokens of their prompts and of their answers. The first ones say something of everything.
const WAVES: [(u64, u64, u64); 12] = [
    (1, 200, 16),
    (4, 100, 16),
    (1, 1_000, 8),
    (8, 40, 16),
    (2, 500, 24),
    (16, 24, 16),
    (1, 20, 24),
    (3, 250, 24),
    (6, 200, 16),
    (1, 3_000, 8),
    (24, 40, 16),
    (12, 120, 24),
];
/// Of them, those that are made however long they take.
const FEWEST: usize = 6;
/// Before any id of a trace that was made from lengths, and behind those of traces that count from 0.
const FIRST_BLOCK: u64 = 1 << 60;

/// What was found out.
pub(super) struct Calibrated {
    pub(super) profile: Profile,
    pub(super) quality: Quality,
    pub(super) steps: Steps,
    pub(super) took: Duration,
}

/// Measures for about `time`, and empties the engines' caches at the end.
///
/// # Errors
/// When an engine does not answer, or too few steps were measured.
pub(super) async fn calibrate(
    engines: &[String],
    logs: &mut Logs,
    base: &Profile,
    time: Duration,
) -> Result<Calibrated, Failure> {
    let begun = Instant::now();
    let asking: JoinSet<Result<(), Failure>> = engines
        .iter()
        .enumerate()
        .map(|(nth, url)| Ok(waves(Client::new(url)?, nth as u64, base.serving.clone(), begun + time)))
        .collect::<Result<Vec<_>, Failure>>()?
        .into_iter()
        .collect();
    asking.join_all().await.into_iter().collect::<Result<(), Failure>>()?;
    tokio::time::sleep(LOG_LAG).await;
    let steps = logs.read()?;
    let (profile, quality) = fit(&steps.samples, base).map_err(Failure::failed)?;
    let (pace, took) = (steps.pace(), begun.elapsed());
    output::note(&format!(
        "plimsoll sim fidelity: {} steps of {:.1} ms measured in {:.0} s, fitted with an error of {:.1} % in the median and {:.1} % \
         at p90",
        quality.steps,
        pace.step_ms,
        took.as_secs_f64(),
        quality.median_error * 100.0,
        quality.p90_error * 100.0
    ));
    Ok(Calibrated { profile, quality, steps, took })
}

async fn waves(client: Client, engine: u64, sizes: Serving, until: Instant) -> Result<(), Failure> {
    let client = std::sync::Arc::new(client);
    let mut made = 0u64;
    'all: loop {
        for (nth, (requests, prompt, output)) in WAVES.into_iter().enumerate() {
            if Instant::now() >= until && (nth >= FEWEST || made >= WAVES.len() as u64) {
                break 'all;
            }
            let requests = requests.min(sizes.max_running);
            let prompt = prompt.min(sizes.context_tokens / 2);
            // The second time all but the last page is cached.
            for output in [output, 4] {
                let mut asking = JoinSet::new();
                for request in 0..requests {
                    // Chunks end at many lengths.
                    let tokens = prompt + (made * 29 + request * 13) % 48;
                    let call = call(engine << 40 | made << 20 | request << 12, tokens, output);
                    let client = std::sync::Arc::clone(&client);
                    asking.spawn(async move { drive::ask(&client, &call, tokio::time::Instant::now()).await });
                }
                for answer in asking.join_all().await {
                    answer.map_err(|(code, message)| {
                        Failure::failed(format!("an engine does not answer while it is measured: {code}: {message}"))
                    })?;
                }
            }
            made += 1;
        }
    }
    let flushed = client.post("/flush_cache", bytes::Bytes::new()).await;
    flushed.map(|_| ()).map_err(|error| Failure::failed(format!("the engine's cache cannot be emptied: {error}")))
}

fn call(block: u64, tokens: u64, output_tokens: u64) -> Call {
    let first = FIRST_BLOCK + block;
    let full = tokens / PAGE_TOKENS;
    let rest = tokens % PAGE_TOKENS;
    Call {
        after: Vec::new(),
        prompt: Prompt {
            block_tokens: PAGE_TOKENS,
            runs: vec![Run { first, len: full }],
            tail: (rest > 0).then_some(Tail { id: first + full, tokens: rest }),
        },
        echo_tokens: 0,
        output_tokens,
        max_output_tokens: Some(output_tokens),
        recorded: None,
    }
}
