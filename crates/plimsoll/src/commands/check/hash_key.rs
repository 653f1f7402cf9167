//! `--hash-key`: the hash that `auth.keys` holds, so that no key has to be stored.

use crate::{Failure, output};
use sha2::{Digest as _, Sha256};
use std::io::{IsTerminal as _, Read as _};

/// Longest key in bytes; a request head has to hold it.
const MOST_BYTES: u64 = 4_096;

/// Reads one key from stdin and prints its SHA-256.
pub(super) fn run() -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        output::note("type the key, then Enter and Ctrl-D");
    }
    let mut text = String::new();
    stdin
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("cannot read a key from stdin: {error}")))?;
    let key = text.trim_end_matches(['\r', '\n']);
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) || key.len() as u64 > MOST_BYTES {
        return Err(Failure::usage("a key is one line of visible ASCII without spaces, at most 4096 bytes")
            .hint("`head -c 24 /dev/urandom | base64` makes a good one"));
    }
    let hash: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    output::data(&format!("{hash}\n"))
}
