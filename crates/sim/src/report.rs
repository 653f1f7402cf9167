//! What a run gives: one document, the same bytes for the same question.
//!
//! Refused and failed requests stand beside the latencies, because a policy that refuses everybody has the best ones.

use crate::bucket_map::BucketMap;
use crate::histogram::Summary;
use crate::series::Columns;
use crate::world::MoveFigures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Raised when a field changes its meaning or goes.
pub const FORMAT: u32 = 2;

/// The whole of it. Times in milliseconds or seconds as the names say, counts in tokens or requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    pub format: u32,
    pub setup: Setup,
    /// What should be known before the figures are believed.
    #[serde(default)]
    pub notes: Vec<String>,
    pub requests: Requests,
    /// From the first arrival to the last answer.
    pub duration_s: f64,
    /// Of completed requests, as are `tpot_ms` and `e2e_ms`.
    pub ttft_ms: Summary,
    /// Gaps between two tokens of one answer, also of answers that broke off later.
    pub itl_ms: Summary,
    /// Mean gap of each answer of two tokens or more.
    pub tpot_ms: Summary,
    pub e2e_ms: Summary,
    pub tokens: Tokens,
    /// Of all engines from their start to the end of the run, dead ones included: they are paid for.
    pub gpu_hours: f64,
    /// Share of that time in which engines computed.
    pub busy_share: f64,
    /// And of it, with prefill in the step.
    pub prefill_share: f64,
    pub preemptions: u64,
    pub moves: MoveFigures,
    pub classes: BTreeMap<String, ClassFigures>,
    /// By the region that sessions come from, where there are several.
    #[serde(default)]
    pub regions: BTreeMap<String, RegionFigures>,
    pub instances: Vec<InstanceFigures>,
    pub over_time: Columns,
    #[serde(default)]
    pub bucket_map: BucketMap,
}

/// What was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setup {
    pub trace: String,
    pub profile: String,
    /// How well the profile's times are founded.
    pub founded: String,
    pub policy: String,
    pub instances: u32,
    pub ranks: u16,
    pub gpus: u32,
    pub seed: u64,
    pub rate: f64,
    pub limit: Option<u64>,
    pub slo_ttft_ms: f64,
    pub slo_tpot_ms: f64,
    /// Further settings that differ from the defaults.
    pub settings: BTreeMap<String, String>,
    /// Rows that were passed over because they could not be read.
    pub skipped_rows: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requests {
    pub arrived: u64,
    pub completed: u64,
    /// By reason; failed ones are not among them.
    pub refused: BTreeMap<String, u64>,
    /// Attempts beyond the first.
    pub retries: u64,
    /// Ended without an answer after they were accepted.
    pub failed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    pub prompt: u64,
    pub cached: u64,
    pub output: u64,
    /// Computed in prefill, what was computed again after preemptions included.
    pub prefilled: u64,
    /// Loaded from below in place of being computed.
    pub loaded: u64,
    /// `cached / prompt`.
    pub hit_rate: f64,
    /// Share of the prompts' tokens that some engine was believed to hold when they were placed, and that the chosen one was;
    /// `None` where nobody knows of caches.
    #[serde(default)]
    pub held_by_fleet: Option<f64>,
    #[serde(default)]
    pub held_where_placed: Option<f64>,
    /// `hit_rate` of each request, averaged.
    pub hit_rate_mean_of_requests: f64,
    pub output_per_s: f64,
    pub prompt_per_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassFigures {
    /// All that have ended: answered, refused, failed.
    pub requests: u64,
    /// Before an engine took them.
    pub refused: u64,
    /// Ended without an answer after they were accepted.
    #[serde(default)]
    pub failed: u64,
    pub ttft_ms: Summary,
    pub tpot_ms: Summary,
    /// Share of arrivals whose answer met both targets; refused and failed ones did not.
    pub attainment: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionFigures {
    pub requests: u64,
    pub completed: u64,
    /// Of the prompts' tokens, those that engines had.
    pub hit_rate: f64,
    pub ttft_ms: Summary,
    /// Share of arrivals whose answer met both targets.
    pub attainment: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceFigures {
    /// `unified`, `prefill` or `decode`.
    pub role: String,
    pub requests: u64,
    /// Of all requests.
    pub share: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub prefilled_tokens: u64,
    pub output_tokens: u64,
    pub busy_share: f64,
    pub preemptions: u64,
}

impl Report {
    /// Of a run in which nothing happened.
    #[must_use]
    pub fn empty() -> Self {
        Report {
            format: FORMAT,
            notes: Vec::new(),
            setup: Setup::default(),
            requests: Requests::default(),
            duration_s: 0.0,
            ttft_ms: Summary::default(),
            itl_ms: Summary::default(),
            tpot_ms: Summary::default(),
            e2e_ms: Summary::default(),
            tokens: Tokens::default(),
            gpu_hours: 0.0,
            busy_share: 0.0,
            prefill_share: 0.0,
            preemptions: 0,
            moves: MoveFigures::default(),
            classes: BTreeMap::new(),
            regions: BTreeMap::new(),
            instances: Vec::new(),
            over_time: Columns::default(),
            bucket_map: BucketMap::default(),
        }
    }

    /// As a file. Nine digits of every fraction: more is not known, and these are read back as they were.
    #[must_use]
    pub fn to_json(&self) -> String {
        rounded(serde_json::to_value(self).unwrap_or_default())
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is none, or of another format.
    pub fn from_json(text: &str) -> Result<Report, String> {
        let report: Report = serde_json::from_str(text).map_err(|error| format!("not a report: {error}"))?;
        if report.format != FORMAT {
            return Err(format!("a report of format {}; this program reads format {FORMAT}", report.format));
        }
        Ok(report)
    }
}

/// JSON schema of a report, as `docs/reference/report.schema.json` holds it.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(Report).to_value();
    if let Some(table) = schema.as_object_mut() {
        table.insert("title".to_owned(), "plimsoll sim report".into());
    }
    schema
}

/// As text, with nine digits of every fraction.
pub(crate) fn rounded(mut value: Value) -> String {
    round(&mut value);
    let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
    text.push('\n');
    text
}

fn round(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|full| format!("{full:.8e}").parse().ok());
            if let Some(short) = short.and_then(serde_json::Number::from_f64) {
                *number = short;
            }
        }
        _ => {}
    }
}
