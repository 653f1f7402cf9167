//! Closed-loop load client: `concurrency` connections, each sending its next request when the answer to the last
//! one is complete. Every answer is verified: the fastest router is the one that loses things. One thread, raw
//! sockets, and its own CPU time is part of the result.

mod answer;
mod ask;
mod connection;
mod stall;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(clap::Args, Clone)]
pub struct Args {
    /// Address to load; connections are dealt to several in turn.
    #[arg(long = "to", required = true)]
    to: Vec<SocketAddr>,
    #[arg(long, default_value_t = 32)]
    concurrency: u32,
    /// Stop after this many requests.
    #[arg(long, default_value_t = u64::MAX)]
    requests: u64,
    /// Start no request after this time, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    for_ms: u64,
    /// Size of the request body, in bytes.
    #[arg(long, default_value_t = 1_024)]
    body_bytes: usize,
    /// Ask for a stream.
    #[arg(long)]
    stream: bool,
    /// Tokens that each answer must have.
    #[arg(long, default_value_t = 32)]
    tokens: u32,
    /// Spread the first requests evenly over this time, in milliseconds, and pause for a random part of a tenth of
    /// it between requests, so that connections do not move in step.
    #[arg(long, default_value_t = 0)]
    spread_ms: u64,
    /// Send one request per connection, read no more than the first of the answer, and hold it for `for_ms`.
    #[arg(long)]
    stall: bool,
}

/// What one run found; times in microseconds.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Report {
    pub requests: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// From the first request sent to the last answer complete, in seconds.
    pub wall_s: f64,
    pub requests_per_s: f64,
    pub latency_us: Percentiles,
    /// To the first event of a stream; to the head of an answer that is not streamed.
    pub ttft_us: Percentiles,
    /// User and system time of the client, in seconds.
    pub cpu_s: f64,
    /// Connections that the other side closed between answers.
    pub reconnects: u64,
}

#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    fn of(nanos: &Histogram<u64>) -> Percentiles {
        let us = |q| nanos.value_at_quantile(q) as f64 / 1e3;
        Percentiles { p50: us(0.5), p90: us(0.9), p99: us(0.99), max: nanos.max() as f64 / 1e3 }
    }
}

/// What the connections share: the budget of requests and what they have found.
struct Tally {
    started: u64,
    answered: u64,
    errors: u64,
    first_error: Option<String>,
    reconnects: u64,
    latency: Histogram<u64>,
    ttft: Histogram<u64>,
}

/// Errors in a row after which a connection gives up; a router that is down would otherwise be hammered.
const MAX_ERRORS_IN_A_ROW: u32 = 20;

pub async fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.concurrency > 0, "concurrency must be at least 1");
    if args.stall {
        return stall::run(&args).await;
    }
    let report = measure(&args).await?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    let histogram = || Histogram::new_with_bounds(1_000, 600_000_000_000, 3).context("histogram bounds");
    let tally = Rc::new(RefCell::new(Tally {
        started: 0,
        answered: 0,
        errors: 0,
        first_error: None,
        reconnects: 0,
        latency: histogram()?,
        ttft: histogram()?,
    }));
    let begin = Instant::now();
    let local = tokio::task::LocalSet::new();
    let mut tasks = Vec::new();
    for index in 0..args.concurrency {
        let (args, tally) = (args.clone(), Rc::clone(&tally));
        tasks.push(local.spawn_local(connection::drive(index, args, begin, tally)));
    }
    // What is stuck beyond every reason is an error, not a reason to wait for ever.
    let patience = Duration::from_millis(args.for_ms) + Duration::from_secs(15);
    let all = async {
        for task in tasks {
            task.await.context("a connection panicked")?;
        }
        anyhow::Ok(())
    };
    let in_time = tokio::time::timeout(patience, local.run_until(all)).await;
    let wall_s = begin.elapsed().as_secs_f64();
    let mut tally = tally.borrow_mut();
    match in_time {
        Ok(ended) => ended?,
        Err(_) => {
            let stuck = tally.started - tally.answered - tally.errors;
            tally.errors += stuck;
            tally.first_error.get_or_insert(format!("{stuck} requests had no complete answer at the end"));
        }
    }
    Ok(Report {
        requests: tally.answered,
        errors: tally.errors,
        first_error: tally.first_error.take(),
        wall_s,
        requests_per_s: tally.answered as f64 / wall_s,
        latency_us: Percentiles::of(&tally.latency),
        ttft_us: Percentiles::of(&tally.ttft),
        cpu_s: crate::gateway::process::cpu_of_self_s()?,
        reconnects: tally.reconnects,
    })
}
