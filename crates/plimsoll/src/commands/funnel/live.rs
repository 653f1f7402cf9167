//! The funnel of a running gateway, renewed until somebody has seen enough.

mod table;

use super::FunnelArgs;
use crate::{Failure, output, runtime};
use plimsoll_pools::http::{Endpoint, EndpointOptions, Key};
use serde_json::Value;
use std::io::IsTerminal as _;
use std::time::Duration;

/// Longest wait for one answer, and its largest size: classes times tenants times models, in words.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_BYTES: usize = 64 << 20;

pub(super) fn run(args: &FunnelArgs) -> Result<(), Failure> {
    let options =
        EndpointOptions { connect_timeout: PATIENCE, api_key: args.admin_token.clone(), ..EndpointOptions::default() };
    let endpoint = Endpoint::new(&args.admin, options)
        .map_err(|error| Failure::usage(error).hint("`--admin` is a URL such as http://127.0.0.1:9090"))?;
    runtime::multi_thread()?.block_on(async {
        tokio::select! {
            shown = show(args, &endpoint) => shown,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    })
}

async fn show(args: &FunnelArgs, endpoint: &Endpoint) -> Result<(), Failure> {
    let renew = std::io::stdout().is_terminal() && !args.json && !args.once;
    loop {
        let report = ask(endpoint).await?;
        let text = if args.json { format!("{report}\n") } else { table::text(&report) };
        let text = output::tame(&text);
        output::data(&if renew { format!("\x1b[H\x1b[2J{text}") } else { text })?;
        if args.once {
            return Ok(());
        }
        if !args.json && !renew {
            output::data("\n")?;
        }
        tokio::time::sleep(Duration::from_secs(args.interval_s)).await;
    }
}

async fn ask(endpoint: &Endpoint) -> Result<Value, Failure> {
    let (get, key) = (http::Method::GET, Key::Inference);
    let answer = endpoint.call(get, "/admin/funnel", None, key, PATIENCE, MOST_BYTES).await.map_err(|error| {
        Failure::failed(format!("no funnel from {}: {error}", endpoint.url()))
            .hint("is the gateway running? `--admin` names its operators' address; `--trace` needs no gateway")
    })?;
    if !answer.status.is_success() {
        let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let message = said["error"]["message"].as_str().unwrap_or("no reason given");
        let failure = Failure::failed(format!("{} answered {}: {message}", endpoint.url(), answer.status.as_u16()));
        return Err(match answer.status.as_u16() {
            401 => failure.hint("give `--admin-token`, or set PLIMSOLL_ADMIN__TOKEN"),
            404 => failure.hint("`--admin` must be the operators' address, not the clients'"),
            _ => failure,
        });
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| Failure::failed(format!("{} answered something that is no JSON: {error}", endpoint.url())))
}
