//! What the processes are told.

use super::FidelityArgs;
use plimsoll_core::Nanos;
use plimsoll_timing::Profile;
use serde_json::json;
use std::fmt::Write as _;

/// Of the engines' KV; what their kernels want.
pub(super) const PAGE_TOKENS: u64 = 16;

/// A profile's sizes, divided as the lengths are: KV, context, budget, places.
pub(super) fn divide(profile: &mut Profile, scale: u64) {
    let serving = &mut profile.serving;
    let pages = |tokens: u64| (tokens / scale / PAGE_TOKENS).max(1) * PAGE_TOKENS;
    serving.kv_tokens = pages(serving.kv_tokens);
    serving.context_tokens = pages(serving.context_tokens);
    serving.token_budget = (serving.token_budget / scale).max(serving.max_running);
    serving.page_tokens = PAGE_TOKENS;
}

/// Where the engines' step times come from.
pub(super) enum EngineTime {
    /// A profile's.
    Profile { name: String, speedup: f64 },
    /// A model of random weights on one thread, and where what its steps take is written; `{n}` stands for the engine.
    Own { model: String, log: String },
}

/// `profile` says the sizes.
pub(super) fn engine_args(time: &EngineTime, profile: &Profile) -> Vec<String> {
    let sizes = &profile.serving;
    let mut all = vec!["engine".to_owned()];
    let mut flag = |name: &str, value: String| all.extend([format!("--{name}"), value]);
    flag("listen", "127.0.0.1:0".into());
    flag("kv-events-endpoint", "tcp://127.0.0.1:0".into());
    flag("kv-events-replay-endpoint", "tcp://127.0.0.1:0".into());
    match time {
        EngineTime::Profile { name, speedup } => {
            flag("timing", name.clone());
            flag("timing-speedup", speedup.to_string());
        }
        EngineTime::Own { model, log } => {
            flag("random-model", model.clone());
            flag("threads", "1".into());
            flag("step-log", log.clone());
        }
    }
    flag("page-tokens", PAGE_TOKENS.to_string());
    flag("kv-tokens", sizes.kv_tokens.to_string());
    flag("context-tokens", sizes.context_tokens.to_string());
    flag("token-budget", sizes.token_budget.to_string());
    flag("max-running", sizes.max_running.to_string());
    // The simulated engine takes whatever comes, in its order.
    flag("max-waiting", "1000000".into());
    flag("schedule-policy", "fcfs".into());
    all
}

/// The gateway's defaults, but for traffic scheduling, which the question leaves out, and probes that wait for a busy machine.
pub(super) fn settings(args: &FidelityArgs, poll: Nanos, engines: &[String]) -> String {
    let mut text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[limits]\nheader_timeout_ms = 600000\n\
         [policy]\nname = \"{}\"\nseed = {}\n[traffic]\nenabled = false\n\
         [health]\nprobe_interval_ms = {:.0}\nprobe_timeout_ms = 5000\nprobe_failures = 10\nreport_stale_ms = 8000\n",
        args.policy,
        args.seed,
        poll.as_millis_f64(),
    );
    for url in engines {
        let _ = write!(text, "[[engines]]\nurl = {}\n", json!(url));
    }
    text
}
