//! Clients of stock engines: connections, probing, load reports, aborts.

pub mod abort;
pub mod adapter;
pub mod capability;
pub mod chunk;
pub mod http;
pub mod kv_events;
pub mod loads;
mod openai;
pub mod probe;
pub mod prometheus;
mod sglang;
mod vllm;

#[cfg(test)]
mod scripted;

/// The recordings of real engines (`PLIMSOLL_SHARED`), or `None` with a line that names what was skipped.
#[cfg(test)]
fn recordings(test: &str) -> Option<std::path::PathBuf> {
    let wire = std::env::var_os("PLIMSOLL_SHARED").map(|d| std::path::PathBuf::from(d).join("wire"));
    let found = wire.filter(|w| w.is_dir());
    if found.is_none() {
        eprintln!("skipped {test}: set PLIMSOLL_SHARED to the folder with `wire`");
    }
    found
}
