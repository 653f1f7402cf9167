//! Traffic scheduling's share of the settings.

use plimsoll_core::Nanos;
use plimsoll_settings::{ClassShift, OnSloMiss as Miss, QuotaPoint, Settings, TenantTraffic};
use plimsoll_traffic::admission::{OnSloMiss, Rules, SloRules, TenantRules};
use plimsoll_traffic::fair_queue::{Bounds, Weights};
use plimsoll_traffic::quota::Quotas;

/// `None`: off. Curves are checked with the settings; one that is none all the same leaves the default.
#[must_use]
pub fn rules(settings: &Settings) -> Option<Rules> {
    let traffic = &settings.traffic;
    if !traffic.enabled {
        return None;
    }
    let ms = Nanos::from_millis;
    let points = |curve: &[QuotaPoint]| curve.iter().map(|point| (point.level, point.share)).collect();
    let quota = &traffic.quota;
    let slo = &traffic.slo;
    Some(Rules {
        target_wait: ms(traffic.target_wait_ms),
        rise: ms(traffic.level_rise_ms),
        fall: ms(traffic.level_fall_ms),
        hysteresis: traffic.hysteresis,
        quotas: Quotas::new(points(&quota.high), points(&quota.medium), points(&quota.low)).unwrap_or_default(),
        burst: ms(traffic.burst_ms),
        demand_memory: ms(traffic.demand_memory_ms),
        weights: Weights { high: traffic.weights.high, medium: traffic.weights.medium, low: traffic.weights.low },
        bounds: Bounds { requests: traffic.queue.requests, bytes: traffic.queue.bytes, tokens: traffic.queue.tokens },
        engine_queue: ms(traffic.engine_queue_ms),
        engine_queue_tokens: traffic.engine_queue_tokens,
        long_prefill: ms(traffic.long_prefill_ms),
        max_wait: ms(traffic.max_wait_ms),
        aging: ms(traffic.aging_ms),
        slo: SloRules {
            base: slo.base.iter().map(|point| (point.prompt_tokens, ms(point.first_token_ms))).collect(),
            high: slo.high,
            medium: slo.medium,
            low: slo.low,
            enforced: slo.enforced,
        },
        retry_fraction: traffic.retry_fraction,
        retry_burst: traffic.retry_burst,
        decode_token_cost: traffic.decode_token_cost,
        tenants: traffic.tenants.iter().map(|tenant| (tenant.name.clone(), tenant_rules(tenant))).collect(),
        tenant_default: TenantRules::default(),
        seed: settings.policy.seed,
    })
}

fn tenant_rules(tenant: &TenantTraffic) -> TenantRules {
    TenantRules {
        weight: tenant.weight,
        tokens_per_s: tenant.tokens_per_s,
        shift: match tenant.class_shift {
            ClassShift::None => 0,
            ClassShift::Lower => 1,
            ClassShift::Higher => -1,
        },
        highest: tenant.highest_class,
        lowest: tenant.lowest_class,
        first_token: tenant.first_token_ms.map(Nanos::from_millis),
        on_slo_miss: match tenant.on_slo_miss {
            Miss::Refuse => OnSloMiss::Refuse,
            Miss::BestEffort => OnSloMiss::BestEffort,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The deciding crate carries defaults for tests and the simulator; the settings tree is where they are meant.
    #[test]
    fn defaults_stand_in_one_place() {
        assert_eq!(rules(&Settings::default()), Some(Rules::default()));
    }

    #[test]
    fn off_is_off() {
        let mut settings = Settings::default();
        settings.traffic.enabled = false;
        assert_eq!(rules(&settings), None);
    }
}
