//! File, environment, `--set`, flags: who wins, and how text gets its type.

use crate::{PolicyName, Settings, Sources, env_name, load};
use toml::Value;

fn sources() -> Sources {
    Sources {
        file: Some(("p.toml".into(), "[policy]\nseed = 1\nname = \"round_robin\"\n[limits]\nbody_bytes = 1\n".into())),
        ..Sources::default()
    }
}

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn read(sources: &Sources) -> Settings {
    load(sources).unwrap_or_else(|problems| panic!("{problems}")).settings
}

#[test]
fn each_layer_wins_over_those_before_it() {
    let mut s = sources();
    assert_eq!(read(&Sources::default()), Settings::default());
    assert_eq!(read(&s).policy.seed, 1);
    s.env = env(&[("PLIMSOLL_POLICY__SEED", "2")]);
    assert_eq!(read(&s).policy.seed, 2);
    s.sets = vec!["policy.seed=3".into()];
    assert_eq!(read(&s).policy.seed, 3);
    s.flags = vec![("--seed".into(), "policy.seed".into(), Value::Integer(4))];
    let settings = read(&s);
    assert_eq!(settings.policy.seed, 4);
    assert_eq!(settings.policy.name, PolicyName::RoundRobin, "keys that no layer names keep the file's value");
    assert_eq!(settings.limits.header_count, Settings::default().limits.header_count);
}

#[test]
fn text_takes_the_type_of_its_key() {
    let s = Sources {
        env: env(&[
            ("PLIMSOLL_ADMIN__TOKEN", "1234"),
            ("PLIMSOLL_LIMITS__BODY_BYTES", "1_000"),
            ("PLIMSOLL_POLICY__TIE_FRACTION", "1"),
            ("PLIMSOLL_TELEMETRY__LOG_PROMPTS", "true"),
            ("PLIMSOLL_GATEWAY__TLS", "{cert_file = \"c\", key_file = \"k\"}"),
        ]),
        ..Sources::default()
    };
    let settings = read(&s);
    assert_eq!(settings.admin.token.map(|token| token.0).as_deref(), Some("1234"));
    assert_eq!(settings.limits.body_bytes, 1_000);
    assert_eq!(settings.policy.tie_fraction, 1.0);
    assert!(settings.telemetry.log_prompts);
    assert_eq!(settings.gateway.tls.map(|tls| tls.key_file), Some("k".into()));
}

#[test]
fn array_entries_are_reached_by_index_in_numeric_order() {
    let mut pairs: Vec<_> =
        (0..12).map(|n| (format!("PLIMSOLL_ENGINES__{n}__URL"), format!("http://e{n}:1"))).collect();
    pairs.sort();
    let s = Sources { env: pairs, sets: vec!["engines[11].api_key=k".into()], ..Sources::default() };
    let engines = read(&s).engines;
    let urls: Vec<_> = engines.iter().map(|engine| engine.url.clone()).collect();
    assert_eq!(urls, (0..12).map(|n| format!("http://e{n}:1")).collect::<Vec<_>>());
    assert!(engines[11].api_key.is_some());

    let gap = Sources { sets: vec!["engines.3.url=http://a:1".into()], ..Sources::default() };
    let said = load(&gap).expect_err("a gap").to_string();
    assert_eq!(said, "--set: `engines[3]` leaves a gap, the next free index is 0");
}

#[test]
fn mistakes_name_their_layer() {
    let s = Sources {
        env: env(&[("PLIMSOLL_GATEWAY__LISEN", "x"), ("PLIMSOLL_LIMITS__BODY_BYTES", "many")]),
        sets: vec!["nonsense".into(), "=3".into()],
        ..sources()
    };
    let said = load(&s).expect_err("four mistakes").to_string();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "environment PLIMSOLL_LIMITS__BODY_BYTES: `limits.body_bytes` must be a whole number",
            "--set: not KEY=VALUE, write it like `gateway.listen=127.0.0.1:8080`",
            "--set: `` is not a key, write it like `gateway.listen`",
            "environment PLIMSOLL_GATEWAY__LISEN: unknown key `gateway.lisen`, did you mean `listen`",
        ]
    );
}

#[test]
fn an_override_of_a_bad_file_value_takes_the_blame() {
    let s = Sources { sets: vec!["limits.total_body_bytes=1".into()], ..Sources::default() };
    let said = load(&s).and_then(crate::Loaded::valid).expect_err("too small").to_string();
    assert_eq!(said, "--set: `limits.total_body_bytes` must hold at least one body of `limits.body_bytes`");
}

#[test]
fn other_variables_are_left_alone() {
    let s = Sources {
        env: env(&[("PLIMSOLL_CONFIG", "x"), ("PLIMSOLL_TEST_VLLM", "http://x"), ("OTHER__KEY", "x")]),
        ..Sources::default()
    };
    assert_eq!(read(&s), Settings::default());
}

#[test]
fn the_documented_variable_of_every_key_reaches_that_key() {
    assert_eq!(env_name("gateway.listen"), "PLIMSOLL_GATEWAY__LISTEN");
    for row in crate::reference::rows() {
        let value = if row.kind == "true or false" { "maybe" } else { "{" };
        let s = Sources { env: vec![(row.env.clone(), value.into())], ..Sources::default() };
        // Text keys accept anything; for all others the type must have been looked up, or a number would pass as text.
        if let Err(problems) = load(&s) {
            // A table that is given in part reports what else it needs, so the table is what is compared.
            let path = row.key.replace("[]", "[0]");
            let table = path.rsplit_once('.').map_or("", |(table, _)| table);
            assert!(problems.0.iter().any(|one| one.path.starts_with(table)), "{} gave {problems}", row.env);
            assert!(!problems.to_string().contains("unknown key"), "{problems}");
        } else {
            assert!(row.kind.starts_with("string"), "{} of kind {} took \"{value}\"", row.env, row.kind);
        }
    }
}

/// Found by fuzzing: a path of 100,000 steps made a tree of as many levels, and its walk a stack overflow.
#[test]
fn a_path_deeper_than_any_key_is_refused() {
    let path = vec!["a"; 100_000].join(".");
    let problems = load(&Sources { sets: vec![format!("{path}=1")], ..Sources::default() }).unwrap_err().to_string();
    assert!(problems.contains("more than 32 parts") && problems.len() < 200, "{problems}");
}
