//! What the reader of a running request notices when it moves to another engine: the gap between the last token here and
//! the first one there, beside the usual time between tokens, by the length of its context.
//!
//! Two real `plimsoll engine` processes of the tiny model. A request streams from the one; once it has given some tokens,
//! its KV is shipped while it goes on, then it is frozen, the rest follows, and it goes on at the other one, whose stream is
//! waiting already. Both streams together must be, token for token, what a request says that is left alone.

mod reader;

use crate::gateway::figures::median;
use crate::gateway::fleet::{free_address, wait_until};
use crate::gateway::http;
use crate::gateway::machine::Machine;
use crate::gateway::process::Process;
use crate::gateway::product::Programs;
use anyhow::{Context, ensure};
use reader::Stream;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Prompt tokens of the request that moves, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096, 16384])]
    contexts: Vec<usize>,
    /// Moves of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Every step of the engines takes at least this long: the tiny model alone would be done before it has moved.
    #[arg(long, default_value_t = 10)]
    step_delay_ms: u64,
    /// Use this binary in place of building one.
    #[arg(long)]
    plimsoll: Option<PathBuf>,
}

/// Tokens of an answer, and how many have come when its move begins.
const OUTPUT_TOKENS: usize = 300;
const MOVE_AFTER: usize = 60;
const PATIENCE: Duration = Duration::from_secs(60);

/// One move.
struct Found {
    gap_ms: f64,
    /// Median time between tokens, of both streams without the gap.
    itl_ms: f64,
    moved_bytes: f64,
    /// From the first verb to the first token at the target.
    took_ms: f64,
    /// The token after which it moved.
    at: f64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.contexts.iter().all(|tokens| (16..=100_000).contains(tokens)), "use contexts of 16 to 100000 tokens");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machine = Machine::read(&repository);
    let program = Programs::find(&repository, args.plimsoll.as_deref(), true).plimsoll.map_err(anyhow::Error::msg)?;
    let logs = repository.join("bench/out");
    std::fs::create_dir_all(&logs)?;
    println!(
        "| context | gap ms | most | usual time between tokens ms | gap / usual | moved MB | whole move ms | lost or repeated |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for tokens in &args.contexts {
        let found = measure(args, &program, &logs, *tokens)?;
        let of = |figure: fn(&Found) -> f64| median(found.iter().map(figure)).unwrap_or(f64::NAN);
        let most = found.iter().map(|one| one.gap_ms).fold(0.0, f64::max);
        println!(
            "| {tokens} | {:.1} | {most:.1} | {:.1} | {:.2} | {:.2} | {:.0} | 0 of {} |",
            of(|one| one.gap_ms),
            of(|one| one.itl_ms),
            of(|one| one.gap_ms / one.itl_ms),
            of(|one| one.moved_bytes / 1e6),
            of(|one| one.took_ms),
            found.len() * OUTPUT_TOKENS
        );
    }
    println!("\n{} x {}, load {} at the start, {}", machine.cores, machine.cpu, machine.load_average, machine.date);
    Ok(())
}

fn measure(args: &Args, program: &Path, logs: &Path, tokens: usize) -> anyhow::Result<Vec<Found>> {
    let pair = [0, 1].map(|index| start(args, program, &logs.join(format!("engine-{index}.log")), tokens));
    let [(from, _from), (to, _to)] = match pair {
        [Ok(from), Ok(to)] => [from, to],
        [Err(error), _] | [_, Err(error)] => return Err(error),
    };
    let expected = Stream::open(from, "/generate", &request("alone", tokens))?.read_all(PATIENCE)?.ids();
    ensure!(expected.len() == OUTPUT_TOKENS, "the answer has {} tokens", expected.len());
    let mut found = Vec::new();
    for round in 0..args.rounds.max(1) {
        // The target starts without any of it.
        call(to, "/flush_cache", &json!({}))?;
        let one = move_one(from, to, round, tokens, &expected)?;
        eprintln!("{tokens} tokens, move {}: {:.1} ms after token {:.0}", round + 1, one.gap_ms, one.at);
        found.push(one);
    }
    Ok(found)
}

