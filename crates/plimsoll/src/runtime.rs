//! The async runtime and process limits of commands that serve.
//!
//! Built by hand and only where needed: `check` and `version` start no threads.

use crate::Failure;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Open files kept from clients and engines.
const RESERVED_FILES: u64 = 40;

/// A multi-threaded runtime, one worker per core.
///
/// # Errors
/// When the system gives no threads.
pub fn multi_thread() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))
}

/// No huge pages for this process. The allocator asks for them, and what a gateway at rest uses, 3 MB here and there,
/// would hold four times as much; its latency lies elsewhere (CPU per request is the same). A system that has none keeps
/// what it has.
pub fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay as they are");
    }
}

/// Raises the soft limit of open files to the hard one. Each request in flight holds two sockets, and the usual soft
/// limit of 1,024 would refuse the 500th. A refusal is not an error: the old limit stays.
///
/// Returns how many client connections fit: half of the limit, less a reserve for probes, operators and files.
pub fn raise_open_files() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(open_files.saturating_sub(RESERVED_FILES) / 2).unwrap_or(usize::MAX).max(1)
}
