//! A measurement file: comma-separated, a head line, no quotes.

use anyhow::{Context, bail};
use std::path::Path;

pub(super) struct Table {
    /// For errors.
    file: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn read(folder: &Path, name: &str) -> anyhow::Result<Table> {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Table::parse(name, &text)
    }

    pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<Table> {
        let split = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let Some((_, head)) = lines.next() else { bail!("{name}: is empty") };
        let columns = split(head);
        let mut rows = Vec::new();
        for (index, line) in lines {
            let row = split(line);
            if row.len() != columns.len() {
                bail!("{name}: line {} has {} cells, the head has {}", index + 1, row.len(), columns.len());
            }
            rows.push(row);
        }
        Ok(Table { file: name.to_owned(), columns, rows })
    }

    fn column(&self, name: &str) -> anyhow::Result<usize> {
        let found = self.columns.iter().position(|column| column == name);
        found.with_context(|| format!("{}: has no column {name:?}", self.file))
    }

    /// The numbers in `wanted` columns of all rows whose cells are as `given` says. At least one row.
    pub(super) fn select<const N: usize>(
        &self,
        given: &[(&str, &str)],
        wanted: [&str; N],
    ) -> anyhow::Result<Vec<[f64; N]>> {
        let filters = given
            .iter()
            .map(|(name, value)| Ok((self.column(name)?, *value)))
            .collect::<anyhow::Result<Vec<(usize, &str)>>>()?;
        let mut columns = [0; N];
        for (column, name) in columns.iter_mut().zip(wanted) {
            *column = self.column(name)?;
        }
        let mut found = Vec::new();
        for row in self.rows.iter().filter(|row| filters.iter().all(|(column, value)| row[*column] == *value)) {
            let mut numbers = [0.0; N];
            for ((number, column), name) in numbers.iter_mut().zip(columns).zip(wanted) {
                *number = row[column]
                    .parse()
                    .with_context(|| format!("{}: {name} is {:?}, expected a number", self.file, row[column]))?;
            }
            found.push(numbers);
        }
        if found.is_empty() {
            let given: Vec<String> = given.iter().map(|(name, value)| format!("{name} {value}")).collect();
            bail!("{}: no row with {}", self.file, given.join(", "));
        }
        Ok(found)
    }
}
