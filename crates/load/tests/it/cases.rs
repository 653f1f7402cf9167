//! The table of complaints in `docs/operating/placement.md` names tests; each has to exist where it says.

use std::path::Path;

#[test]
fn every_test_that_the_table_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/operating/placement.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| G") || line.starts_with("| L")).collect();
    let numbers = |letter: char| -> Vec<u32> {
        let cells = rows.iter().filter_map(|row| row.strip_prefix("| ")?.split(' ').next()?.strip_prefix(letter));
        cells.map(|number| number.parse().unwrap()).collect()
    };
    assert_eq!(numbers('G'), (1..=19).collect::<Vec<_>>());
    assert_eq!(numbers('L'), (14..=28).collect::<Vec<_>>());
    for row in &rows {
        let test = row.rsplit('|').nth(1).unwrap();
        let quoted: Vec<&str> = test.split('`').skip(1).step_by(2).collect();
        assert!(!quoted.is_empty() || test.contains("as G"), "{row}");
        for pair in quoted.chunks(2) {
            let [file, name] = pair else { panic!("a file without a test: {row}") };
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {name}(")), "{file} has no {name}");
        }
    }
}
