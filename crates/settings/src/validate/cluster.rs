//! Where the other gateways are heard.

use super::number::Numbers;
use super::{file_with, web};
use crate::problem::Problem;
use crate::tree::Cluster;

/// Longest name of a fleet.
const MOST_NAME_BYTES: usize = 64;

pub(super) fn check(cluster: &Cluster, found: &mut Vec<Problem>) {
    for (index, url) in cluster.nats.iter().enumerate() {
        web::nats(&format!("cluster.nats[{index}]"), url, found);
    }
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if cluster.fleet.is_empty() || cluster.fleet.len() > MOST_NAME_BYTES || !cluster.fleet.bytes().all(word) {
        let what = format!("must be 1 to {MOST_NAME_BYTES} letters, digits, `-` and `_`");
        found.push(Problem::at("cluster.fleet", what));
    }
    if cluster.user.is_some() != cluster.password.is_some() {
        found.push(Problem::at("cluster.password", "and `cluster.user` go together"));
    }
    if cluster.token.is_some() && cluster.user.is_some() {
        found.push(Problem::at("cluster.token", "is one way to log in and `cluster.user` another; give one"));
    }
    if let Some(file) = &cluster.ca_file {
        file_with("cluster.ca_file", file, "BEGIN CERTIFICATE", found);
    }
    let mut check = Numbers { found };
    // Contact is lost after three fifths of it without a report, of which there is one a second: one may be lost, and the next a little late.
    check.between("cluster.lease_ms", cluster.lease_ms, 4_000, 600_000);
    check.between("cluster.assumed_gateways", cluster.assumed_gateways.into(), 1, 1_000);
}
