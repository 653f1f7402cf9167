//! Files that a command writes: opened before the work begins, and under their names whole or not at all.
//!
//! A run takes minutes, so a folder that cannot be written must be found out before it; and whoever waits for a report must
//! never read half of one.

use crate::{Failure, output};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Names tried beside a file; more than one is taken only after runs that were killed.
const MOST_NAMES: u32 = 64;

/// One file. A regular one is written beside its name and renamed at the end; pipes and devices are written as they are, and
/// `-` is stdout.
pub(super) struct Output {
    path: PathBuf,
    /// Where it is written, until it is renamed to the second.
    beside: Option<(PathBuf, PathBuf)>,
    file: Option<BufWriter<File>>,
}

impl Output {
    /// # Errors
    /// When it cannot be written.
    pub(super) fn open(path: &Path) -> Result<Output, Failure> {
        let (file, beside) =
            if is_stdout(path) { (None, None) } else { create(path).map_err(|why| fails(path, &why))? };
        Ok(Output { path: path.to_owned(), beside, file: file.map(BufWriter::new) })
    }

    /// Writes all of it, and gives it its name.
    ///
    /// # Errors
    /// When the disk is full, for one.
    pub(super) fn put(mut self, text: &str) -> Result<(), Failure> {
        if self.file.is_none() {
            return output::data(text);
        }
        self.write_all(text.as_bytes()).map_err(|why| fails(&self.path, &why))?;
        self.keep()
    }

    /// What was written gets its name.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub(super) fn keep(mut self) -> Result<(), Failure> {
        let kept = self.flush().and_then(|()| match &self.beside {
            Some((beside, name)) => std::fs::rename(beside, name),
            None => Ok(()),
        });
        kept.map_err(|why| fails(&self.path, &why))?;
        self.beside = None;
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.flush(),
            None => io::stdout().flush(),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.beside {
            let _ = std::fs::remove_file(beside);
        }
    }
}

/// Refuses files to write that are among those to read, or twice among themselves, by whatever names: all of them are opened
/// before anything is read.
///
/// # Errors
/// With the two names.
pub(super) fn apart<'a>(read: impl Iterator<Item = &'a Path>, written: &[Option<&PathBuf>]) -> Result<(), Failure> {
    let mut taken: Vec<(Identity, &Path, &str)> =
        read.filter_map(|path| Some((identity(path)?, path, "is read"))).collect();
    for path in written.iter().flatten().filter(|path| !is_stdout(path)) {
        let Some(own) = identity(path) else { continue };
        if let Some((_, other, how)) = taken.iter().find(|(other, ..)| *other == own) {
            let what = format!("{}: the same file as {}, which {how} too", path.display(), other.display());
            return Err(Failure::usage(what).hint("give another name"));
        }
        taken.push((own, path, "is written"));
    }
    Ok(())
}

/// What makes two names one file.
#[derive(PartialEq, Eq)]
enum Identity {
    There(u64, u64),
    NotYet(PathBuf),
}

/// `None`: no file that could be spoiled.
fn identity(path: &Path) -> Option<Identity> {
    match std::fs::metadata(path) {
        Ok(about) => about.is_file().then(|| Identity::There(about.dev(), about.ino())),
        Err(_) => Some(Identity::NotYet(folder(path).canonicalize().ok()?.join(path.file_name()?))),
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn fails(path: &Path, why: &io::Error) -> Failure {
    Failure::failed(format!("{}: cannot be written: {why}", path.display()))
}

type Created = (Option<File>, Option<(PathBuf, PathBuf)>);

fn create(path: &Path) -> io::Result<Created> {
    let there = std::fs::metadata(path).ok();
    let name = match &there {
        // One that may not be written would be replaced by a rename; behind a link the file is meant and not the link.
        Some(about) if about.is_file() => {
            OpenOptions::new().write(true).open(path)?;
            path.canonicalize()?
        }
        Some(_) => return Ok((Some(OpenOptions::new().write(true).open(path)?), None)),
        None => path.to_owned(),
    };
    let last = name.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "no name of a file"))?;
    for nth in 0..MOST_NAMES {
        let beside = folder(&name).join(format!(".{}.{}-{nth}.part", last.to_string_lossy(), std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((Some(opened?), Some((beside, name)))),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "there are too many unfinished files beside it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(&path, "before").unwrap();
        let mut given_up = Output::open(&path).unwrap();
        given_up.write_all(b"half").unwrap();
        given_up.flush().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        drop(given_up);
        assert_eq!(
            (names(folder.path()), std::fs::read_to_string(&path).unwrap().as_str()),
            (vec!["report.json".to_owned()], "before")
        );
        Output::open(&path).unwrap().put("after").unwrap();
        assert_eq!(
            (names(folder.path()), std::fs::read_to_string(&path).unwrap().as_str()),
            (vec!["report.json".to_owned()], "after")
        );
        assert!(Output::open(&folder.path().join("nobody/report.json")).is_err());
        assert!(Output::open(folder.path()).is_err(), "a folder");
    }

    #[test]
    fn what_is_read_is_not_written_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        std::fs::write(of("trace"), "rows").unwrap();
        std::os::unix::fs::symlink(of("trace"), of("link")).unwrap();
        std::fs::hard_link(of("trace"), of("hard")).unwrap();
        let trace = of("trace");
        let check = |written: &[PathBuf]| {
            let written: Vec<Option<&PathBuf>> = written.iter().map(Some).collect();
            apart(std::iter::once(trace.as_path()), &written).is_ok()
        };
        for name in ["trace", "link", "hard", "./trace"] {
            assert!(!check(&[of(name)]), "{name}");
        }
        assert!(check(&[of("new"), of("other"), PathBuf::from("-"), PathBuf::from("-")]));
        assert!(!check(&[of("new"), of("./new")]), "twice");
        assert!(check(&[PathBuf::from("/dev/null"), PathBuf::from("/dev/null")]));
    }
}
