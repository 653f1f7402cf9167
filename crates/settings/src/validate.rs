//! What a config means: values that can be read but cannot work.
//!
//! Run at start, by `plimsoll check` and at every reload, so that a bad reload is refused before anything changes. Every
//! problem is found, not only the first.

mod classes;
mod cluster;
mod engines;
mod number;
mod traffic;
mod web;

use crate::problem::Problem;
use crate::tree::{Auth, Decisions, Gateway, Model, Settings, Telemetry};
use number::Numbers;
use std::collections::BTreeSet;
use std::path::Path;

impl Settings {
    /// Everything that is wrong with the meaning of these settings; empty when they can be used. Looks at the files that
    /// they name, contacts nothing.
    #[must_use]
    pub fn validate(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        gateway(&self.gateway, &mut found);
        listeners(self, &mut found);
        engines::check(&self.engines, &mut found);
        models(&self.models, &mut found);
        numbers(self, &mut found);
        traffic::check(&self.traffic, &mut found);
        cluster::check(&self.cluster, &mut found);
        auth(&self.auth, &mut found);
        decisions(&self.decisions, &mut found);
        telemetry(&self.telemetry, &mut found);
        found
    }
}

fn gateway(gateway: &Gateway, found: &mut Vec<Problem>) {
    let Some(tls) = &gateway.tls else { return };
    file_with("gateway.tls.cert_file", &tls.cert_file, "BEGIN CERTIFICATE", found);
    file_with("gateway.tls.key_file", &tls.key_file, "PRIVATE KEY", found);
}

fn models(models: &[Model], found: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    for (index, model) in models.iter().enumerate() {
        if model.name.trim().is_empty() {
            found.push(Problem::at(format!("models[{index}].name"), "must not be empty"));
        } else if !seen.insert(&model.name) {
            found.push(Problem::at(format!("models[{index}].name"), "is listed already; list a model once"));
        }
        if !model.tokenizer.join("tokenizer.json").is_file() {
            let what = "must be a folder with a tokenizer.json";
            found.push(Problem::at(format!("models[{index}].tokenizer"), what));
        }
    }
}

fn listeners(settings: &Settings, found: &mut Vec<Problem>) {
    let (data, admin) = (settings.gateway.listen, settings.admin.listen);
    if data == admin && data.port() != 0 {
        found.push(Problem::at(
            "admin.listen",
            "is the same address as `gateway.listen`; give one of them another port",
        ));
    }
    if let Some(token) = &settings.admin.token {
        web::bearer("admin.token", &token.0, found);
    }
}

