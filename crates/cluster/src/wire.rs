//! A report as it is sent: JSON, so that people can watch the subject.
//!
//! Read tolerantly: what a newer version adds is passed over. Written so that an older one can read it: fields are only ever added. What
//! anybody who may publish can send is judged before it counts.

use plimsoll_core::{GatewayId, GatewayReport, ModelDemand};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest report.
pub const MOST_BYTES: usize = 256 << 10;
/// Models in a report; of more, those that are asked for most.
pub const MOST_MODELS: usize = 256;
/// Longest name of a model.
pub const MOST_NAME_BYTES: usize = 256;

/// Why a message is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// More than [`MOST_BYTES`] or [`MOST_MODELS`].
    TooLarge,
    /// No JSON of this form.
    Undecodable,
    /// Numbers that nobody can have measured.
    Unsound,
}

impl Ignored {
    pub const ALL: [Ignored; 3] = [Ignored::TooLarge, Ignored::Undecodable, Ignored::Unsound];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Ignored::TooLarge => "too_large",
            Ignored::Undecodable => "undecodable",
            Ignored::Unsound => "unsound",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Report {
    /// Form of the record. A higher one has more fields.
    v: u32,
    /// 16 hex digits.
    gateway: String,
    sequence: u64,
    #[serde(default)]
    leaving: bool,
    #[serde(default)]
    models: BTreeMap<String, Demand>,
}

/// Tokens per second, and tokens.
#[derive(Serialize, Deserialize)]
struct Demand {
    #[serde(default)]
    high: f64,
    #[serde(default)]
    medium: f64,
    #[serde(default)]
    low: f64,
    #[serde(default)]
    high_prefill: f64,
    #[serde(default)]
    waiting_prefill: f64,
    #[serde(default)]
    long_prefill: f64,
}

pub(crate) fn encode(report: &GatewayReport) -> Vec<u8> {
    let asked = |demand: &ModelDemand| demand.asked_tokens_per_s.iter().sum::<f64>() + demand.waiting_prefill_tokens;
    let named = |name: &str| name.len() <= MOST_NAME_BYTES;
    let mut models: Vec<_> =
        report.models.iter().filter(|(name, demand)| named(name) && asked(demand) > 0.0 && demand.is_sound()).collect();
    if models.len() > MOST_MODELS {
        models.sort_by(|(_, a), (_, b)| asked(b).total_cmp(&asked(a)));
        models.truncate(MOST_MODELS);
    }
    let demand = |demand: &ModelDemand| {
        let [high, medium, low] = demand.asked_tokens_per_s;
        Demand {
            high,
            medium,
            low,
            high_prefill: demand.high_prefill_tokens_per_s,
            waiting_prefill: demand.waiting_prefill_tokens,
            long_prefill: demand.long_prefill_tokens,
        }
    };
    let report = Report {
        v: 1,
        gateway: report.gateway.to_string(),
        sequence: report.sequence,
        leaving: report.leaving,
        models: models.into_iter().map(|(name, one)| (name.clone(), demand(one))).collect(),
    };
    // Strings and sound numbers: this cannot fail.
    serde_json::to_vec(&report).unwrap_or_default()
}

pub(crate) fn decode(bytes: &[u8]) -> Result<GatewayReport, Ignored> {
    if bytes.len() > MOST_BYTES {
        return Err(Ignored::TooLarge);
    }
    let report: Report = serde_json::from_slice(bytes).map_err(|_| Ignored::Undecodable)?;
    if report.models.len() > MOST_MODELS || report.models.keys().any(|name| name.len() > MOST_NAME_BYTES) {
        return Err(Ignored::TooLarge);
    }
    let digits = report.gateway.len() == 16 && report.gateway.bytes().all(|byte| byte.is_ascii_hexdigit());
    let gateway = u64::from_str_radix(&report.gateway, 16).ok().filter(|_| digits).ok_or(Ignored::Undecodable)?;
    let demand = |one: Demand| ModelDemand {
        asked_tokens_per_s: [one.high, one.medium, one.low],
        high_prefill_tokens_per_s: one.high_prefill,
        waiting_prefill_tokens: one.waiting_prefill,
        long_prefill_tokens: one.long_prefill,
    };
    let models: BTreeMap<String, ModelDemand> =
        report.models.into_iter().map(|(name, one)| (name, demand(one))).collect();
    if !models.values().all(ModelDemand::is_sound) {
        return Err(Ignored::Unsound);
    }
    Ok(GatewayReport { gateway: GatewayId(gateway), sequence: report.sequence, leaving: report.leaving, models })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(high: f64) -> ModelDemand {
        ModelDemand {
            asked_tokens_per_s: [high, 2.5, 0.0],
            high_prefill_tokens_per_s: 1.0,
            waiting_prefill_tokens: 7.0,
            long_prefill_tokens: 0.5,
        }
    }

    fn report(models: impl IntoIterator<Item = (String, ModelDemand)>) -> GatewayReport {
        let models = models.into_iter().collect();
        GatewayReport { gateway: GatewayId(0xab), sequence: 7, leaving: true, models }
    }

    #[test]
    fn what_was_sent_is_what_is_read() {
        let said = report([("org/model".to_owned(), demand(1.5))]);
        assert_eq!(decode(&encode(&said)), Ok(said));
    }

    #[test]
    fn a_newer_versions_additions_are_passed_over_and_what_is_left_out_is_nothing() {
        let newer = br#"{"v":9,"gateway":"00000000000000ab","sequence":7,"leaving":true,"region":{"a":[1]},
            "models":{"m":{"high":1.5,"medium":2.5,"high_prefill":1,"waiting_prefill":7,"long_prefill":0.5,"urgent":3}}}"#;
        assert_eq!(decode(newer), Ok(report([("m".to_owned(), demand(1.5))])));
        let least = br#"{"v":1,"gateway":"00000000000000ab","sequence":7,"leaving":true}"#;
        assert_eq!(decode(least), Ok(report([])));
    }

