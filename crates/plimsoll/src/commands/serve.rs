//! `plimsoll serve`: the gateway, until SIGTERM or Ctrl-C.
//!
//! SIGHUP reads file, environment and flags again through the same call that read them at the start; the gateway decides
//! what of it can change while running and says what cannot.

use crate::cli::ServeArgs;
use crate::commands::demo::stdin_guard;
use crate::{Failure, otlp, output, runtime, telemetry};
use plimsoll_gateway::{GatewayError, Start};
use std::net::SocketAddr;

/// Runs the gateway.
///
/// # Errors
/// A wrong config (2), a port that is taken or files that cannot be written (1).
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    runtime::refuse_huge_pages();
    let mut settings = args.settings.load()?;
    let log_filter = telemetry::start(&settings.telemetry)?;
    let fitting = runtime::raise_open_files();
    if settings.gateway.max_connections > fitting {
        tracing::warn!(
            max_connections = settings.gateway.max_connections,
            fitting,
            "the open-file limit allows fewer client connections than `gateway.max_connections`; raise it (ulimit -n)"
        );
        settings.gateway.max_connections = fitting;
    }
    let guarded = args.exit_with_stdin;
    let scheme = if settings.gateway.tls.is_some() { "https" } else { "http" };
    let collector = settings.telemetry.otlp_endpoint.clone();
    let mut start = Start {
        settings,
        reload: Some(Box::new(move || args.settings.load().map_err(|failure| failure.message))),
        log_filter: Some(log_filter),
        spans: None,
        ready: Some(Box::new(move |clients: SocketAddr, operators: SocketAddr| {
            output::note(&format!("plimsoll serve: listening on {scheme}://{clients} (admin http://{operators})"));
        })),
    };
    runtime::multi_thread()?.block_on(async {
        let mut exporter = None;
        if let Some(endpoint) = collector {
            let (sink, task) = otlp::start(&endpoint)?;
            start.spans = Some(sink);
            exporter = Some(task);
        }
        let ended = tokio::select! {
            ended = plimsoll_gateway::run(start) => ended.map_err(|error| refuse(&error)),
            () = stdin_guard::closed(), if guarded => Ok(()),
        };
        if let Some(exporter) = exporter {
            exporter.flush().await;
        }
        ended
    })
}

fn refuse(error: &GatewayError) -> Failure {
    let failure = Failure::failed(error);
    match error {
        GatewayError::Listen(address, _) if address.port() != 0 => failure
            .hint("another program may hold that port; give `--listen` or `--admin` another one, 0 takes a free one"),
        _ => failure,
    }
}
