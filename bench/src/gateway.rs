//! The one command: starts every contender in turn in front of the same two fake engines, in interleaved rounds,
//! and prints what each costs. Why each figure is taken the way it is: `bench/README.md`.

mod cell;
mod contender;
pub mod figures;
pub mod fleet;
pub mod http;
pub mod machine;
pub mod process;
pub mod product;
mod scenario;
mod stalled;
mod table;

use anyhow::Context;
use cell::Cell;
use contender::{Contender, Start};
use fleet::Fleet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Three short rounds (under 4 minutes) in place of five (under 12).
    #[arg(long)]
    quick: bool,
    /// Rounds; each starts every contender anew.
    #[arg(long)]
    rounds: Option<u32>,
    /// Measure only these contenders (`direct`, `l4`, `round_robin`, `least_wait`, `smg`, `vllm-router`); direct
    /// is always there, for all others are compared with it.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Write every cell of every round to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Use this `plimsoll` executable in place of building one.
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// Leave out the cost of a choice among 1,024 engines.
    #[arg(long)]
    no_choice_cost: bool,
    /// Ask the kernel's autogroup scheduler for this nice value (needs root below 0); on a shared machine with
    /// `sched_autogroup` the nice value of a process means nothing outside its session.
    #[arg(long, allow_hyphen_values = true)]
    autogroup_nice: Option<i8>,
}

/// Everything that was measured.
#[derive(serde::Serialize)]
pub struct Results {
    pub machine: machine::Machine,
    pub quick: bool,
    pub rounds: u32,
    pub contenders: Vec<Contender>,
    /// Contenders that could not be measured, and why.
    pub absent: Vec<(Contender, String)>,
    pub cells: Vec<Cell>,
    pub starts: Vec<Start>,
    pub stalled: Vec<stalled::Stalled>,
    /// What the `choice_cost` example printed, or why there is nothing.
    pub choice_cost: Result<String, String>,
}

/// Measuring stops here, whatever has not been measured yet (building is not counted).
const BUDGET_FULL: Duration = Duration::from_secs(12 * 60);
const BUDGET_QUICK: Duration = Duration::from_secs(4 * 60);

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(nice) = args.autogroup_nice {
        std::fs::write("/proc/self/autogroup", nice.to_string()).context("cannot set the autogroup's nice value")?;
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("bench has no parent folder")?;
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("out");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    if let Some(unknown) = args.only.iter().find(|name| Contender::ALL.iter().all(|c| c.name() != *name)) {
        anyhow::bail!("no contender is called {unknown:?}: use {}", Contender::ALL.map(Contender::name).join(", "));
    }
    let wanted =
        |c: Contender| args.only.is_empty() || c == Contender::Direct || args.only.iter().any(|name| name == c.name());
    let ours_wanted = Contender::ALL.iter().any(|c| c.is_ours() && wanted(*c));
    let programs = product::Programs::find(repository, args.plimsoll.as_deref(), ours_wanted);
    let choice_cost = match args.no_choice_cost {
        true => Err("left out".to_owned()),
        false => product::choice_cost(repository).map_err(|error| format!("{error:#}")),
    };

    let mut results = Results {
        machine: machine::Machine::read(repository),
        quick: args.quick,
        rounds: 0,
        contenders: vec![],
        absent: vec![],
        cells: vec![],
        starts: vec![],
        stalled: vec![],
        choice_cost,
    };
    for contender in Contender::ALL {
        match contender.present(&programs) {
            _ if !wanted(contender) => {}
            Ok(()) => results.contenders.push(contender),
            Err(why) => results.absent.push((contender, why)),
        }
    }
    measure(args, &programs, &logs, &mut results)?;
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&results)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{}", table::render(&results)?);
    Ok(())
}

fn measure(args: &Args, programs: &product::Programs, logs: &Path, results: &mut Results) -> anyhow::Result<()> {
    let begin = Instant::now();
    let budget = if args.quick { BUDGET_QUICK } else { BUDGET_FULL };
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 5 }).max(1);
    let fleet = Fleet::start(logs)?;
    let contenders = results.contenders.clone();
    for round in 0..rounds {
        let round_began = Instant::now();
        for place in 0..contenders.len() {
            // Nobody is always first, or always behind the same neighbour.
            let contender = contenders[(place + round as usize) % contenders.len()];
            progress(&format!("round {} of {rounds}: {}", round + 1, contender.name()), begin);
            match contender.measure(round, args.quick, programs, &fleet, logs) {
                Ok((start, cells)) => {
                    results.starts.extend(start);
                    results.cells.extend(cells);
                }
                Err(error) => {
                    progress(&format!("{}: {error:#}", contender.name()), begin);
                    results.contenders.retain(|c| *c != contender);
                    if !results.absent.iter().any(|(c, _)| *c == contender) {
                        results.absent.push((contender, format!("{error:#}")));
                    }
                }
            }
        }
        results.rounds = round + 1;
        if round + 1 < rounds && begin.elapsed() + round_began.elapsed() > budget {
            progress("no time for another round", begin);
            break;
        }
    }
    for contender in results.contenders.clone() {
        if contender == Contender::Direct || begin.elapsed() > budget {
            continue;
        }
        progress(&format!("stalled readers: {}", contender.name()), begin);
        match stalled::measure(contender, args.quick, programs, &fleet, logs) {
            Ok(found) => results.stalled.push(found),
            Err(error) => progress(&format!("{}: {error:#}", contender.name()), begin),
        }
    }
    Ok(())
}

/// Progress goes to stderr; stdout carries the table alone.
fn progress(what: &str, begin: Instant) {
    eprintln!("[{:>4} s] {what}", begin.elapsed().as_secs());
}
