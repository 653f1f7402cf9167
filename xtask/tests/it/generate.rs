//! The checked-in references.

use xtask::generate;

#[test]
fn the_references_are_those_that_would_be_generated() {
    let found = generate::compare(&xtask::root()).expect("compared");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_difference_is_found_and_written_away() {
    let root = tempfile::tempdir().expect("a folder");
    let pages = generate::pages().expect("pages").len();
    assert_eq!(generate::compare(root.path()).expect("compared").len(), pages, "nothing is there yet");
    generate::write(root.path()).expect("written");
    assert!(generate::compare(root.path()).expect("compared").is_empty());

    let page = root.path().join("docs/reference/settings.md");
    let text = std::fs::read_to_string(&page).expect("read");
    std::fs::write(
        &page,
        text.replace("| `gateway.listen` | string | `\"127.0.0.1:8080\"`", "| `gateway.listen` | string | `x`"),
    )
    .expect("written");
    let found = generate::compare(root.path()).expect("compared");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].place.starts_with("docs/reference/settings.md:"), "{found:?}");
}

#[test]
fn the_references_are_the_same_on_every_machine() {
    let pages = generate::pages().expect("pages");
    for (name, text) in pages {
        assert!(!text.contains("/root") && !text.contains("/home"), "{name} holds a path of this machine");
        assert!(text.ends_with('\n') && !text.lines().any(|line| line.ends_with(' ')), "{name} has loose white space");
    }
}
