//! A check that cannot fail proves nothing, so each rule is broken once in a small workspace of its own.

use std::path::Path;
use tempfile::TempDir;
use xtask::layers;

/// Crate name below `crates/`, its `[dependencies]`, its `lib.rs`.
type Planted<'a> = (&'a str, &'a str, &'a str);

fn workspace(crates: &[Planted<'_>]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    write(&root.path().join("Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n");
    for (name, dependencies, lib) in crates {
        let folder = root.path().join("crates").join(name);
        let manifest = format!(
            "[package]\nname = \"plimsoll-{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n{dependencies}\n"
        );
        write(&folder.join("Cargo.toml"), &manifest);
        write(&folder.join("src/lib.rs"), lib);
    }
    root
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
    std::fs::write(path, text).expect("written");
}

fn complaints(crates: &[Planted<'_>]) -> Vec<String> {
    let root = workspace(crates);
    layers::check_declared(root.path()).expect("checked").iter().map(ToString::to_string).collect()
}

const CORE: Planted<'_> = ("core", "serde = \"1\"", "//! Words.\n");
const USES_CORE: &str = "plimsoll-core = { path = \"../core\" }";

#[test]
fn this_repository_keeps_its_layers() {
    let found = layers::check(&xtask::root()).expect("checked");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_clean_workspace_passes() {
    let clean = "//! Why.\n//! Not an Instant in sight.\nuse std::collections::BTreeMap; // no HashMap\n\
                 pub struct InstantView;\n#[cfg(test)]\nmod tests {\n    use std::time::Instant;\n}\n";
    let load = (
        "load",
        "plimsoll-core = { path = \"../core\" }\nrand = { version = \"0.10\", default-features = false }",
        clean,
    );
    assert_eq!(complaints(&[CORE, load, ("pools", USES_CORE, "use std::time::Instant;")]), Vec::<String>::new());
}

#[test]
fn a_deciding_crate_may_not_depend_on_the_world() {
    let found = complaints(&[CORE, ("load", "tokio = \"1\"\nserde_json = \"1\"", "")]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found.iter().any(|one| one.starts_with("plimsoll-load: Decision(2) must not depend on tokio")),
        "{found:?}"
    );
    assert!(found.iter().any(|one| one.contains("serde_json")), "{found:?}");
    assert_eq!(complaints(&[("core", "hyper = \"1\"", "")]).len(), 1);
}

#[test]
fn a_deciding_crate_may_use_tokio_in_its_tests() {
    let manifest = "[dev-dependencies]\ntokio = \"1\"";
    assert_eq!(complaints(&[CORE, ("cache", manifest, "")]), Vec::<String>::new());
}

#[test]
fn decisions_and_adapters_never_see_each_other() {
    let down = "plimsoll-load = { path = \"../load\" }";
    let found = complaints(&[CORE, ("load", "", ""), ("pools", down, "")]);
    assert_eq!(found, ["plimsoll-pools: Adapter must not depend on plimsoll-load (Decision(2))"]);
    let up = "plimsoll-pools = { path = \"../pools\" }";
    let found = complaints(&[CORE, ("load", up, ""), ("pools", "", "")]);
    assert_eq!(found, ["plimsoll-load: Decision(2) must not depend on plimsoll-pools (Adapter)"]);
}

#[test]
fn decisions_look_downwards_only_and_core_at_nothing() {
    let found = complaints(&[CORE, ("cache", "plimsoll-load = { path = \"../load\" }", ""), ("load", "", "")]);
    assert_eq!(found, ["plimsoll-cache: Decision(0) must not depend on plimsoll-load (Decision(2))"]);
    let found = complaints(&[("core", "plimsoll-cache = { path = \"../cache\" }", ""), ("cache", "", "")]);
    assert_eq!(found, ["plimsoll-core: Core must not depend on plimsoll-cache (Decision(0))"]);
    let found =
        complaints(&[CORE, ("gateway", "", ""), ("settings", "plimsoll-gateway = { path = \"../gateway\" }", "")]);
    assert_eq!(found, ["plimsoll-settings: Shared must not depend on plimsoll-gateway (Program)"]);
}

#[test]
fn each_banned_word_is_found_where_it_stands() {
    let words = [
        "use std::time::Instant;",
        "let t = std::time::SystemTime::now();",
        "std::thread::spawn(|| ());",
        "let v = std::env::var(\"X\");",
        "let f = std::fs::read(\"x\");",
        "let r = rand::rng();",
        "let r = rand::thread_rng();",
        "let r = OsRng;",
        "getrandom::fill(&mut b);",
        "let m: HashMap<u8, u8>;",
        "let m: std::collections::HashSet<u8>;",
        "tokio::spawn(x);",
        "println!(\"x\");",
    ];
    for word in words {
        let found = complaints(&[CORE, ("traffic", USES_CORE, &format!("//! Why.\n{word}\n"))]);
        assert!(!found.is_empty(), "{word} passed");
        assert!(found[0].starts_with("crates/traffic/src/lib.rs:2: a deciding crate must not use"), "{found:?}");
    }
}

#[test]
fn randomness_needs_a_seed() {
    let found = complaints(&[CORE, ("load", "rand = \"0.10\"", "")]);
    assert_eq!(found, ["plimsoll-load: rand must be without default features and without a source of seeds"]);
    let found = complaints(&[
        CORE,
        ("load", "rand = { version = \"0.10\", default-features = false, features = [\"sys_rng\"] }", ""),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_crate_without_a_layer_is_refused() {
    let found = complaints(&[CORE, ("novelty", "", "")]);
    assert_eq!(found, ["plimsoll-novelty: has no layer; give it a line in LAYERS of xtask/src/layers.rs"]);
}
