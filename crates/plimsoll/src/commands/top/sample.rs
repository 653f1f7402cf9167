//! One look at a gateway: its metrics and its engines at one moment.

use plimsoll_pools::prometheus::samples;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Series {
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineRow {
    pub id: u64,
    pub url: String,
    pub health: String,
    pub requests: u64,
    pub prefill_tokens: u64,
    pub kv_tokens: u64,
    /// `None`: it does not say.
    pub kv_capacity: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Sample {
    metrics: BTreeMap<String, Vec<Series>>,
    pub engines: Vec<EngineRow>,
    pub at: Instant,
}

impl Sample {
    pub(super) fn read(metrics: &str, engines: &Value, at: Instant) -> Sample {
        let mut all: BTreeMap<String, Vec<Series>> = BTreeMap::new();
        for sample in samples(metrics) {
            let label = |name: &str| Some((name.to_owned(), sample.label(name)?.into_owned()));
            let labels = sample.labels().filter_map(|(name, _)| label(name)).collect();
            all.entry(sample.name.to_owned()).or_default().push(Series { labels, value: sample.value });
        }
        let engines = engines["engines"].as_array().into_iter().flatten().map(engine).collect();
        Sample { metrics: all, engines, at }
    }

    /// Every series of a metric; counters by their exposed name.
    pub(super) fn all(&self, name: &str) -> &[Series] {
        self.metrics.get(name).map_or(&[], Vec::as_slice)
    }

    /// Sum of those series of a metric that have this label; `None` where there is none.
    pub(super) fn sum(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        let chosen = self.all(name).iter().filter(|series| label.is_empty() || series.label(label) == value);
        chosen.map(|series| series.value).reduce(|a, b| a + b)
    }
}

fn engine(engine: &Value) -> EngineRow {
    let ranks = engine["state"]["ranks"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |name: &str| ranks.iter().filter_map(|rank| rank[name].as_u64()).sum();
    let capacity: Option<Vec<u64>> = ranks.iter().map(|rank| rank["capacity_kv_tokens"].as_u64()).collect();
    let draining = engine["state"]["draining"] == true;
    EngineRow {
        id: engine["id"].as_u64().unwrap_or(0),
        url: engine["url"].as_str().unwrap_or("").to_owned(),
        health: if draining { "draining" } else { engine["state"]["health"].as_str().unwrap_or("unknown") }.to_owned(),
        requests: sum("requests"),
        prefill_tokens: sum("uncached_prefill_tokens"),
        kv_tokens: sum("reserved_kv_tokens"),
        kv_capacity: capacity.filter(|ranks| !ranks.is_empty()).map(|ranks| ranks.iter().sum()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metrics_and_engines_are_read() {
        let text =
            "# HELP a b\na_total{x=\"1\",y=\"q\\\"}, \"} 3\na_total{x=\"2\"} 4.5\nplain 7\nbroken{x=\"1 2\n# EOF\n";
        let engines = json!({"engines": [
            {"id": 3, "url": "http://e", "state": {"health": "healthy", "draining": false, "ranks": [
                {"requests": 1, "uncached_prefill_tokens": 5, "reserved_kv_tokens": 7, "capacity_kv_tokens": 10},
                {"requests": 2, "uncached_prefill_tokens": 6, "reserved_kv_tokens": 8, "capacity_kv_tokens": 10}]}},
            {"id": 4, "url": "http://f", "state": null}]});
        let sample = Sample::read(text, &engines, Instant::now());
        assert_eq!(sample.sum("a_total", "", ""), Some(7.5));
        assert_eq!(sample.sum("a_total", "x", "2"), Some(4.5));
        assert_eq!(sample.all("a_total")[0].label("y"), "q\"}, ");
        assert_eq!((sample.sum("plain", "", ""), sample.sum("absent", "", "")), (Some(7.0), None));
        let engine = &sample.engines[0];
        assert_eq!(
            (engine.requests, engine.prefill_tokens, engine.kv_tokens, engine.kv_capacity),
            (3, 11, 15, Some(20))
        );
        assert_eq!((sample.engines[1].health.as_str(), sample.engines[1].kv_capacity), ("unknown", None));
    }
}
