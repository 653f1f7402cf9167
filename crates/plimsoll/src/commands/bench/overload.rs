//! `plimsoll bench overload`: is the traffic that matters served when there is too much of it?
//!
//! Real processes and sockets: engines in timing mode, a gateway, and a client that sends when its plan says so, whether answers come or
//! not (open loop: a closed one slows down with the fleet and never overloads it). Four scenarios, each in three parts: usual load, too
//! much, usual load again. Four ways to deal with it (`--control`), of which only the gateway's settings or what
//! stands before it differ. What was refused is counted with what was served: a control that refuses everybody has fine
//! latencies.
//!
//! The plan is the simulator's ([`plimsoll_sim::overload`]), and with `--simulated` it plays it: the same decisions on a virtual clock, in seconds.

mod drive;
mod entrance;
mod fleet;
mod report;

use crate::commands::demo::above_zero;
use crate::commands::demo::signals::Signals;
use crate::commands::outputs::{Output, apart};
use crate::{Failure, output, runtime};
use clap::{Args, ValueEnum};
use drive::Drive;
use fleet::Fleet;
use plimsoll_sim::overload::{self, Plan, SCALE, Shape, Simulation};
use report::{Report, Way};
use std::path::PathBuf;
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A flash crowd of cold long requests doubles the load
    #[value(name = "A")]
    A,
    /// The hit rate falls from 90 to 40 % at a constant rate: sessions are replaced by new users
    #[value(name = "B")]
    B,
    /// One of four tenants sends ten times as much
    #[value(name = "C")]
    C,
    /// The usual mix doubles, and whoever is refused repeats three times
    #[value(name = "D")]
    D,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Control {
    /// Traffic scheduling off: everything is placed and waits in the engines
    None,
    /// One token bucket for all in front of the gateway
    Uniform,
    /// Refused while every engine has more than a fixed number of tokens to prefill (Dynamo's busy threshold)
    Static,
    /// Traffic scheduling on
    Plimsoll,
}

#[derive(Clone, Debug, Args)]
pub struct OverloadArgs {
    /// What goes wrong
    #[arg(long, value_enum)]
    pub scenario: Scenario,
    /// What is done about it
    #[arg(long, value_enum, default_value = "plimsoll")]
    pub control: Control,
    /// Write the figures to this file, as JSON; `-` for stdout, in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Length of the scenario: a quarter usual load, a half too much, a quarter usual again
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u64).range(8..=86_400))]
    pub seconds: u64,
    /// Play the scenario this many times as fast: engines, arrivals and promised times alike
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = above_zero)]
    pub time_scale: f64,
    /// Engines to start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub engines: u16,
    /// Request lengths and rhythm: `azure2023_code.csv` of the Azure LLM inference traces [default: a fit of it]
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Rate of `uniform` in tokens per second; give `admitted_tokens_per_s` of a run to compare with [default: what the engines can do]
    #[arg(long, value_name = "N", value_parser = above_zero)]
    pub uniform_tokens_per_s: Option<f64>,
    /// Play it on a virtual clock in place of real processes: the same plan, decisions and figures, in seconds
    #[arg(long, conflicts_with = "time_scale")]
    pub simulated: bool,
    /// Seed of arrivals and lengths
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl From<Scenario> for overload::Scenario {
    fn from(scenario: Scenario) -> Self {
        match scenario {
            Scenario::A => overload::Scenario::A,
            Scenario::B => overload::Scenario::B,
            Scenario::C => overload::Scenario::C,
            Scenario::D => overload::Scenario::D,
        }
    }
}

/// Runs one scenario under one control.
///
/// # Errors
/// A trace that cannot be read, a process that does not start, a file that cannot be written, an interruption.
pub fn run(args: &OverloadArgs) -> Result<(), Failure> {
    let shape = match &args.trace {
        Some(path) => Shape::read(path).map_err(|why| Failure::usage(format!("--trace {why}")))?,
        None => Shape::fitted(),
    };
    apart(args.trace.as_deref().into_iter(), &[args.json.as_ref()])?;
    // A run takes minutes: whether its figures can be kept is found out before it.
    let json = args.json.as_deref().map(Output::open).transpose()?;
    let capacity = overload::capacity_tokens_per_s(args.engines).map_err(Failure::failed)?;
    let plan = Plan::new(args.scenario.into(), &shape, args.engines, capacity, args.seconds, args.seed);
    if args.simulated {
        return tell(args, json, &simulated(args, &plan, &shape)?);
    }
    let runtime = runtime::multi_thread()?;
    let result = runtime.block_on(with_fleet(args, &plan, &shape));
    runtime.shutdown_timeout(Duration::from_secs(1));
    tell(args, json, &result?)
}

fn simulated(args: &OverloadArgs, plan: &Plan, shape: &Shape) -> Result<Report, Failure> {
    let control = match args.control {
        Control::None => overload::Control::None,
        Control::Uniform => {
            let tokens_per_s = args.uniform_tokens_per_s.unwrap_or(plan.capacity_tokens_per_s);
            overload::Control::Uniform { tokens_per_s }
        }
        Control::Static => overload::Control::Static,
        Control::Plimsoll => overload::Control::Plimsoll,
    };
    let done = overload::simulate(&Simulation::new(plan, args.engines, control)).map_err(Failure::failed)?;
    Ok(Report::new(args, plan, shape, &done, Way::Simulated))
}

/// To standard output, and to the file.
fn tell(args: &OverloadArgs, json: Option<Output>, report: &Report) -> Result<(), Failure> {
    if args.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        output::data(&report.table())?;
    }
    json.map_or(Ok(()), |json| json.put(&report.json()))
}

async fn with_fleet(args: &OverloadArgs, plan: &Plan, shape: &Shape) -> Result<Report, Failure> {
    let mut signals = Signals::listen()?;
    let mut fleet = Fleet::new()?;
    let worked = tokio::select! {
        worked = work(args, plan, shape, &mut fleet) => worked,
        () = signals.recv() => Err(Failure::interrupted()),
    };
    fleet.stop(worked.is_err()).await;
    worked
}

async fn work(args: &OverloadArgs, plan: &Plan, shape: &Shape, fleet: &mut Fleet) -> Result<Report, Failure> {
    runtime::raise_open_files();
    output::note(&format!(
        "plimsoll bench: scenario {:?}, control {:?}: {} requests in {:.0} s, capacity {:.0} tokens/s (lengths / {SCALE}), {}",
        args.scenario,
        args.control,
        plan.asks.len(),
        args.seconds as f64 / args.time_scale,
        plan.capacity_tokens_per_s,
        shape.source,
    ));
    fleet.start(args, plan).await?;
    let entrance = entrance::Entrance::new(args, plan, fleet)?;
    let done = Drive::new(args, fleet, entrance)?.run(plan).await;
    let lateness = fleet.lateness().await;
    Ok(Report::new(args, plan, shape, &done, Way::Real(lateness)))
}
