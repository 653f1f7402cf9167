//! `plimsoll engine`: one built-in engine in this process, until SIGTERM or Ctrl-C.

use crate::cli::EngineArgs;
use crate::cli::schedule::ScheduleArgs;
use crate::commands::demo::stdin_guard;
use crate::{Failure, output, runtime, telemetry};
use plimsoll_engine::migration::MigrationConfig;
use plimsoll_engine::model::folder::{self, Folder};
use plimsoll_engine::model::seeded;
use plimsoll_engine::text::Text;
use plimsoll_engine::{EngineConfig, EngineError, Order, SchedulePolicy};
use plimsoll_settings::Telemetry;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

mod timing;

/// Runs the engine.
///
/// # Errors
/// A setting or a model folder that cannot work (2), a port that is taken (1).
pub fn run(args: EngineArgs) -> Result<(), Failure> {
    // The filter cannot be changed at run time here, so the handle is let go.
    drop(telemetry::start(&Telemetry { log: args.log.clone(), ..Telemetry::default() })?);
    let _ = runtime::raise_open_files();
    let guarded = args.exit_with_stdin;
    let listen = args.listen;
    if args.timing.as_deref() == Some("help") {
        return timing::list();
    }
    let export = args.export_model.clone();
    let mut config = config(args)?;
    if let Some(folder) = export {
        return export_model(&config, &folder);
    }
    config.validate().map_err(|error| refuse(&error))?;
    runtime::multi_thread()?.block_on(async {
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            Failure::failed(format!("cannot listen on {listen}: {error}"))
                .hint("give `--listen` another address, port 0 takes a free one")
        })?;
        let port = config.disagg.bootstrap_port;
        config.disagg.listen().map_err(|error| {
            Failure::failed(format!("cannot listen on bootstrap port {port}: {error}"))
                .hint("give `--disaggregation-bootstrap-port` another port, 0 takes a free one")
        })?;
        let address = listener.local_addr().map_err(Failure::failed)?;
        let (mut term, mut int) = (watch(SignalKind::terminate())?, watch(SignalKind::interrupt())?);
        let stop = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        let timing = timing::note(&config);
        let ready = || {
            output::note(&format!("plimsoll engine: listening on http://{address}"));
            if let Some(note) = timing {
                output::note(&note);
            }
        };
        tokio::select! {
            ended = plimsoll_engine::serve_and_tell(config, listener, ready, stop) => {
                ended.map_err(|error| refuse(&error))
            }
            () = stdin_guard::closed(), if guarded => Ok(()),
        }
    })
}

fn config(args: EngineArgs) -> Result<EngineConfig, Failure> {
    let base = match &args.timing {
        Some(name) => EngineConfig::timed(timing::of(name, args.timing_speedup)?),
        None => EngineConfig::default(),
    };
    let kv_events = args.kv_events.config().map_err(Failure::usage)?;
    let disagg = args.disagg.config(args.listen);
    // One secret and one patience for whatever moves KV between engines.
    let migration = MigrationConfig {
        listen: args.migration_listen,
        secret: disagg.secret.clone(),
        deadline: disagg.deadline,
        ..MigrationConfig::default()
    };
    let mut config = EngineConfig {
        model: args.random_model.unwrap_or_else(|| base.model.clone()),
        step_log: args.step_log,
        kv_events,
        disagg,
        threads: args.threads,
        api_key: args.api_key,
        page_tokens: args.page_tokens.unwrap_or(base.page_tokens),
        kv_tokens: args.kv_tokens.unwrap_or(base.kv_tokens),
        dp_size: args.dp_size.unwrap_or(base.dp_size),
        max_running: args.max_running.unwrap_or(base.max_running),
        max_waiting: args.max_waiting,
        order: order(&args.schedule),
        token_budget: args.token_budget.unwrap_or(base.token_budget),
        context_tokens: args.context_tokens.unwrap_or(base.context_tokens),
        default_max_tokens: args.default_max_tokens,
        incremental_streaming: args.incremental_streaming,
        step_delay: Duration::from_millis(args.step_delay_ms),
        offload: args.offload.config(),
        migration,
        faults: args.faults,
        drain: Duration::from_millis(args.drain_ms),
        ..base
    };
    if let Some(path) = &args.model {
        let started = Instant::now();
        let folder = Folder::open(path).map_err(Failure::usage)?;
        output::note(&format!(
            "plimsoll engine: {} of {} MiB read in {:.1} s",
            folder.config.family.architecture(),
            folder.weights.len_bytes() >> 20,
            started.elapsed().as_secs_f64()
        ));
        let text = Text::open(path, &folder.config).map_err(Failure::usage)?;
        config.use_folder(folder);
        config.use_text(text);
    }
    if let Some(name) = args.model_name {
        config.model_name = name;
    }
    Ok(config)
}

fn export_model(config: &EngineConfig, path: &Path) -> Result<(), Failure> {
    // What lies there may be a model that cannot be made again.
    if std::fs::read_dir(path).is_ok_and(|mut files| files.next().is_some()) {
        return Err(Failure::usage(format!("{} is not empty: name a new folder", path.display())));
    }
    let weights = match &config.folder {
        Some(folder) => Arc::clone(&folder.weights),
        None => Arc::new(seeded::generate(&config.model)),
    };
    folder::export(&config.model, &weights, path).map_err(Failure::failed)?;
    let source = config.folder.as_ref().map(|folder| folder.path.as_path());
    config.text.export(source, path).map_err(Failure::failed)?;
    output::note(&format!("plimsoll engine: model written to {}", path.display()));
    Ok(())
}

fn order(args: &ScheduleArgs) -> Order {
    Order {
        // The parser lets through no other name.
        policy: SchedulePolicy::named(&args.schedule_policy).unwrap_or_default(),
        patience: Duration::from_millis(args.slo_patience_ms),
        low_priority_first: args.schedule_low_priority_values_first,
        preemption_threshold: args.priority_scheduling_preemption_threshold,
    }
}

fn watch(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::failed(format!("cannot watch signals: {error}")))
}

fn refuse(error: &EngineError) -> Failure {
    match error {
        EngineError::Setting { .. } | EngineError::Speedup(_) => Failure::usage(error),
        _ => Failure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn secret_and_time_out_are_those_of_everything_that_moves_kv() {
        let flags = ["--migration-listen", "127.0.0.1:0", "--transfer-secret", "s", "--transfer-timeout-ms", "1234"];
        let cli = Cli::try_parse_from(["plimsoll", "engine"].iter().chain(&flags)).unwrap();
        let Command::Engine(args) = cli.command else { panic!("not an engine") };
        let config = config(*args).map_err(|_| ()).unwrap();
        assert!(config.migration.secret.is_some() && config.disagg.secret.is_some());
        let deadline = Duration::from_millis(1234);
        assert_eq!((config.migration.deadline, config.disagg.deadline), (deadline, deadline));
    }
}