    #[test]
    fn what_nobody_can_have_measured_is_no_report() {
        let of = |number: &str| {
            let text =
                format!(r#"{{"v":1,"gateway":"00000000000000ab","sequence":7,"models":{{"m":{{"low":{number}}}}}}}"#);
            decode(text.as_bytes()).map(|report| report.models["m"].asked_tokens_per_s[2])
        };
        assert_eq!(of("3"), Ok(3.0));
        for (number, why) in [
            ("-1", Ignored::Unsound),
            ("-1e-300", Ignored::Unsound),
            ("1e13", Ignored::Unsound),
            ("1e999", Ignored::Undecodable),
            ("NaN", Ignored::Undecodable),
            ("null", Ignored::Undecodable),
            ("\"3\"", Ignored::Undecodable),
        ] {
            assert_eq!(of(number), Err(why), "{number}");
        }
        for gateway in ["", "ab", "+0000000000000ab", "00000000000000ag", "000000000000000ab"] {
            let text = format!(r#"{{"v":1,"gateway":"{gateway}","sequence":7}}"#);
            assert_eq!(decode(text.as_bytes()), Err(Ignored::Undecodable), "{gateway}");
        }
    }

    #[test]
    fn sizes_are_bounded_both_ways() {
        let many = (0..1_000).map(|n| (format!("{n:0256}"), demand(f64::from(n))));
        let bytes = encode(&report(many));
        assert!(bytes.len() <= MOST_BYTES, "{}", bytes.len());
        let read = decode(&bytes).unwrap();
        assert_eq!(read.models.len(), MOST_MODELS);
        assert!(read.models.values().all(|one| one.asked_tokens_per_s[0] >= 744.0), "those asked for most");
        assert!(decode(&encode(&report([("x".repeat(300), demand(1.0))]))).unwrap().models.is_empty());
        assert_eq!(decode(&vec![b' '; MOST_BYTES + 1]), Err(Ignored::TooLarge));
        let models: Vec<_> = (0..=MOST_MODELS).map(|n| format!(r#""{n}":{{}}"#)).collect();
        let text = format!(r#"{{"v":1,"gateway":"00000000000000ab","sequence":7,"models":{{{}}}}}"#, models.join(","));
        assert_eq!(decode(text.as_bytes()), Err(Ignored::TooLarge));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_reason_to_panic_and_every_report_is_sound(
            bytes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(),
        ) {
            let _ = decode(&bytes);
            let mut near = encode(&report([("m".to_owned(), demand(1.5))]));
            let at = at.index(near.len());
            near[at] = bytes.first().copied().unwrap_or(b'9');
            if let Ok(report) = decode(&near) {
                prop_assert!(report.models.values().all(ModelDemand::is_sound));
            }
        }
    }
}
