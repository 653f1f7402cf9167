//! The numbers of one rank for one request.
//!
//! A walk needs the score alone and works it out for every rank; the record needs all of it, for the few that it names.
//! Both come from the same function of the same state, so they agree to the last bit.

use crate::ask::{Ask, HeldTokens};
use crate::config::SchedulerConfig;
use crate::glance::{Glance, real};
use crate::place::price::{Prices, RankLoad, Seconds};
use crate::pool::Mean;
use crate::reconcile::TrustClock;
use crate::replay::Asked;
use crate::verdict::Scored;
use plimsoll_core::{Nanos, Target};

/// All that a rank's numbers depend on besides the rank, prepared once per choice.
pub(super) struct Price {
    pub now: Nanos,
    clock: TrustClock,
    pub asked: Asked,
    prices: Prices,
    kv_tokens: f64,
    sequences: f64,
    /// For instances that were never observed.
    peer_s_per_token: f64,
}

/// A rank's load, own plus trusted foreign, before this request is charged, and what comes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub load: RankLoad,
    pub reserved_kv_tokens: f64,
    /// KV capacity is unknown, or fits this request.
    pub has_room: bool,
    pub seconds: Seconds,
}

impl Terms {
    /// For the decision record.
    pub(super) fn scored(&self, target: Target, at: usize) -> Scored {
        let Terms { load, reserved_kv_tokens, seconds, .. } = self;
        Scored {
            target,
            at: at as u32,
            expected_wait_s: seconds.expected_wait_s,
            score_s: seconds.score_s,
            requests: load.requests,
            uncached_prefill_tokens: load.uncached_prefill_tokens,
            prefill_s_per_token: load.prefill_s_per_token,
            reserved_kv_tokens: reserved_kv_tokens.round() as u64,
            hit_tokens: load.hit_tokens.round() as u64,
            host_tokens: load.host_tokens.round() as u64,
        }
    }
}

impl Price {
    pub(super) fn new(ask: &Ask<'_>, config: &SchedulerConfig, now: Nanos, pool: &Mean) -> Self {
        let charge = ask.charge.bounded();
        let peer_rate = pool.tokens_per_s.unwrap_or(config.assumed_prefill_tokens_per_s);
        let asked = Asked::of(ask, config, pool.front_tokens);
        let sequences = real(charge.sequences);
        Price {
            now,
            clock: TrustClock::new(now, config.report_stale),
            prices: asked.prices(),
            asked,
            kv_tokens: real(charge.reserved_kv_tokens),
            sequences,
            peer_s_per_token: 1.0 / peer_rate.max(1.0),
        }
    }

    #[inline(always)]
    pub(super) fn terms(&self, rank: &Glance, hit: HeldTokens) -> Terms {
        let foreign = rank.foreign.at(&self.clock);
        let (device_tokens, host_tokens) = (real(hit.device_tokens), real(hit.host_tokens));
        let load = RankLoad {
            requests: rank.requests + foreign.requests,
            uncached_prefill_tokens: rank.uncached_prefill_tokens + foreign.prefill_tokens,
            hit_tokens: device_tokens + host_tokens,
            host_tokens,
            prefill_s_per_token: effective_s_per_token(rank.prefill_s_per_token, self.peer_s_per_token),
        };
        let reserved_kv_tokens = rank.reserved_kv_tokens + foreign.kv_tokens;
        // `Instance::limited` in floats.
        let limit_tokens = self.sequences * rank.sequence_limit_tokens;
        let kv_tokens = if limit_tokens < self.kv_tokens { limit_tokens } else { self.kv_tokens };
        let more_tokens = kv_tokens - real(hit.shared_tokens).min(kv_tokens);
        let has_room = reserved_kv_tokens + more_tokens <= rank.kv_limit_tokens;
        Terms { load, reserved_kv_tokens, has_room, seconds: self.prices.seconds(&load) }
    }
}

/// Equal engines are observed at different rates by chance, and an idle fleet would send everybody to the luckiest. An
/// own rate counts only where it differs from the peers' by more than this factor; generations of accelerators do.
const SAME_RATE_FACTOR: f64 = 1.5;

#[inline]
pub(in crate::scheduler) fn effective_s_per_token(own: Option<f64>, peers: f64) -> f64 {
    match own {
        Some(own) if own > peers * SAME_RATE_FACTOR || own * SAME_RATE_FACTOR < peers => own,
        _ => peers,
    }
}