fn numbers(settings: &Settings, found: &mut Vec<Problem>) {
    let mut check = Numbers { found };
    let s = settings;
    check.at_most_ms("gateway.shutdown_grace_ms", s.gateway.shutdown_grace_ms);
    check.above_zero("gateway.max_connections", s.gateway.max_connections as u64);

    check.fraction("policy.tie_fraction", s.policy.tie_fraction);
    check.at_least_zero("policy.others_weight", s.policy.others_weight);
    check.at_least_zero("policy.pressure_weight", s.policy.pressure_weight);
    check.positive("policy.assumed_prefill_tokens_per_s", s.policy.assumed_prefill_tokens_per_s);
    check.positive("policy.assumed_kv_load_tokens_per_s", s.policy.assumed_kv_load_tokens_per_s);
    check.positive("policy.assumed_bytes_per_token", s.policy.assumed_bytes_per_token);
    check.above_zero("policy.assumed_output_tokens", s.policy.assumed_output_tokens);

    classes::check(&s.classes, &mut check);
    check.between("funnel.window_s", s.funnel.window_s, 60, 30 * 86_400);
    check.between("funnel.max_blocks", s.funnel.max_blocks, 1_024, 1 << 30);

    check.above_zero("limits.body_bytes", s.limits.body_bytes as u64);
    if s.limits.total_body_bytes < s.limits.body_bytes {
        check.say("limits.total_body_bytes", "must hold at least one body of `limits.body_bytes`");
    }
    check.head_bytes("limits.header_bytes", s.limits.header_bytes);
    check.between("limits.header_count", s.limits.header_count as u64, 1, 10_000);
    check.wait_ms("limits.header_timeout_ms", s.limits.header_timeout_ms);
    check.wait_ms("limits.body_timeout_ms", s.limits.body_timeout_ms);
    check.wait_ms("limits.request_timeout_ms", s.limits.request_timeout_ms);
    check.above_zero("limits.answer_bytes", s.limits.answer_bytes as u64);

    check.wait_ms("streams.first_token_timeout_ms", s.streams.first_token_timeout_ms);
    check.wait_ms("streams.keep_alive_ms", s.streams.keep_alive_ms);
    check.wait_ms("streams.idle_timeout_ms.high", s.streams.idle_timeout_ms.high);
    check.wait_ms("streams.idle_timeout_ms.medium", s.streams.idle_timeout_ms.medium);
    check.wait_ms("streams.idle_timeout_ms.low", s.streams.idle_timeout_ms.low);
    check.wait_ms("streams.client_stall_timeout_ms", s.streams.client_stall_timeout_ms);
    check.above_zero("streams.event_bytes", s.streams.event_bytes as u64);

    check.wait_ms("upstream.connect_timeout_ms", s.upstream.connect_timeout_ms);
    check.wait_ms("upstream.idle_timeout_ms", s.upstream.idle_timeout_ms);
    check.head_bytes("upstream.header_bytes", s.upstream.header_bytes);

    check.wait_ms("health.probe_interval_ms", s.health.probe_interval_ms);
    check.wait_ms("health.probe_timeout_ms", s.health.probe_timeout_ms);
    check.above_zero("health.probe_failures", s.health.probe_failures.into());
    check.above_zero("health.request_failures", s.health.request_failures.into());
    check.above_zero("health.connect_failures", s.health.connect_failures.into());
    check.above_zero("health.half_open_requests", s.health.half_open_requests.into());
    check.wait_ms("health.report_stale_ms", s.health.report_stale_ms);
    let between_reports_ms = s.health.probe_interval_ms.saturating_add(s.health.probe_timeout_ms);
    if s.health.report_stale_ms < between_reports_ms {
        check.say(
            "health.report_stale_ms",
            "must be at least `health.probe_interval_ms` + `health.probe_timeout_ms`, or an engine that answers in time \
             still counts as silent between two probes",
        );
    }

    check.fraction("retry.budget_fraction", s.retry.budget_fraction);
    check.between("retry.max_attempts", s.retry.max_attempts.into(), 1, 10);
    check.between("retry.retry_after_s", s.retry.retry_after_s, 1, 3_600);
}

fn auth(auth: &Auth, found: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    for (index, key) in auth.keys.iter().enumerate() {
        let path = |field: &str| format!("auth.keys[{index}].{field}");
        if key.sha256.len() != 64 || !key.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            found.push(Problem::at(
                path("sha256"),
                "must be a SHA-256 in 64 hex digits, `plimsoll check --hash-key` prints one",
            ));
        } else if !seen.insert(key.sha256.to_ascii_lowercase()) {
            found.push(Problem::at(path("sha256"), "stands here twice; a key has one tenant"));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/@".contains(&byte);
        if key.tenant.is_empty() || key.tenant.len() > 128 || !key.tenant.bytes().all(plain) {
            found.push(Problem::at(path("tenant"), "must be 1 to 128 letters, digits or any of - _ . : / @"));
        }
    }
}

fn decisions(decisions: &Decisions, found: &mut Vec<Problem>) {
    let mut check = Numbers { found };
    check.between("decisions.ring_records", decisions.ring_records as u64, 1, 10_000_000);
    check.between("decisions.candidates", decisions.candidates as u64, 1, 1_024);
    let Some(file) = &decisions.log_file else { return };
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        check.say("decisions.log_file", "lies in a folder that does not exist");
    } else if file.is_dir() {
        check.say("decisions.log_file", "is a folder; name a file");
    }
}

fn telemetry(telemetry: &Telemetry, found: &mut Vec<Problem>) {
    if telemetry.log.trim().is_empty() {
        found.push(Problem::at("telemetry.log", "must not be empty; `off` silences the log"));
    }
    if let Some(endpoint) = &telemetry.otlp_endpoint {
        web::endpoint("telemetry.otlp_endpoint", endpoint, found);
    }
    Numbers { found }.fraction("telemetry.trace_fraction", telemetry.trace_fraction);
}

/// A readable PEM file that holds `mark`.
fn file_with(path: &str, file: &Path, mark: &str, found: &mut Vec<Problem>) {
    match std::fs::read(file) {
        Err(error) => found.push(Problem::at(path, format!("cannot be read: {}: {error}", file.display()))),
        Ok(bytes) if !String::from_utf8_lossy(&bytes).contains(mark) => {
            found.push(Problem::at(path, format!("is no PEM file with a \"{mark}\" in it: {}", file.display())));
        }
        Ok(_) => {}
    }
}
