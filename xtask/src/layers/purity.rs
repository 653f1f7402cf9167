//! What the sources of a deciding crate may not name, and what its dependencies may not lead to.

use crate::complaint::Complaint;
use crate::sources::{code, has_word, rust_files};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Word and what to do instead.
const BANNED: &[(&str, &str)] = &[
    ("Instant", "take `now: Nanos`"),
    ("SystemTime", "take `now: Nanos`"),
    ("std::thread", "decide in the caller's thread"),
    ("thread::spawn", "decide in the caller's thread"),
    ("thread_local", "keep state in the object"),
    ("std::env", "take a config"),
    ("std::fs", "take the content"),
    ("std::net", "take the content"),
    ("std::process", "return a verdict"),
    ("tokio", "return a verdict, act at the edge"),
    ("hyper", "return a verdict, act at the edge"),
    ("serde_json", "return a typed verdict"),
    ("println", "return the words"),
    ("eprintln", "return the words"),
    ("rand::rng", "take a seed, use ChaCha8Rng"),
    ("thread_rng", "take a seed, use ChaCha8Rng"),
    ("ThreadRng", "take a seed, use ChaCha8Rng"),
    ("OsRng", "take a seed, use ChaCha8Rng"),
    ("SysRng", "take a seed, use ChaCha8Rng"),
    ("from_os_rng", "take a seed, use ChaCha8Rng"),
    ("from_entropy", "take a seed, use ChaCha8Rng"),
    ("getrandom", "take a seed, use ChaCha8Rng"),
    ("HashMap", "use BTreeMap or an indexed Vec: the order must not change from run to run"),
    ("HashSet", "use BTreeSet: the order must not change from run to run"),
    ("RandomState", "use an unseeded hasher"),
];

/// Complaints about the production code of the crate in `folder`.
pub(super) fn check(root: &Path, folder: &str) -> anyhow::Result<Vec<Complaint>> {
    let mut found = Vec::new();
    for source in rust_files(root, &[&format!("{folder}/src")])? {
        for (number, line) in source.production_lines() {
            for (word, instead) in BANNED {
                if has_word(code(line), word) {
                    let place = format!("{}:{number}", source.path);
                    found.push(Complaint::new(place, format!("a deciding crate must not use `{word}`; {instead}")));
                }
            }
        }
    }
    Ok(found)
}

/// Names of all packages that the normal dependencies of `package` lead to.
pub(super) fn reachable(graph: &Value, package: &str) -> BTreeSet<String> {
    let name_of = |id: &Value| {
        let all = graph["packages"].as_array().into_iter().flatten();
        all.into_iter().find(|one| one["id"] == *id).and_then(|one| one["name"].as_str()).unwrap_or_default().to_owned()
    };
    let nodes: Vec<&Value> = graph["resolve"]["nodes"].as_array().into_iter().flatten().collect();
    let mut names = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut open: Vec<&Value> = nodes.iter().map(|node| &node["id"]).filter(|id| name_of(id) == package).collect();
    while let Some(id) = open.pop() {
        if !seen.insert(id.to_string()) {
            continue;
        }
        let below = nodes.iter().find(|node| node["id"] == *id).and_then(|node| node["deps"].as_array());
        for dependency in below.into_iter().flatten() {
            let normal = dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
            if normal {
                names.insert(name_of(&dependency["pkg"]));
                open.push(&dependency["pkg"]);
            }
        }
    }
    names
}
