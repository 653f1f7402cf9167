//! One cell of the table in one round: one contender under one kind of traffic.

use super::contender::Contender;
use super::fleet::{Counts, Fleet};
use super::process::{self, Process};
use super::scenario::{CONCURRENCY, Scenario};
use crate::load::Report;
use anyhow::{Context, ensure};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

#[derive(Debug, serde::Serialize)]
pub struct Cell {
    pub contender: Contender,
    pub scenario: Scenario,
    pub round: u32,
    pub load: Report,
    /// CPU time of the router over the cell, in seconds; nothing where there is no router.
    pub router_cpu_s: Option<f64>,
    /// CPU time of both engines, in seconds.
    pub engines_cpu_s: f64,
    /// CPU time of everything else on the machine, in seconds: above a few percent the cell is noisy.
    pub others_cpu_s: f64,
    pub wall_s: f64,
    /// Requests that the engines received over the cell, by engine.
    pub received: Vec<Counts>,
}

/// Time that the load runs before it is measured: connections are opened, caches filled.
const WARM_MS: u64 = 250;

pub fn measure(
    contender: Contender,
    scenario: Scenario,
    round: u32,
    quick: bool,
    to: &[SocketAddr],
    router: Option<&Process>,
    fleet: &Fleet,
) -> anyhow::Result<Cell> {
    fleet.set(scenario.knobs())?;
    load(scenario, WARM_MS, to).context("warming up")?;
    let counted = fleet.counts()?;
    let router_before = router.map(Process::cpu_s).transpose()?;
    let engines_before = fleet.cpu_s()?;
    let (busy_before, begin) = (process::machine_busy_s()?, Instant::now());

    let report = load(scenario, scenario.for_ms(quick), to)?;

    let (busy, wall_s) = (process::machine_busy_s()? - busy_before, begin.elapsed().as_secs_f64());
    let engines_cpu_s = fleet.cpu_s()? - engines_before;
    let router_after = router.map(Process::cpu_s).transpose()?;
    let router_cpu_s = router_after.zip(router_before).map(|(after, before)| after - before);
    let ours = report.cpu_s + engines_cpu_s + router_cpu_s.unwrap_or(0.0);
    let received = fleet.counts()?.into_iter().zip(&counted).map(|(after, before)| Counts {
        inference: after.inference - before.inference,
        other: after.other - before.other,
    });
    ensure!(report.requests > 0, "no request was answered: {:?}", report.first_error);
    Ok(Cell {
        contender,
        scenario,
        round,
        router_cpu_s,
        engines_cpu_s,
        others_cpu_s: (busy - ours).max(0.0),
        wall_s,
        received: received.collect(),
        load: report,
    })
}

/// Runs the load client in a process of its own.
fn load(scenario: Scenario, for_ms: u64, to: &[SocketAddr]) -> anyhow::Result<Report> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("load")
        .args(to.iter().flat_map(|address| ["--to".to_owned(), address.to_string()]))
        .args(["--concurrency", &CONCURRENCY.to_string()])
        .args(["--for-ms", &for_ms.to_string()])
        .args(["--body-bytes", &scenario.body_bytes().to_string()])
        .args(["--tokens", &scenario.knobs().tokens.to_string()])
        .args(["--spread-ms", &scenario.spread_ms().to_string()]);
    if scenario.knobs().stream {
        command.arg("--stream");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "load client ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("load client printed no report")
}
