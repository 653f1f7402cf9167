//! Files from outside the repository.

use std::path::PathBuf;

/// A file of `shared`; `None`, said with the name of the test, where there is none.
pub(crate) fn file(test: &str, name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PLIMSOLL_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let path = root.join(name);
    if !path.is_file() {
        println!("skipped: {test} (no PLIMSOLL_SHARED)");
        return None;
    }
    Some(path)
}

/// Rows of a CSV by the names of its columns.
pub(crate) struct Csv {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    pub(crate) fn read(test: &str, name: &str) -> Option<Csv> {
        let text = std::fs::read_to_string(file(test, name)?).unwrap();
        let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut lines = text.lines();
        let head = cells(lines.next().unwrap());
        Some(Csv { head, rows: lines.map(cells).collect() })
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { head: &self.head, cells })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    head: &'a [String],
    cells: &'a [String],
}

impl<'a> Row<'a> {
    pub(crate) fn text(&self, name: &str) -> &'a str {
        let at = self.head.iter().position(|known| known == name);
        &self.cells[at.unwrap_or_else(|| panic!("no column {name}"))]
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or_else(|_| panic!("{name}: {:?} is no number", self.text(name)))
    }
}

/// Says what came out and holds it against a tolerance.
#[track_caller]
pub(crate) fn within(what: &str, found: f64, wanted: f64, tolerance: f64) {
    let off = found / wanted - 1.0;
    println!("{what}: {found:.4}, expected {wanted} ({:+.1} %, allowed {:.0} %)", off * 100.0, tolerance * 100.0);
    assert!(off.abs() <= tolerance, "{what}: {found}, expected {wanted} within {tolerance}");
}
