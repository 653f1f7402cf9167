//! The engine's arithmetic against what the machine can do, measured in the same run: weights cannot be read faster than
//! memory gives them (decode), and nothing multiplies faster than `gemm` (prefill).
//!
//! Everything runs in this process on the engine's own kernels and threads, without scheduler and HTTP. Floors and models
//! take turns in every round, and what compares them is computed within a round, because a machine that is slow for a
//! minute is slow for neighbours.

mod floor;
mod table;
mod work;

use crate::gateway::machine::Machine;
use floor::Floors;
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::time::Instant;
use work::{Bench, Kind};

#[derive(clap::Args)]
pub struct Args {
    /// Two short rounds in place of five.
    #[arg(long)]
    quick: bool,
    /// Rounds; each measures every floor and every kind of work once.
    #[arg(long)]
    rounds: Option<usize>,
    /// Threads of the engine, of `gemm` and of the readers.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Write every cell of every round to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Everything that was measured.
#[derive(serde::Serialize)]
pub struct Results {
    machine: Machine,
    threads: usize,
    isa: &'static str,
    models: Vec<ModelFacts>,
    rounds: Vec<Round>,
}

#[derive(serde::Serialize)]
struct ModelFacts {
    name: &'static str,
    parameters: usize,
    weight_bytes: usize,
    threads: usize,
}

#[derive(serde::Serialize)]
struct Round {
    floors: Floors,
    cells: Vec<Cell>,
}

/// One kind of work of one model in one round.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Cell {
    model: usize,
    kind: Kind,
    tokens: usize,
    /// Multiply-adds times two that were really needed: no padding, no rows of the last layer that nobody wants.
    flops: f64,
    /// Weights and KV that had to be read.
    bytes: f64,
    took: Took,
}

/// How long something took: by the clock, and in processor time of all threads.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Took {
    wall_s: f64,
    cpu_s: f64,
}

impl Took {
    fn measure(act: impl FnOnce()) -> Took {
        let (wall, cpu) = (Instant::now(), cpu_s());
        act();
        Took { wall_s: wall.elapsed().as_secs_f64(), cpu_s: cpu_s() - cpu }
    }

    /// Of two measurements of the same, the one that was disturbed less.
    fn best(self, other: Took) -> Took {
        Took { wall_s: self.wall_s.min(other.wall_s), cpu_s: self.cpu_s.min(other.cpu_s) }
    }
}

fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!((1..=256).contains(&args.threads), "use 1 to 256 threads");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machine = Machine::read(&repository);
    let rounds = args.rounds.unwrap_or(if args.quick { 2 } else { 5 }).max(1);
    eprintln!("making models");
    let mut models = vec![Bench::tiny()?, Bench::hundred_million(args.threads)?];
    let mut floors = floor::Bench::new(args.threads)?;
    let mut results = Results {
        machine,
        threads: args.threads,
        isa: plimsoll_engine::kernels::Isa::best().name(),
        models: models.iter().map(Bench::facts).collect(),
        rounds: Vec::new(),
    };
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut cells = Vec::new();
        let before = floors.measure();
        for (index, model) in models.iter_mut().enumerate() {
            for kind in Kind::ALL {
                cells.push(model.measure(index, kind, args.quick));
            }
        }
        // Once more after the work: a floor that was disturbed would flatter the engine.
        let floors = before.best(floors.measure());
        results.rounds.push(Round { floors, cells });
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&results)?)?;
    }
    print!("{}", table::render(&results)?);
    Ok(())
}
