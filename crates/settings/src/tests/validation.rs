//! Values that can be read and cannot work.

use super::complaints;
use crate::Settings;

#[test]
fn the_defaults_are_valid() {
    assert_eq!(Settings::default().validate(), []);
}

/// One config per rule, with the start of the sentence that must come out, and nothing else.
#[test]
fn each_rule_refuses_what_breaks_it() {
    let cases = [
        ("admin.listen = \"127.0.0.1:8080\"", "`admin.listen` is the same address"),
        ("admin.token = \"a b\"", "`admin.token` must be visible ASCII"),
        ("gateway.max_connections = 0", "`gateway.max_connections` must be above zero"),
        ("limits.header_timeout_ms = 0", "`limits.header_timeout_ms` must be above zero"),
        ("limits.request_timeout_ms = 700000000", "`limits.request_timeout_ms` must be at most"),
        ("limits.header_bytes = 100", "`limits.header_bytes` must be from 8192"),
        ("limits.total_body_bytes = 5", "`limits.total_body_bytes` must hold"),
        ("streams.idle_timeout_ms.medium = 0", "`streams.idle_timeout_ms.medium` must be above zero"),
        ("streams.keep_alive_ms = 0", "`streams.keep_alive_ms` must be above zero"),
        ("upstream.connect_timeout_ms = 0", "`upstream.connect_timeout_ms` must be above zero"),
        ("policy.tie_fraction = 1.5", "`policy.tie_fraction` must be a fraction"),
        ("policy.tie_fraction = nan", "`policy.tie_fraction` must be a fraction"),
        ("policy.others_weight = -0.1", "`policy.others_weight` must be a number of at least zero"),
        ("policy.others_weight = inf", "`policy.others_weight` must be a number of at least zero"),
        ("policy.pressure_weight = -1", "`policy.pressure_weight` must be a number of at least zero"),
        (
            "policy.assumed_kv_load_tokens_per_s = 0",
            "`policy.assumed_kv_load_tokens_per_s` must be a number above zero",
        ),
        ("policy.assumed_bytes_per_token = inf", "`policy.assumed_bytes_per_token` must be a number above zero"),
        ("classes.low_uncached_tokens = 1", "`classes.low_uncached_tokens` must not be below"),
        ("classes.low_hit_fraction = 0.9", "`classes.low_hit_fraction` must not be above"),
        (
            "classes.models = [{name = \"m\", low_uncached_tokens = 1}]",
            "`classes.models[0].low_uncached_tokens` must not be below",
        ),
        ("classes.models = [{name = \"m\", high_hit_fraction = 2.0}]", "`classes.models[0].high_hit_fraction` must be"),
        ("classes.models = [{name = \"m\"}, {name = \"m\"}]", "`classes.models[1].name` is listed already"),
        ("traffic.target_wait_ms = 0", "`traffic.target_wait_ms` must be above zero"),
        ("traffic.hysteresis = 2", "`traffic.hysteresis` must be a fraction"),
        ("traffic.weights.low = 0", "`traffic.weights.low` must be from 1"),
        ("traffic.queue.requests = 0", "`traffic.queue.requests` must be above zero"),
        ("traffic.quota.low = []", "`traffic.quota.low` must have 1 to"),
        ("traffic.quota.low = [{level = 0.5, share = 1.1}]", "`traffic.quota.low[0].share` must be a fraction"),
        (
            "traffic.quota.low = [{level = 0.5, share = 0.1}, {level = 0.6, share = 0.2}]",
            "`traffic.quota.low` must not rise in `share`",
        ),
        (
            "traffic.quota.low = [{level = 0.5, share = 0.2}, {level = 0.5, share = 0.1}]",
            "`traffic.quota.low` must rise in `level`",
        ),
        ("traffic.quota.medium = [{level = 1.0, share = 1.0}]", "`traffic.quota.medium` must not be above"),
        ("traffic.slo.base = []", "`traffic.slo.base` must have 1 to"),
        ("traffic.slo.low = 0.0", "`traffic.slo.low` must be a number above zero"),
        ("traffic.tenants = [{name = \"\"}]", "`traffic.tenants[0].name` must not be empty"),
        ("traffic.tenants = [{name = \"a\"}, {name = \"a\"}]", "`traffic.tenants[1].name` is listed already"),
        ("traffic.tenants = [{name = \"a\", weight = 0}]", "`traffic.tenants[0].weight` must be from 1"),
        (
            "traffic.tenants = [{name = \"a\", highest_class = \"low\", lowest_class = \"high\"}]",
            "`traffic.tenants[0].lowest_class` must not be above",
        ),
        ("cluster.nats = [\"http://h:4222\"]", "`cluster.nats[0]` must be a url such as nats://"),
        ("cluster.nats = [\"nats://u:p@h\"]", "`cluster.nats[0]` must not hold a user or password"),
        ("cluster.nats = [\"nats://h/x\"]", "`cluster.nats[0]` must have no path"),
        ("cluster.fleet = \"a.b\"", "`cluster.fleet` must be 1 to 64 letters"),
        ("cluster.user = \"u\"", "`cluster.password` and `cluster.user` go together"),
        ("cluster = {token = \"t\", user = \"u\", password = \"p\"}", "`cluster.token` is one way"),
        ("cluster.lease_ms = 2000", "`cluster.lease_ms` must be from 4000"),
        ("cluster.assumed_gateways = 0", "`cluster.assumed_gateways` must be from 1"),
        ("health.probe_failures = 0", "`health.probe_failures` must be above zero"),
        ("health.probe_timeout_ms = 2900", "`health.report_stale_ms` must be at least"),
        ("retry.budget_fraction = -0.1", "`retry.budget_fraction` must be a fraction"),
        ("retry.max_attempts = 0", "`retry.max_attempts` must be from 1 to 10"),
        ("decisions.ring_records = 0", "`decisions.ring_records` must be from 1"),
        ("decisions.log_file = \"/no/such/folder/d.jsonl\"", "`decisions.log_file` lies in a folder"),
        ("decisions.log_file = \"/\"", "`decisions.log_file` is a folder"),
        ("telemetry.log = \" \"", "`telemetry.log` must not be empty"),
        ("telemetry.otlp_endpoint = \"127.0.0.1:4318\"", "`telemetry.otlp_endpoint` "),
        ("engines = [{url = \"localhost\"}]", "`engines[0].url` must be a url"),
        ("engines = [{url = \"ftp://a:1\"}]", "`engines[0].url` must be a url"),
        ("engines = [{url = \"http://a:1/v1\"}]", "`engines[0].url` must be a base url"),
        ("engines = [{url = \"http://a:0\"}]", "`engines[0].url` must have a port"),
        ("engines = [{url = \"http://a:70000\"}]", "`engines[0].url` "),
        ("engines = [{url = \"http://u:p@a:1\"}]", "`engines[0].url` must not hold a user"),
        ("engines = [{url = \"http://A\"}, {url = \"http://a:80/\"}]", "`engines[1].url` is the same server"),
        ("engines = [{url = \"http://a\", ca_file = \"x\"}]", "`engines[0].ca_file` has no use"),
        ("engines = [{url = \"https://a\", ca_file = \"/no/x\"}]", "`engines[0].ca_file` cannot be read"),
        ("engines = [{url = \"http://a\", models = [\"\"]}]", "`engines[0].models` must not hold"),
        ("engines = [{url = \"http://a\", api_key = \"\"}]", "`engines[0].api_key` must be visible"),
        ("engines = [{url = \"http://a\", capacity_kv_tokens = 0}]", "`engines[0].capacity_kv_tokens` must"),
        ("auth.keys = [{sha256 = \"abc\", tenant = \"a\"}]", "`auth.keys[0].sha256` must be a SHA-256"),
    ];
    for (text, start) in cases {
        let found = complaints(text);
        assert_eq!(found.len(), 1, "{text} gave {found:?}");
        let message = found[0].split_once(": ").expect("a place").1;
        let message = if message.starts_with('`') { message } else { found[0].as_str() };
        assert!(message.starts_with(start), "{text} gave {message}");
    }
}

#[test]
fn keys_of_two_tenants_must_differ_and_tenants_have_plain_names() {
    let hash = "ab".repeat(32);
    let text = format!(
        "auth.keys = [{{sha256 = \"{hash}\", tenant = \"a\"}}, {{sha256 = \"{}\", tenant = \"b c\"}}]",
        hash.to_uppercase()
    );
    let found = complaints(&text);
    assert!(found[0].contains("`auth.keys[1].sha256` stands here twice"), "{found:?}");
    assert!(found[1].contains("`auth.keys[1].tenant` must be 1 to 128"), "{found:?}");
}

#[test]
fn tls_files_are_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let cert = folder.path().join("cert.pem");
    std::fs::write(&cert, "-----BEGIN CERTIFICATE-----\n").expect("written");
    let text = format!("[gateway.tls]\ncert_file = {cert:?}\nkey_file = {cert:?}\n");
    let found = complaints(&text);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("p.toml:3:1: `gateway.tls.key_file` is no PEM file"), "{found:?}");
    let missing = complaints("gateway.tls = {cert_file = \"/no/c\", key_file = \"/no/k\"}");
    assert!(missing.iter().all(|said| said.contains("cannot be read")) && missing.len() == 2, "{missing:?}");
}
