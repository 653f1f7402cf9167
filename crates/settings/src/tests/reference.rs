//! The reference says everything, and says it as the program does it.

use crate::{LogFormat, PolicyName, Secret, Settings, reference};

#[test]
fn every_key_is_documented_once() {
    let rows = reference::rows();
    assert!(rows.len() > 50, "only {} rows", rows.len());
    for row in &rows {
        assert!(!row.meaning.is_empty(), "`{}` has no doc comment in tree.rs", row.key);
        assert_eq!(rows.iter().filter(|other| other.key == row.key).count(), 1, "{}", row.key);
    }
}

#[test]
fn the_defaults_shown_are_those_used() {
    let rows = reference::rows();
    let row = |key: &str| rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no row {key}"));
    assert_eq!(row("gateway.listen").default, "\"127.0.0.1:8080\"");
    assert_eq!(row("streams.idle_timeout_ms.low").default, Settings::default().streams.idle_timeout_ms.low.to_string());
    assert_eq!(row("engines[].url").default, "required");
    assert_eq!(row("engines[].api_key").default, "-");
    assert_eq!(row("engines[].api_key").kind, "string (secret)");
    assert_eq!(row("admin.token").env, "PLIMSOLL_ADMIN__TOKEN");
    assert_eq!(row("engines[].url").env, "PLIMSOLL_ENGINES__0__URL");
    assert!(row("policy.name").meaning.contains("`round_robin`: One after the other."));
}

#[test]
fn the_words_for_flags_are_those_of_the_schema() {
    let rows = reference::rows();
    let kind = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.kind.clone()).unwrap_or_default();
    let words = |names: &[&str]| {
        format!("one of {}", names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(kind("policy.name"), words(&PolicyName::ALL.map(PolicyName::as_str)));
    assert_eq!(kind("telemetry.log_format"), words(&LogFormat::ALL.map(LogFormat::as_str)));
}

#[test]
fn a_secret_is_never_shown() {
    let mut settings = Settings::default();
    settings.admin.token = Some(Secret("hunter2".into()));
    assert!(!format!("{settings:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&settings).expect("json").contains("hunter2"));
    assert!(!toml::to_string(&settings).expect("toml").contains("hunter2"));
}
