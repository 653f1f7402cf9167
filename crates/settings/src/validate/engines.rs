//! The list of engines.

use super::{file_with, web};
use crate::problem::Problem;
use crate::tree::Engine;
use std::collections::BTreeMap;

pub(super) fn check(engines: &[Engine], found: &mut Vec<Problem>) {
    let mut seen = BTreeMap::new();
    for (index, engine) in engines.iter().enumerate() {
        let path = |field: &str| format!("engines[{index}].{field}");
        if let Some(server) = web::base(&path("url"), &engine.url, found) {
            let https = server.https;
            if let Some(first) = seen.insert(server, index) {
                let what = format!("is the same server as `engines[{first}].url`; list an engine once");
                found.push(Problem::at(path("url"), what));
            }
            if let Some(file) = &engine.ca_file {
                if https {
                    file_with(&path("ca_file"), file, "BEGIN CERTIFICATE", found);
                } else {
                    found.push(Problem::at(path("ca_file"), "has no use with an http:// url"));
                }
            }
        }
        if engine.models.iter().any(|model| model.trim().is_empty()) {
            found.push(Problem::at(path("models"), "must not hold an empty name"));
        }
        for (field, key) in [("api_key", &engine.api_key), ("admin_api_key", &engine.admin_api_key)] {
            if let Some(key) = key {
                web::bearer(&path(field), &key.0, found);
            }
        }
        if engine.capacity_kv_tokens == Some(0) {
            found.push(Problem::at(
                path("capacity_kv_tokens"),
                "must be above zero; leave it out where it is not known",
            ));
        }
    }
}
