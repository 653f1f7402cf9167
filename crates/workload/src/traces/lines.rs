//! Lines of a plain, zstd- or gzip-compressed file, one at a time, of bounded length.

use super::error::TraceError;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The longest agentic session is 0.2 MB; this is room for other people's, and an end for a file without newlines.
const MAX_LINE_BYTES: usize = 64 << 20;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];

/// A file, line by line.
pub struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    number: u64,
}

impl Lines {
    /// Compression is told by the first bytes, not by the name.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Lines, TraceError> {
        let failed = |source| TraceError::Open { path: path.to_owned(), source };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let head = file.fill_buf().map_err(failed)?;
        let (zstd, gzip) = (head.starts_with(&ZSTD_MAGIC), head.starts_with(&GZIP_MAGIC));
        let reader: Box<dyn BufRead + Send> = if zstd {
            Box::new(BufReader::new(zstd::Decoder::with_buffer(file).map_err(failed)?))
        } else if gzip {
            // Of several members, as `cat a.gz b.gz` makes them.
            Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(file)))
        } else {
            Box::new(file)
        };
        Ok(Lines { path: path.to_owned(), reader, number: 0 })
    }

    /// Number of the line read last, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank.
    ///
    /// # Errors
    /// When it cannot be read, is no UTF-8 or too long.
    pub fn next_line(&mut self) -> Result<Option<String>, TraceError> {
        loop {
            self.number += 1;
            let mut bytes = Vec::new();
            let read = (&mut self.reader)
                .take(MAX_LINE_BYTES as u64)
                .read_until(b'\n', &mut bytes)
                .map_err(|source| TraceError::Read { path: self.path.clone(), line: self.number, source })?;
            if read == 0 {
                return Ok(None);
            }
            if read == MAX_LINE_BYTES && bytes.last() != Some(&b'\n') {
                return Err(self.complaint(read, "longer than 64 MiB; one JSON object a line was expected"));
            }
            while bytes.pop_if(|last| matches!(last, b'\n' | b'\r')).is_some() {}
            let line = String::from_utf8(bytes).map_err(|error| {
                self.complaint(error.utf8_error().valid_up_to() + 1, "not UTF-8; JSON was expected")
            })?;
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// A complaint about the line read last.
    #[must_use]
    pub fn complaint(&self, column: usize, expected: impl Into<String>) -> TraceError {
        TraceError::Line { path: self.path.clone(), line: self.number, column, expected: expected.into() }
    }
}
