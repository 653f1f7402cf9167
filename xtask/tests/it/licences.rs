//! Licences of dependencies.

use xtask::licences::{self, ALLOWED, allowed};

#[test]
fn every_dependency_has_an_allowed_licence() {
    let found = licences::check(&xtask::root()).expect("checked");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    for good in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "(GPL-3.0 OR (MIT AND ISC)) AND Zlib",
    ] {
        assert!(allowed(good), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND AGPL-3.0", "", "(MIT", "SSPL-1.0/AGPL-3.0"] {
        assert!(!allowed(bad), "{bad}");
    }
}

#[test]
fn deny_toml_holds_the_same_list() {
    let text = std::fs::read_to_string(xtask::root().join("deny.toml")).expect("deny.toml");
    let list = text.split_once("allow = [").expect("a list").1.split_once(']').expect("its end").0;
    let theirs: Vec<_> =
        list.lines().map(|line| line.trim().trim_matches([',', '"'])).filter(|name| !name.is_empty()).collect();
    assert_eq!(theirs, ALLOWED);
}
