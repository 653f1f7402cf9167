//! A choice made again from its record (design rule 7).
//!
//! A record holds what the rule was shown: the load of each candidate, the request's lengths, the settings, and what the rule
//! remembered from before. Everything else follows: scores are worked out again and the rule, as it stood, chooses again.
//! Records stand alone, so a log may be in any order and have holes.

use crate::ask::{Ask, HeldTokens};
use crate::config::{PolicyKind, SchedulerConfig};
use crate::glance::real;
use crate::place::price::{Prices, RankLoad};
use crate::place::{Candidate, Load, Loads, Reason, State, Tier, View, resume};
use crate::roster::Row;
use crate::verdict::Scored;
use plimsoll_core::{Nanos, Target};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a request asks for and what it is priced with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub prompt_tokens: f64,
    /// KV tokens that it is taken to add.
    pub growth_tokens: f64,
    pub sequences: f64,
    pub load_tokens_per_s: f64,
    /// 0 for a rule that minds only the request itself.
    pub others_weight: f64,
    /// Likewise; 0 in records of before there was one.
    #[serde(default)]
    pub pressure_weight: f64,
    /// Mean of uncached tokens in front of a rank of the pool.
    #[serde(default)]
    pub front_tokens: f64,
}

impl Asked {
    pub(crate) fn of(ask: &Ask<'_>, config: &SchedulerConfig, front_tokens: f64) -> Asked {
        let charge = ask.charge.bounded();
        let prompt = charge.uncached_prefill_tokens;
        let selfish = config.policy == PolicyKind::LeastWait;
        Asked {
            prompt_tokens: real(prompt),
            growth_tokens: real(charge.reserved_kv_tokens.saturating_sub(prompt)),
            sequences: real(charge.sequences),
            load_tokens_per_s: config.assumed_kv_load_tokens_per_s,
            others_weight: if selfish { 0.0 } else { config.others_weight },
            pressure_weight: if selfish { 0.0 } else { config.pressure_weight },
            front_tokens,
        }
    }

    pub(crate) fn prices(&self) -> Prices {
        Prices::of(self)
    }
}

/// What a choice followed from, besides its candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    pub policy: PolicyKind,
    pub seed: u64,
    /// Before the choice.
    pub state: State,
    pub tie_fraction: f64,
    /// The rule was shown the first so many candidates, by [`Scored::at`].
    pub offered: u32,
    #[serde(flatten)]
    pub asked: Asked,
}

impl Basis {
    pub(crate) fn new(config: &SchedulerConfig, asked: Asked, state: State, offered: usize) -> Basis {
        Basis {
            policy: config.policy,
            seed: config.seed,
            state,
            tie_fraction: config.tie_fraction,
            offered: offered as u32,
            asked,
        }
    }
}

/// What came out this time.
#[derive(Clone, Debug, PartialEq)]
pub struct Again {
    pub target: Target,
    pub reason: Reason,
    /// Of the candidates that the rule was shown, as worked out now: target, score in the record, score now.
    pub scores: Vec<(Target, f64, f64)>,
}

/// Why a choice cannot be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("{recorded} of {offered} candidates are in the record; raise `decisions.candidates`")]
    TooFew { recorded: usize, offered: usize },
    #[error("the rule's state in the record is another rule's")]
    OtherState,
    #[error("the rule chose nobody")]
    Nobody,
}

/// Chooses again from what is recorded; `model` only names the pool.
///
/// # Errors
/// When the record does not hold enough of it.
pub fn choose(basis: &Basis, model: &str, recorded: &[Scored]) -> Result<Again, ReplayError> {
    let prices = basis.asked.prices();
    let mut shown: Vec<&Scored> = recorded.iter().filter(|one| one.at < basis.offered).collect();
    shown.sort_by_key(|one| one.at);
    shown.dedup_by_key(|one| one.at);
    let candidate = |one: &&Scored| Candidate {
        target: one.target,
        score_s: prices.seconds(&load(one)).score_s,
        row: Row::default(),
        tier: Tier::new(false, true),
    };
    let candidates: Vec<Candidate> = shown.iter().map(candidate).collect();
    let offered = basis.offered as usize;
    if candidates.len() < offered && !has_all_ties(basis, &candidates) {
        return Err(ReplayError::TooFew { recorded: candidates.len(), offered });
    }
    let mut rule = resume(basis.policy, basis.seed, basis.state, model).ok_or(ReplayError::OtherState)?;
    let view = View { model, candidates: &candidates, tie_fraction: basis.tie_fraction, loads: &Nothing };
    let choice = rule.place(Nanos::ZERO, &view, &Ask::default()).ok_or(ReplayError::Nobody)?;
    let scores = shown.iter().zip(&candidates).map(|(one, now)| (one.target, one.score_s, now.score_s)).collect();
    let target = candidates.get(choice.index).ok_or(ReplayError::Nobody)?.target;
    Ok(Again { target, reason: choice.reason, scores })
}

/// The best are recorded, and one of them is no tie any more: all others were further behind.
fn has_all_ties(basis: &Basis, candidates: &[Candidate]) -> bool {
    let by_score = matches!(basis.policy, PolicyKind::LeastDelay | PolicyKind::LeastWait);
    let best = candidates.iter().map(|one| one.score_s).fold(f64::INFINITY, f64::min);
    by_score && candidates.iter().any(|one| one.score_s > crate::place::least_score::bound(best, basis.tie_fraction))
}

fn load(one: &Scored) -> RankLoad {
    let device_tokens = one.hit_tokens.saturating_sub(one.host_tokens);
    let hit = HeldTokens { device_tokens, host_tokens: one.host_tokens, shared_tokens: 0 };
    RankLoad {
        requests: one.requests,
        uncached_prefill_tokens: one.uncached_prefill_tokens,
        hit_tokens: real(hit.tokens()),
        host_tokens: real(hit.host_tokens),
        prefill_s_per_token: one.prefill_s_per_token,
    }
}

/// This crate's rules choose by score and order alone.
struct Nothing;

impl fmt::Debug for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nothing")
    }
}

impl Loads for Nothing {
    fn of(&self, _candidate: &Candidate) -> Load {
        Load::default()
    }
}
