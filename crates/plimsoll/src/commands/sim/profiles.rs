//! What can be simulated.

use crate::{Failure, output};
use plimsoll_sim::baselines::Policy;
use std::fmt::Write as _;

pub(super) fn run() -> Result<(), Failure> {
    let mut text = String::from("Profiles (times: how well they are founded)\n");
    for name in plimsoll_timing::names() {
        let profile = plimsoll_timing::find(name).map_err(Failure::failed)?;
        let kv = profile.serving.kv_tokens / 1_000;
        let _ = writeln!(
            text,
            "  {name:<24} {} GPUs, {kv}k KV tokens a rank, {} ranks, {}; {}",
            profile.gpus(),
            profile.machine.data_parallel,
            profile.founded,
            profile.summary
        );
    }
    text.push_str("\nPolicies\n");
    for policy in Policy::ALL {
        let _ = writeln!(text, "  {:<24} {}", policy.as_str(), policy.origin());
    }
    output::data(&text)
}