fn start(args: &Args, program: &Path, log: &Path, tokens: usize) -> anyhow::Result<(SocketAddr, Process)> {
    let (address, migration) = (free_address()?, free_address()?);
    let room = (tokens + OUTPUT_TOKENS + 64).to_string();
    let mut command = Command::new(program);
    command.args(["engine", "--listen", &address.to_string(), "--migration-listen", &migration.to_string()]);
    command.args(["--context-tokens", &room, "--kv-tokens", &(4 * tokens + 8192).to_string()]);
    command.args(["--step-delay-ms", &args.step_delay_ms.to_string(), "--incremental-streaming", "--threads", "1"]);
    let mut process = Process::start(&command, log)?;
    wait_until(&mut process, Duration::from_secs(20), || {
        matches!(http::call(address, "GET", "/health", ""), Ok((200, _)))
    })
    .context("the engine does not answer")?;
    Ok((address, process))
}

fn request(rid: &str, tokens: usize) -> Value {
    let prompt: Vec<usize> = (0..tokens).map(|at| 272 + (at * 31 + at / 700) % 700).collect();
    let sampling = json!({"max_new_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": true});
    json!({"rid": rid, "input_ids": prompt, "sampling_params": sampling, "stream": true})
}

fn move_one(from: SocketAddr, to: SocketAddr, round: usize, tokens: usize, expected: &[u64]) -> anyhow::Result<Found> {
    let rid = format!("moves-{tokens}-{round}");
    let path = |verb: &str| format!("/plimsoll/v1/migrations/{rid}/{verb}");
    let mut here = Stream::open(from, "/generate", &request(&rid, tokens))?;
    let mut first = here.read_until(MOVE_AFTER, PATIENCE)?;
    let here = here.read_on();
    let begun = Instant::now();
    let offer = call(from, &path("offer"), &json!({"rid": rid}))?;
    let reservation = call(to, &path("reserve"), &offer)?;
    call(from, &path("start"), &reservation)?;
    let there = Stream::open(to, &path("follow"), &json!({"incremental": true, "wait_ms": 20_000}))?.read_on();
    loop {
        let report = call_with(from, "GET", &format!("/plimsoll/v1/migrations/{rid}"), "")?;
        let count = |name: &str| report[name].as_u64().unwrap_or(0);
        if count("moved_pages") >= count("pages") {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "the blocks do not arrive: {report}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let frozen = call(from, &path("freeze"), &json!({"commit": "sent"}))?;
    call(from, &path("release"), &json!({}))?;
    let target = there.join(PATIENCE)?;
    first.extend(here.join(PATIENCE)?);
    let both: Vec<u64> = first.ids().into_iter().chain(target.ids()).collect();
    ensure!(
        both == expected,
        "tokens were lost, repeated or changed: {} and {}",
        first.ids().len(),
        target.ids().len()
    );
    let (Some(last), Some(next)) = (first.last(), target.first()) else {
        anyhow::bail!("one of the two engines said nothing: the request ended before it had moved");
    };
    let usual = first.gaps_s().into_iter().chain(target.gaps_s());
    Ok(Found {
        gap_ms: (next - last).as_secs_f64() * 1e3,
        itl_ms: median(usual).unwrap_or(f64::NAN) * 1e3,
        moved_bytes: frozen["moved_bytes"].as_f64().context("no moved_bytes")?,
        took_ms: (next - begun).as_secs_f64() * 1e3,
        at: first.ids().len() as f64,
    })
}

fn call(to: SocketAddr, path: &str, body: &Value) -> anyhow::Result<Value> {
    call_with(to, "POST", path, &body.to_string())
}

fn call_with(to: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
    let (status, answer) = http::call(to, method, path, body)?;
    let text = String::from_utf8_lossy(&answer);
    ensure!(status == 200, "{path} answered {status}: {text}");
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}
