//! Lengths and names.

use xtask::files;

fn complaints(path: &str, text: &str) -> Vec<String> {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join(path);
    std::fs::create_dir_all(file.parent().expect("a parent")).expect("folder");
    std::fs::write(&file, text).expect("written");
    files::check(root.path()).expect("checked").iter().map(ToString::to_string).collect()
}

#[test]
fn this_repository_is_in_order() {
    let found = files::check(&xtask::root()).expect("checked");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_long_file_is_refused_but_tests_do_not_count() {
    let long = |lines: usize| format!("//! Why.\n{}", "fn x() {}\n".repeat(lines - 1));
    assert_eq!(complaints("crates/a/src/b.rs", &long(files::MOST_LINES)), Vec::<String>::new());
    let found = complaints("crates/a/src/b.rs", &long(files::MOST_LINES + 1));
    assert_eq!(found, ["crates/a/src/b.rs: 601 lines of production code, at most 600; split it by idea"]);
    assert_eq!(complaints("crates/a/src/b/tests.rs", &long(2_000)), Vec::<String>::new());
    let with_tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", long(500), "    fn x() {}\n".repeat(500));
    assert_eq!(complaints("crates/a/src/b.rs", &with_tests), Vec::<String>::new());
    let with_module_file = long(files::MOST_LINES + 1).replacen("fn x() {}\n", "#[cfg(test)]\nmod tests;\n", 1);
    assert_eq!(complaints("crates/a/src/b.rs", &with_module_file).len(), 1, "`mod tests;` ends nothing");
}

#[test]
fn empty_names_and_silent_modules_are_refused() {
    assert_eq!(complaints("crates/a/src/b/mod.rs", "//! Why.\n").len(), 1);
    assert_eq!(complaints("crates/a/src/utils.rs", "//! Why.\n").len(), 1);
    assert_eq!(complaints("crates/a/src/manager.rs", "//! Why.\n").len(), 1);
    assert_eq!(complaints("crates/a/src/block_manager.rs", "//! Why.\n"), Vec::<String>::new());
    assert_eq!(complaints("crates/a/src/common/b.rs", "//! Why.\n").len(), 1);
    assert_eq!(
        complaints("crates/a/src/b.rs", "fn x() {}\n"),
        ["crates/a/src/b.rs: must open with `//!` and why it exists"]
    );
    assert_eq!(complaints("crates/a/src/uncommon.rs", "//! Why.\n"), Vec::<String>::new());
}
