//! OC10: ranks that wait for each other with their prompts (TensorRT-LLM's technical blog 10: DeepSeek V3 on 8 GB200, 8 ranks).
//!
//! Printed there: 16,000 requests at once, 803 tokens in and 3,653 out in the mean with a long tail, waits of 50 and 10 steps, the balance of
//! tokens over ranks, the throughput, and that prompts are computed within the first 12,000 steps. Not printed: the
//! distributions, and how many requests a rank runs. 512 of them end prompts after 12,000 steps, as printed; the tail is an assumption.
//! A step takes a fixed time and a time per token of the fullest rank; both follow from the two throughputs of the first row (as it was, and with all ranks equal),
//! so the other rows are predicted.

use plimsoll_core::Rank;
use plimsoll_sim::engine::{ContextWait, EngineShape, Happened, Instance, Job, Key, Reserve};
use plimsoll_sim::step_time::{StepClock, StepTime};
use plimsoll_timing::StepShape;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

const RANKS: u16 = 8;
const REQUESTS: usize = 16_000;
const RUNNING: u64 = 512;
/// Longest answer: the tail that is assumed.
const LONGEST: f64 = 10_000.0;
const SPREAD: f64 = 0.7;

/// Any time will do: what is computed in which step does not depend on it.
#[derive(Debug)]
struct Even;

impl StepTime for Even {
    fn step_us(&self, _: &StepShape) -> f64 {
        1_000.0
    }

    fn context_token_us(&self) -> Option<f64> {
        Some(0.0)
    }
}

/// Log-normal lengths with this mean.
fn lengths(mean: f64, spread: f64, longest: f64, rng: &mut ChaCha8Rng) -> Vec<u64> {
    let mut normal = || {
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let raw: Vec<f64> = (0..REQUESTS).map(|_| (mean * (spread * normal()).exp()).min(longest)).collect();
    let scale = mean * REQUESTS as f64 / raw.iter().sum::<f64>();
    raw.into_iter().map(|tokens| ((tokens * scale).round() as u64).max(1)).collect()
}

/// Steps of one kind: how many, and the tokens of the mean and of the fullest rank.
struct Steps(Vec<(f64, f64, f64)>);

impl Steps {
    fn sum(&self, of: impl Fn(f64, f64) -> f64) -> f64 {
        self.0.iter().map(|(steps, mean, most)| steps * of(*mean, *most)).sum()
    }

    fn balance(&self) -> f64 {
        self.sum(|mean, most| mean / most) / self.sum(|_, _| 1.0)
    }
}

fn run(wait: Option<ContextWait>) -> (Steps, f64) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (inputs, outputs) = (lengths(803.0, 0.6, 8_000.0, &mut rng), lengths(3_653.0, SPREAD, LONGEST, &mut rng));
    let mut queue: VecDeque<usize> = (0..REQUESTS).collect();
    let shape = EngineShape {
        page_tokens: 32,
        kv_tokens: 1 << 26,
        context_tokens: 1 << 20,
        token_budget: 8_192,
        max_running: RUNNING,
        block_tokens: 32,
        reserve: Reserve::Prompt,
        context_wait: wait,
    };
    let clock = StepClock::new(Box::new(Even));
    let (mut instance, mut happened) = (Instance::new(shape, RANKS, false), Vec::new());
    let mut on = [0u64; RANKS as usize];
    let mut of_rank = vec![0; REQUESTS];
    let (mut steps, mut at, mut last_prompt) = (Steps(Vec::new()), 0.0, 0.0);
    loop {
        // Who has a place goes to the rank with the fewest.
        while let Some((rank, few)) = on.iter().copied().enumerate().min_by_key(|(_, on)| *on)
            && few < RUNNING
            && let Some(next) = queue.pop_front()
        {
            let job = Job::new(Key(next as u64), Vec::new(), inputs[next], outputs[next]);
            instance.rank_mut(Rank(rank as u16)).submit(job).map_err(|_| "too long").unwrap();
            (on[rank], of_rank[next]) = (few + 1, rank);
        }
        if instance.begin(&clock, &mut happened).is_none() {
            break;
        }
        let tokens: Vec<u64> = instance.ranks().iter().map(plimsoll_sim::engine::Rank::step_tokens).collect();
        let report = instance.end(&mut happened);
        let most = tokens.iter().copied().max().unwrap_or(0) as f64;
        steps.0.push((report.steps as f64, tokens.iter().sum::<u64>() as f64 / f64::from(RANKS), most));
        at += report.steps as f64;
        for one in happened.drain(..) {
            match one {
                Happened::FirstToken { .. } => last_prompt = at,
                Happened::Finished { key } => on[of_rank[key.0 as usize]] -= 1,
                _ => {}
            }
        }
    }
    (steps, last_prompt)
}

#[test]
fn oc10_ranks_wait_for_each_other_with_their_prompts() {
    let (plain, last_prompt) = run(None);
    println!("OC10 prompts end after {last_prompt:.0} steps, published within 12,000");
    assert!((11_000.0..13_000.0).contains(&last_prompt), "{last_prompt}");
    // Two throughputs of the first row give the two constants.
    let output = 3_653.0 * REQUESTS as f64;
    let (whole, ideal) = (output / 25_664.0, output / 39_552.0);
    let (n, m) = (plain.sum(|_, _| 1.0), plain.sum(|_, most| most));
    let (nb, mb) = (plain.sum(|mean, most| mean / most), plain.sum(|mean, _| mean));
    let fixed = (whole * mb - m * ideal) / (n * mb - m * nb);
    let per_token = (whole - fixed * n) / m;
    println!("OC10 a step takes {:.1} ms and {:.0} us a token of the fullest rank", fixed * 1e3, per_token * 1e6);
    assert!(fixed > 0.0 && per_token > 0.0);
    println!("OC10 as it comes: balance {:.3}, published 0.541 (over: not met)", plain.balance());
    for (name, batching_steps, balance, speedup) in [("wait 50", 0, 0.8433, 1.31), ("wait 50+10", 10, 0.8770, 1.33)] {
        let (steps, _) = run(Some(ContextWait { timeout_steps: 50, batching_steps }));
        let found = whole / steps.sum(|_, most| fixed + per_token * most);
        println!(
            "OC10 {name}: balance {:.3}, published {balance}; throughput x{found:.3}, published x{speedup}",
            steps.balance()
        );
        assert!((steps.balance() - balance).abs() <= 0.10, "{}", steps.balance());
        assert!((found - speedup).abs() <= 0.10, "{found}");
    }
}
