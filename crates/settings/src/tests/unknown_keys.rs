//! Keys that do not exist, and values of a wrong type.

use super::{complaints, from_file};
use crate::{Sources, load};

#[test]
fn a_misspelt_key_is_named_with_its_place_and_the_nearest_one() {
    assert_eq!(
        complaints("[gateway]\n  lisen = \"127.0.0.1:1\"\n"),
        ["p.toml:2:3: unknown key `gateway.lisen`, did you mean `listen`"]
    );
    assert_eq!(complaints("[gatway]\n"), ["p.toml:1:2: unknown key `gatway`, did you mean `gateway`"]);
}

#[test]
fn a_key_without_its_unit_is_recognised() {
    assert_eq!(
        complaints("health.probe_timeout = 5"),
        ["p.toml:1:8: unknown key `health.probe_timeout`, did you mean `probe_timeout_ms`"]
    );
}

#[test]
fn a_key_in_the_wrong_table_is_sent_to_the_right_ones() {
    assert_eq!(
        complaints("listen = \"127.0.0.1:1\""),
        ["p.toml:1:1: unknown key `listen`, did you mean `gateway.listen` or `admin.listen`"]
    );
}

#[test]
fn a_key_like_no_other_gets_the_list() {
    let all = complaints("[auth]\nldap_server = 1");
    assert_eq!(all, ["p.toml:2:1: unknown key `auth.ldap_server`, valid here: `keys`"]);
}

#[test]
fn keys_inside_arrays_of_tables_are_checked_too() {
    let text = "[[engines]]\nurl = \"http://a:1\"\n[[engines]]\nurl = \"http://b:1\"\nmodel = [\"m\"]\n";
    assert_eq!(complaints(text), ["p.toml:5:1: unknown key `engines[1].model`, did you mean `models`"]);
    assert_eq!(
        complaints("[[auth.keys]]\ntenant = \"a\"\n"),
        ["p.toml:1:1: `auth.keys[0].sha256` is missing; every entry needs it"]
    );
}

#[test]
fn wrong_types_name_what_was_expected_and_all_are_found() {
    let text = "[limits]\nbody_bytes = \"1\"\nheader_count = -1\n[policy]\nname = \"least_wiat\"\nseed = 1.5\n\
                [telemetry]\nlog_prompts = 1\n[gateway]\nlisten = \"nowhere\"\ntls = 3\n[streams]\nidle_timeout_ms = 7\n";
    let mut found = complaints(text);
    found.sort();
    assert_eq!(
        found,
        [
            "p.toml:11:1: `gateway.tls` must be a table, not a whole number",
            "p.toml:13:1: `streams.idle_timeout_ms` must be a table, not a whole number",
            "p.toml:2:1: `limits.body_bytes` must be a whole number, not a string",
            "p.toml:3:1: `limits.header_count` must not be negative",
            "p.toml:5:1: `policy.name` must be one of \"least_delay\", \"least_wait\", \"round_robin\", \"power_of_two\", did you mean \
             \"least_wait\"?",
            "p.toml:6:1: `policy.seed` must be a whole number, not a number with a fraction",
            "p.toml:8:1: `telemetry.log_prompts` must be true or false, not a whole number",
        ]
    );
}

#[test]
fn an_address_that_is_none_says_how_to_write_one() {
    assert_eq!(
        complaints("gateway.listen = \"nowhere\""),
        ["p.toml:1:9: `gateway.listen` cannot be used: invalid socket address syntax, write it like 127.0.0.1:8080"]
    );
    let big = complaints("health.probe_failures = 5000000000");
    assert!(big[0].starts_with("p.toml:1:8: `health.probe_failures` cannot be used: "), "{big:?}");
}

#[test]
fn broken_toml_tells_the_place_without_the_line() {
    let found = complaints("[admin]\ntoken = \"s3cret-value\n");
    assert!(found[0].starts_with("p.toml:2:"), "{found:?}");
    assert!(!found[0].contains("s3cret"), "{found:?}");
    assert!(complaints("a = 1\na = 2\n")[0].contains("not valid TOML"));
}

#[test]
fn no_message_repeats_a_value() {
    let secret = "hunter2hunter2";
    let texts = [
        format!("admin.token = [\"{secret}\"]"),
        format!("auth.keys = [{{sha256 = \"{secret}\", tenant = \"a b\"}}]"),
        format!("engines = [{{url = \"http://user:{secret}@h:1\"}}]"),
        format!("policy.name = \"{secret}\""),
        format!("gateway.listen = \"{secret}\""),
        format!("admin.token = \"{secret} {secret}\""),
    ];
    for text in texts {
        let found = complaints(&text).join("\n");
        assert!(!found.contains("hunter2"), "{text} gave {found}");
    }
    let sources = Sources { sets: vec![secret.into(), format!("limits.body_bytes={secret}")], ..Sources::default() };
    let found = load(&sources).expect_err("refused").to_string();
    assert!(!found.contains(secret), "{found}");
}

#[test]
fn a_whole_example_is_accepted() {
    let text = "\u{feff}\
        [gateway]\nlisten = \"[::1]:9000\"\n\n[streams.idle_timeout_ms]\nhigh = 5_000\n\n[[engines]]\n\
        url = \"http://a:30000\"\nkind = \"sglang\"\nmodels = [\"m\"]\napi_key = \"k\"\n\n[[auth.keys]]\n\
        sha256 = \"2C26B46B68FFC68FF99B453C1D30413413422D706483BFA0F98A5E886266E7AE\"\ntenant = \"team-a\"\n";
    let settings = from_file(text).and_then(crate::Loaded::valid).expect("valid");
    assert_eq!(settings.gateway.listen.port(), 9000);
    assert_eq!(settings.streams.idle_timeout_ms.high, 5_000);
    assert_eq!(settings.streams.idle_timeout_ms.low, crate::Streams::default().idle_timeout_ms.low);
    assert_eq!(settings.engines[0].api_key.as_ref().map(|key| key.0.as_str()), Some("k"));
    assert_eq!(settings.auth.keys[0].tenant, "team-a");
}
