//! `/metrics` in Prometheus text, under SGLang's names, for what this engine really has.

use super::State;
use crate::stats::{BUCKETS_S, Histogram};
use axum::http::header;
use axum::response::IntoResponse;
use std::fmt::Write as _;

pub(crate) fn handle(state: &State) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(state))
}

struct Page<'a> {
    out: String,
    model: &'a str,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP sglang:{name} {help}\n# TYPE sglang:{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(
            self.out,
            "sglang:{name}{{model_name=\"{}\",engine_type=\"unified\",dp_rank=\"0\"{labels}}} {value}",
            self.model
        );
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut total = 0;
        for (bound, count) in BUCKETS_S.iter().zip(histogram.counts) {
            total += count;
            self.sample(&format!("{name}_bucket"), &format!(",le=\"{bound}\""), total as f64);
        }
        self.sample(&format!("{name}_bucket"), ",le=\"+Inf\"", histogram.count() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum_s);
        self.sample(&format!("{name}_count"), "", histogram.count() as f64);
    }
}

fn text(state: &State) -> String {
    let stats = state.engine.handle().stats();
    let size = state.engine.size();
    let model = state.config.model_name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page = Page { out: String::with_capacity(8192), model: &model };
    let page_tokens = size.page_tokens;
    let used = (stats.held_pages * page_tokens) as f64;
    let total = size.kv_tokens as f64;
    let evictable = (stats.idle_cached_pages * page_tokens) as f64;
    let gauges = [
        ("num_running_reqs", "Requests in the running batch", stats.running as f64),
        ("num_queue_reqs", "Requests in the waiting queue", stats.waiting as f64),
        ("num_used_tokens", "KV tokens held by requests", used),
        ("kv_used_tokens", "KV tokens held by requests", used),
        ("kv_evictable_tokens", "KV tokens cached and held by nobody", evictable),
        ("kv_available_tokens", "KV tokens free", total - used - evictable),
        ("token_usage", "Share of KV tokens held by requests", used / total),
        ("full_token_usage", "Share of KV tokens held by requests", used / total),
        ("max_total_num_tokens", "KV tokens in all", total),
        ("page_size", "Tokens per KV page", page_tokens as f64),
        ("num_pages", "KV pages", stats.total_pages as f64),
        ("context_len", "Context length", state.context_tokens as f64),
        ("gen_throughput", "Generated tokens per second", stats.generation_rate),
        ("cache_hit_rate", "Share of prompt tokens from the cache since the start", stats.hit_rate()),
    ];
    for (name, help, value) in gauges {
        page.one(name, "gauge", help, value);
    }
    let counters = [
        ("prompt_tokens_total", "Prompt tokens of prefilled requests", stats.prompt_tokens),
        ("generation_tokens_total", "Generated tokens", stats.generated_tokens),
        ("num_requests_total", "Requests", stats.requests),
        ("num_aborted_requests_total", "Requests aborted or left by their reader", stats.aborted),
        ("num_retracted_requests_total", "Preemptions", stats.retractions),
        ("evicted_tokens_total", "KV tokens evicted from the cache", stats.evicted_pages * page_tokens as u64),
    ];
    for (name, help, value) in counters {
        page.one(name, "counter", help, value as f64);
    }
    page.head("cached_tokens_total", "counter", "Prompt tokens from the cache");
    page.sample("cached_tokens_total", ",cache_source=\"device\"", stats.cached_tokens as f64);
    page.sample("cached_tokens_total", ",cache_source=\"total\"", stats.cached_tokens as f64);
    page.head(
        "prefill_effective_tokens_total",
        "counter",
        "Prompt tokens by where they came from, without recomputation",
    );
    page.sample("prefill_effective_tokens_total", ",mode=\"input\"", stats.computed_prompt_tokens as f64);
    page.sample("prefill_effective_tokens_total", ",mode=\"device_hit\"", stats.cached_tokens as f64);
    page.histogram("time_to_first_token_seconds", "Arrival to first token", &stats.ttft);
    page.histogram("inter_token_latency_seconds", "Between tokens of a request", &stats.itl);
    page.histogram("e2e_request_latency_seconds", "Arrival to last token", &stats.e2e);
    page.histogram("queue_time_seconds", "Arrival to first admission", &stats.queue_time);
    page.out
}
