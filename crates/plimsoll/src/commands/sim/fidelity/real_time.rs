//! Engines without timing mode: their steps take what this machine takes, measured first and put into a profile.
//!
//! A model of random weights that is large enough for a step to be much longer than the HTTP of its requests, on one thread. A
//! grid of requests shows what its steps take ([`calibrate`]), the profile that is fitted to them is what the simulator
//! gets, and the trace is replayed at the rate that keeps the simulated engines as busy as was asked.
//!
//! The profile is of the step thread's processor time. What others take of the machine stretches the engines' steps and not the
//! simulated ones; by how much is measured in the run itself and said, beside a simulation that is stretched as well.

use super::calibrate::{Calibrated, calibrate};
use super::fleet::EngineTime;
use super::steps::{LOG_LAG, Logs, Pace, name};
use super::verdict::{AtPace, Machine, Real};
use super::{PAGE_TOKENS, Simulated, Verdict, Workload, fleet, policy, with_children};
use crate::commands::demo::children::Children;
use crate::commands::outputs::Output;
use crate::commands::sim::{FidelityArgs, run as one};
use crate::{Failure, output};
use plimsoll_core::Nanos;
use plimsoll_engine::model::ModelConfig;
use plimsoll_sim::{Nobody, Question, Report};
use plimsoll_timing::curve::Curve;
use plimsoll_timing::fit::{Quality, judge};
use plimsoll_timing::profile::{Decode, Founded, Kernel, Machine as Gpu, ModelShape, Prefill, Profile, Serving, Step};
use serde::Serialize;
use std::time::Duration;

/// Sizes of the engines. A step of so many tokens is some ten milliseconds of a core.
const TOKEN_BUDGET: u64 = 64;
const MAX_RUNNING: u64 = 32;
const KV_TOKENS: u64 = 32_768;
const CONTEXT_TOKENS: u64 = 16_384;

/// Rates are looked for between these, by halves.
const RATES: (f64, f64) = (1e-4, 1e4);
const LOOKS: usize = 20;
/// Near enough to the share that was asked for.
const NEAR: f64 = 0.005;

/// What a run without timing mode adds to the verdict.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RealTime {
    /// Layers and width.
    model: String,
    weight_mib: f64,
    /// Share of the time in which the simulated engines compute: asked for, and at this rate.
    load: f64,
    busy_share: f64,
    calibration: Calibration,
    /// Steps of the replay, and how far the profile is from them.
    pub(super) run: Pace,
    run_fit: Quality,
}

#[derive(Clone, Debug, Serialize)]
struct Calibration {
    seconds: f64,
    steps: Pace,
    fit: Quality,
    /// The constants that were found.
    profile: Profile,
}

pub(super) fn verdict(args: &FidelityArgs, profile_out: Option<Output>) -> Result<Verdict, Failure> {
    let done = with_children(async |children| measure(args, children).await)?;
    if let Some(file) = profile_out {
        let text = toml::to_string(&done.about.calibration.profile).map_err(Failure::failed)?;
        file.put(&format!(
            "# Written by `plimsoll sim fidelity --real-time`, measured on the machine that it ran on.\n{text}"
        ))?;
    }
    let Done { real, about, question, workload, rate } = done;
    let (simulated, report) = simulate(&question, &workload)?;
    let stretched = Question { speedup: 1.0 / about.run.wall_over_cpu.max(1.0), ..question };
    let at_pace = simulate(&stretched, &workload)?;
    let name = about.calibration.profile.name.clone();
    let mut verdict = Verdict::new(args, &name, rate, real, (&simulated.0, &report));
    let at_pace = AtPace::new(&verdict, &at_pace.0.0, &at_pace.1);
    verdict.real_time = Some((about, at_pace));
    Ok(verdict)
}

/// What came of the processes.
struct Done {
    real: Real,
    about: RealTime,
    question: Question,
    workload: Workload,
    rate: f64,
}

async fn measure(args: &FidelityArgs, children: &mut Children) -> Result<Done, Failure> {
    let base = base(&args.model);
    let log = children.folder.join(name("{n}")).display().to_string();
    let time = EngineTime::Own { model: name_of(&args.model), log };
    children.start_engines(args.instances, &fleet::engine_args(&time, &base)).await?;
    let mut logs = Logs::new(&children.folder, args.instances);
    let time = Duration::from_secs_f64(args.calibrate_s);
    let calibrated = calibrate(&children.engine_urls(), &mut logs, &base, time).await?;
    let Calibrated { profile, quality, steps, took } = calibrated;
    let question = Question {
        given: Some(Box::new(profile.clone())),
        seed: args.seed,
        longest_pause: args.longest_pause_s.map(Nanos::from_secs_f64),
        ..Question::new(&args.trace, &profile.name, args.instances, policy(args)?)
    };
    let (rate, workload, expected) = at_load(args, &question)?;
    output::note(&format!(
        "plimsoll sim fidelity: {} calls, lengths / {}, {} engines of {}, at rate {rate:.3}, busy for {:.0} % of about {:.0} s",
        workload.calls(),
        args.scale,
        args.instances,
        profile.name,
        expected.busy_share * 100.0,
        expected.duration_s,
    ));
    let gateway = children.start_gateway(&fleet::settings(args, question.poll, &children.engine_urls())).await?;
    let drive = super::drive::Drive::new(&gateway, question.longest_pause)?;
    // What engines did until the gateway knew them is none of the replay's.
    logs.read()?;
    let (requests, failed, sent_late) = drive.run(&workload.sessions).await;
    tokio::time::sleep(LOG_LAG).await;
    let run = logs.read()?;
    let about = RealTime {
        model: name_of(&args.model),
        weight_mib: weights(&args.model) as f64 * 4.0 / f64::from(1 << 20),
        load: args.load,
        busy_share: expected.busy_share,
        calibration: Calibration { seconds: took.as_secs_f64(), steps: steps.pace(), fit: quality, profile },
        run: run.pace(),
        run_fit: judge(&question.profile().map_err(one::failure)?, &run.samples),
    };
    let machine = Machine::Steps(about.run);
    Ok(Done { real: Real { requests, failed, sent_late, machine }, about, question, workload, rate })
}

