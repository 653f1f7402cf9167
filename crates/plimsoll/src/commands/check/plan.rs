//! What `serve` would do, in words.

use plimsoll_gateway::model_text::ModelTexts;
use plimsoll_settings::{Engine, Settings};
use std::fmt::Write as _;

/// One line per thing that would happen, for people.
pub(super) fn describe(settings: &Settings, texts: &ModelTexts) -> String {
    let mut text = String::from("config    ok\n");
    let mut line = |name: &str, what: &str| {
        let _ = writeln!(text, "{name:<9} {what}");
    };
    line("clients", &clients(settings));
    line("admin", &admin(settings));
    line("auth", &auth(settings));
    line("policy", &format!("{}, seed {}", settings.policy.name, settings.policy.seed));
    line("engines", &engines(&settings.engines));
    for engine in &settings.engines {
        line("", &describe_engine(engine));
    }
    line("models", if texts.is_empty() { "no tokenizer named: prompts are compared by their text" } else { "" });
    for (model, has_template, mode) in texts.described() {
        let chats = if has_template { "" } else { "; no chat template: chats are compared by their text" };
        line("", &format!("{model}: tokenizer read, token_mode {}{chats}", mode.as_str()));
    }
    line("traffic", if settings.traffic.enabled { "classes, quotas and deadlines as in [traffic]" } else { "off" });
    for tenant in &settings.traffic.tenants {
        line("", &format!("tenant {} has rules of its own{}", tenant.name, nobody_is(settings, &tenant.name)));
    }
    line("cluster", &cluster(settings));
    line("decisions", &decisions(settings));
    line("traces", &traces(settings));
    line("log", &format!("{}, as {} on stderr", settings.telemetry.log, settings.telemetry.log_format.as_str()));
    text
}

fn clients(settings: &Settings) -> String {
    let listen = settings.gateway.listen;
    match &settings.gateway.tls {
        Some(tls) => format!("https://{listen} with the certificate in {}", tls.cert_file.display()),
        None => format!("http://{listen} (HTTP/1.1 and h2c, no TLS)"),
    }
}

fn admin(settings: &Settings) -> String {
    let listen = settings.admin.listen;
    let access = match (&settings.admin.token, listen.ip().is_loopback()) {
        (Some(_), _) => "with a token",
        (None, true) => "no token, open to this machine",
        (None, false) => "no token: /admin and /debug answer 401 here, set admin.token",
    };
    format!("http://{listen} ({access})")
}

fn auth(settings: &Settings) -> String {
    let keys = &settings.auth.keys;
    if keys.is_empty() {
        return "off: everybody may send, as tenant `default`".into();
    }
    let mut tenants: Vec<_> = keys.iter().map(|key| key.tenant.as_str()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    format!("on: {} keys of {} tenants", keys.len(), tenants.len())
}

/// A mistyped name would otherwise only show by its rules not holding.
fn nobody_is(settings: &Settings, tenant: &str) -> &'static str {
    let keys = &settings.auth.keys;
    let known = if keys.is_empty() { tenant == "default" } else { keys.iter().any(|key| key.tenant == tenant) };
    if known { "" } else { ", but no key has this tenant: they hold for nobody" }
}

fn engines(engines: &[Engine]) -> String {
    match engines.len() {
        0 => "none: nothing is ready until one is added with --engine, in the config, or by POST /admin/engines".into(),
        count => count.to_string(),
    }
}

fn describe_engine(engine: &Engine) -> String {
    let kind = engine.kind.map_or("family found by probing", |kind| kind.as_str());
    let models = match engine.models.as_slice() {
        [] => "models asked from it".to_owned(),
        models => format!("models {}", models.join(", ")),
    };
    let key = if engine.api_key.is_some() { ", with a key" } else { "" };
    format!("{} ({kind}, {models}{key})", engine.url)
}

fn cluster(settings: &Settings) -> String {
    let cluster = &settings.cluster;
    if cluster.nats.is_empty() {
        return "off: this gateway takes the quotas of all engines for its own".into();
    }
    let login = match (&cluster.token, &cluster.user) {
        (Some(_), _) => " with a token",
        (None, Some(_)) => " with a password",
        (None, None) => "",
    };
    let (fleet, servers, lease_ms) = (&cluster.fleet, cluster.nats.join(", "), cluster.lease_ms);
    format!("fleet {fleet} shares quotas through {servers}{login}; who is silent for {lease_ms} ms is given up")
}

fn decisions(settings: &Settings) -> String {
    let kept = settings.decisions.ring_records;
    match &settings.decisions.log_file {
        Some(file) => format!("the last {kept} in memory, all of them in {}", file.display()),
        None => format!("the last {kept} in memory"),
    }
}

fn traces(settings: &Settings) -> String {
    let fraction = settings.telemetry.trace_fraction;
    match &settings.telemetry.otlp_endpoint {
        Some(endpoint) => format!("to {endpoint}, {fraction} of requests unless the client decides"),
        None => "off".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::nobody_is;
    use plimsoll_settings::{ApiKey, Settings};

    #[test]
    fn rules_of_a_tenant_that_nobody_is_are_said_to_hold_for_nobody() {
        let mut settings = Settings::default();
        assert_eq!(nobody_is(&settings, "default"), "");
        assert!(nobody_is(&settings, "batch").contains("nobody"));
        settings.auth.keys.push(ApiKey { sha256: "0".repeat(64), tenant: "batch".into() });
        assert_eq!(nobody_is(&settings, "batch"), "");
        assert!(nobody_is(&settings, "bach").contains("nobody"));
    }
}
