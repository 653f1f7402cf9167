//! Questions that belong together: one trace, several answers side by side, always with the honest baselines beside.

use crate::baselines::Policy;
use crate::question::Question;
use crate::tier::TierConfig;
use crate::world::{Change, StartUp};
use plimsoll_core::Nanos;
use plimsoll_load::PolicyKind;

/// Experiments by name, and what they ask.
pub const EXPERIMENTS: &[(&str, &str)] = &[
    ("policies", "every placement rule, ours and others', with the same knowledge"),
    ("knowledge", "least delay with and without a view of caches, and one that hears late"),
    ("traffic", "everybody at once, and traffic scheduling before the fleet"),
    ("tiers", "no memory below the engine's, the host's, a pool for all, both"),
    (
        "migration",
        "round robin, fewest tokens, least delay, and round robin whose running requests move to even out KV",
    ),
    ("split", "whole requests, and every ratio of prefill to decode engines of the same fleet"),
    ("sizes", "fleets of half to twice the size"),
    ("failure", "an engine dies after two minutes and is back after five, three or none"),
    (
        "coldstart",
        "half of the fleet is started when the trace begins, with start-up of 300 s and of 120 s (60 % less), or was there before",
    ),
];

/// The questions of an experiment, by name, starting from a base; of a small fleet some may be equal. `None`: there is no such experiment.
#[must_use]
pub fn variants(name: &str, base: &Question) -> Option<Vec<(String, Question)>> {
    let with = |policy: Policy| Question { policy, ..base.clone() };
    let own = |kind| with(Policy::Own(kind));
    let named = |name: &str, question: Question| (name.to_owned(), question);
    let tier = |tokens: u64, gb_s: f64| {
        Some(TierConfig { capacity_tokens: tokens, bytes_per_s: gb_s * 1e9, latency: Nanos::from_millis(1) })
    };
    // 20 GB/s from the host and 40 from the pool, with the room that the article has: 2 TB a node, and all of them.
    let kv_bytes = base.profile().map_or(327_680, |profile| profile.serving.kv_bytes_token).max(1);
    let host_tokens = 2_000_000_000_000 / kv_bytes;
    Some(match name {
        "policies" => Policy::ALL.map(|policy| named(policy.as_str(), with(policy))).into(),
        "knowledge" => vec![
            named("with view", base.clone()),
            named("one second late", Question { event_lag: Nanos::from_secs(1), ..base.clone() }),
            named("without view", Question { cache_view: false, ..base.clone() }),
        ],
        "traffic" => {
            vec![named("open", base.clone()), named("admission", Question { admission: true, ..base.clone() })]
        }
        "tiers" => {
            let pool_tokens = host_tokens * u64::from(base.instances);
            vec![
                named("device only", base.clone()),
                named("host", Question { host: tier(host_tokens, 20.0), ..base.clone() }),
                named("pool", Question { pool: tier(pool_tokens, 40.0), ..base.clone() }),
                named(
                    "both",
                    Question { host: tier(host_tokens, 20.0), pool: tier(pool_tokens, 40.0), ..base.clone() },
                ),
            ]
        }
        "migration" => vec![
            named("round_robin", own(PolicyKind::RoundRobin)),
            named("least_tokens", with(Policy::LeastTokens)),
            named("least_delay", own(PolicyKind::LeastDelay)),
            named("moving", Question { balance_kv: true, ..own(PolicyKind::RoundRobin) }),
        ],
        "split" => {
            let mut questions = vec![named("whole", base.clone())];
            for eighths in 2..=6 {
                let prefill = (base.instances * eighths / 8).max(1);
                let decode = base.instances.saturating_sub(prefill);
                if decode > 0 {
                    let question = Question { instances: prefill, decode_instances: decode, ..base.clone() };
                    questions.push(named(&format!("{prefill}P{decode}D"), question));
                }
            }
            questions.dedup_by(|a, b| a.0 == b.0);
            questions
        }
        "sizes" => {
            let sizes = [2, 3, 4, 6, 8].map(|quarters| (base.instances * quarters / 4).max(1));
            let of = |size: u32| named(&format!("{size} engines"), Question { instances: size, ..base.clone() });
            sizes.into_iter().map(of).collect()
        }
        "failure" => {
            let back = |after_s: u64| {
                let start_up = StartUp(vec![("start".to_owned(), Nanos::from_secs(after_s))]);
                let at = Nanos::from_secs(120);
                let changes = vec![(at, Change::Die { instance: 0 }), (at, Change::Return { instance: 0, start_up })];
                Question { changes, ..base.clone() }
            };
            vec![
                named("none dies", base.clone()),
                named("back after 3 min", back(180)),
                named("back after 5 min", back(300)),
            ]
        }
        "coldstart" => {
            let half = (base.instances / 2).max(1);
            let joins = |start_up_s: u64| {
                let start_up = StartUp(vec![("start".to_owned(), Nanos::from_secs(start_up_s))]);
                let change = Change::Join { start_up };
                let changes = vec![(Nanos::ZERO, change); (base.instances - half.min(base.instances)) as usize];
                Question { instances: half, changes, ..base.clone() }
            };
            vec![
                named("all there", base.clone()),
                named("start-up 300 s", joins(300)),
                named("start-up 120 s", joins(120)),
            ]
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_experiment_asks_at_least_two_different_questions() {
        let base = Question::new(Path::new("trace"), "h100-llama3-8b", 8, Policy::Own(PolicyKind::LeastDelay));
        for (name, _) in EXPERIMENTS {
            let variants = variants(name, &base).unwrap();
            assert!(variants.len() >= 2, "{name}");
            for (at, (one, question)) in variants.iter().enumerate() {
                let others = &variants[at + 1..];
                assert!(others.iter().all(|(other, asked)| other != one && asked != question), "{name}: {one}");
            }
        }
        assert_eq!(variants("everything", &base), None);
    }
}