fn simulate(question: &Question, workload: &Workload) -> Result<(Simulated, Report), Failure> {
    let mut simulated = Simulated(Vec::new());
    let report = question
        .answer_sessions(workload.sessions.clone(), workload.block_tokens, &mut simulated)
        .map_err(one::failure)?;
    Ok((simulated, report))
}

/// The rate at which simulated engines are as busy as was asked, as near as the trace allows.
fn at_load(args: &FidelityArgs, question: &Question) -> Result<(f64, Workload, Report), Failure> {
    let at = |rate: f64| {
        let workload = Workload::read(args, rate)?;
        let sessions = workload.sessions.clone();
        let report = question.answer_sessions(sessions, workload.block_tokens, &mut Nobody).map_err(one::failure)?;
        Ok::<_, Failure>((rate, workload, report))
    };
    let (mut low, mut high) = RATES;
    let mut found = at(1.0)?;
    for _ in 0..LOOKS {
        let (rate, _, report) = &found;
        if (report.busy_share - args.load).abs() <= NEAR {
            break;
        }
        if report.busy_share < args.load {
            low = *rate;
        } else {
            high = *rate;
        }
        found = at((low * high).sqrt())?;
    }
    Ok(found)
}

/// The model's shape and the engines' sizes, with no times yet.
fn base(model: &ModelConfig) -> Profile {
    let token_layer = 2 * model.kv_width() * size_of::<f32>();
    let flat = || Curve { at: vec![1.0], us: vec![0.0] };
    Profile {
        name: format!("this-machine-{}", name_of(model)),
        summary: "a model of random weights, f32, on one thread".to_owned(),
        founded: Founded::Measured,
        machine: Gpu { gpu: "none".to_owned(), sms: 1, bandwidth_gb_s: 1.0, tensor_parallel: 1, data_parallel: 1 },
        model: ModelShape {
            layers: model.layers as u32,
            heads: model.heads as f64,
            kv_heads: model.kv_heads as f64,
            head_dim: model.head_dim as f64,
            kv_bytes_token_layer: token_layer as f64,
        },
        serving: Serving {
            kv_bytes_token: (token_layer * model.layers) as u64,
            kv_tokens: KV_TOKENS,
            context_tokens: CONTEXT_TOKENS,
            page_tokens: PAGE_TOKENS,
            token_budget: TOKEN_BUDGET,
            max_running: MAX_RUNNING,
        },
        step: Step { host_us: 0.0, layer_us: 0.0 },
        dense: flat(),
        head: flat(),
        decode: Decode { c0_us: 0.0, c1_us: 0.0, efficiency: 1.0 },
        prefill: Prefill { c0_us: 0.0, tflops: 1.0, diagonal_tokens: 0.0, tile_rows: 0.0 },
        kernel: Kernel::K0 { skew: 0.0 },
    }
}

fn name_of(model: &ModelConfig) -> String {
    format!("{}x{}", model.layers, model.hidden)
}

/// Numbers in the layers.
fn weights(model: &ModelConfig) -> usize {
    let attention = model.hidden * (2 * model.query_width() + 2 * model.kv_width());
    model.layers * (attention + 3 * model.hidden * model.ffn)
}

impl RealTime {
    /// For people, below the table.
    pub(super) fn text(&self) -> String {
        let Calibration { seconds, steps, fit, .. } = &self.calibration;
        let percent = |share: f64| share * 100.0;
        format!(
            "{} ({:.0} MiB): {} steps of {:.1} ms in {seconds:.0} s of calibration, fitted within {:.1} % in the median and {:.1} % \
             at p90\nreplay: {} steps of {:.1} ms; by the profile they take {:.3} of their processor time; by the clock {:.3} of it\n",
            self.model,
            self.weight_mib,
            steps.steps,
            steps.step_ms,
            percent(fit.median_error),
            percent(fit.p90_error),
            self.run.steps,
            self.run.step_ms,
            self.run_fit.total_ratio,
            self.run.wall_over_cpu,
        )
    }
}
