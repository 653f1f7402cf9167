//! What can be wrong with a trace file, said so that a person can go and look.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{}: cannot be read: {source}; check the path and its permissions", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    /// Also a compressed file that ends too soon.
    #[error("{} line {line}: reading stopped: {source}; the file may be cut short", path.display())]
    Read { path: PathBuf, line: u64, source: std::io::Error },
    /// `line` and `column` count from 1.
    #[error("{} line {line} column {column}: {expected}", path.display())]
    Line { path: PathBuf, line: u64, column: usize, expected: String },
}
