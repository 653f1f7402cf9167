//! `--probe`: ask every engine what it is, before traffic depends on it.

use crate::{Failure, output, runtime};
use plimsoll_pools::capability::Capability;
use plimsoll_pools::http::{Endpoint, EndpointOptions};
use plimsoll_pools::probe::probe;
use plimsoll_settings::{Engine, Settings};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

/// Longest wait for one engine. Longer than the gateway's own probe: a person waits here, once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Contacts all engines at once and prints what each can do.
pub(super) fn run(settings: &Settings) -> Result<(), Failure> {
    let runtime = runtime::multi_thread()?;
    let asked: Vec<_> = settings.engines.iter().map(|engine| runtime.spawn(ask(engine.clone()))).collect();
    let (mut silent, mut served) = (0, BTreeSet::new());
    for (engine, answer) in settings.engines.iter().zip(asked) {
        let answer = runtime.block_on(answer).map_err(Failure::failed)?;
        let said = answer.map_or_else(
            |why| {
                silent += 1;
                format!("no use: {why}")
            },
            |capability| {
                served.extend(capability.model_names().into_iter().chain(engine.models.iter().cloned()));
                describe(&capability)
            },
        );
        output::data(&format!("probe     {}: {said}\n", engine.url))?;
    }
    for model in settings.models.iter().filter(|model| silent == 0 && !served.contains(&model.name)) {
        let names = served.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        output::data(&format!("models    `{}` is served by no engine (they serve {names})\n", model.name))?;
    }
    match silent {
        0 => Ok(()),
        silent => Err(Failure::failed(format!("{silent} of {} engines cannot be used", settings.engines.len()))
            .hint("start them, or check url and key; the config itself is right")),
    }
}

async fn ask(engine: Engine) -> Result<Capability, String> {
    let options = EndpointOptions {
        connect_timeout: PATIENCE,
        api_key: engine.api_key.map(|key| key.0),
        admin_api_key: engine.admin_api_key.map(|key| key.0),
        ca_file: engine.ca_file,
        ..EndpointOptions::default()
    };
    let endpoint = Endpoint::new(&engine.url, options).map_err(|error| error.to_string())?;
    probe(&endpoint, engine.kind, PATIENCE).await.map_err(|error| error.to_string())
}

/// One line for what it is, one for each thing that it cannot do.
fn describe(capability: &Capability) -> String {
    let version = capability.version.as_deref().unwrap_or("version unknown");
    let mut text = format!("{} {version}, serves {}", capability.kind, capability.model_names().join(", "));
    if let Some(tokens) = capability.kv_capacity_tokens {
        let _ = write!(text, ", {tokens} KV tokens");
    }
    for sentence in &capability.degraded {
        let _ = write!(text, "\n          without: {sentence}");
    }
    text
}
