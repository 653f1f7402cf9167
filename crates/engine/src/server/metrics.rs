//! `/metrics` in Prometheus text, under SGLang's names, for what this engine really has.

use super::State;
use super::bootstrap::role;
use crate::disagg::stats::{Buckets, TransferStats};
use crate::kv_events::publish::StreamStats;
use crate::stats::{BUCKETS_S, Histogram, Stats};
use axum::http::header;
use axum::response::IntoResponse;
use std::fmt::Write as _;

mod offload;

pub(crate) fn handle(state: &State) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(state))
}

struct Page<'a> {
    out: String,
    model: &'a str,
    role: &'a str,
    ranks: &'a [Stats],
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, rank: usize, labels: &str, value: f64) {
        let Page { model, role, .. } = self;
        let _ = writeln!(
            self.out,
            "{name}{{model_name=\"{model}\",engine_type=\"{role}\",dp_rank=\"{rank}\"{labels}}} {value}"
        );
    }

    /// One sample per rank.
    fn each(&mut self, name: &str, labels: &str, value: impl Fn(&Stats) -> f64) {
        for (rank, stats) in self.ranks.iter().enumerate() {
            self.sample(name, rank, labels, value(stats));
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Fn(&Stats) -> f64) {
        self.head(name, kind, help);
        self.each(name, "", value);
    }

    /// What the ranks have together.
    fn joint(&mut self, name: &str, kind: &str, help: &str, value: impl Fn(&Stats) -> f64) {
        self.head(name, kind, help);
        let (Page { model, role, .. }, sum) = (&*self, self.ranks.iter().map(value).sum::<f64>());
        let line = format!("{name}{{model_name=\"{model}\",engine_type=\"{role}\"}} {sum}\n");
        self.out.push_str(&line);
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&Stats) -> Histogram) {
        let ranks: Vec<Histogram> = self.ranks.iter().map(of).collect();
        self.histograms(name, help, &ranks);
    }

    /// One histogram per rank.
    fn histograms(&mut self, name: &str, help: &str, ranks: &[Histogram]) {
        self.head(name, "histogram", help);
        for (rank, histogram) in ranks.iter().enumerate() {
            let mut total = 0;
            for (bound, count) in BUCKETS_S.iter().zip(histogram.counts) {
                total += count;
                self.sample(&format!("{name}_bucket"), rank, &format!(",le=\"{bound}\""), total as f64);
            }
            self.sample(&format!("{name}_bucket"), rank, ",le=\"+Inf\"", histogram.count() as f64);
            self.sample(&format!("{name}_sum"), rank, "", histogram.sum_s);
            self.sample(&format!("{name}_count"), rank, "", histogram.count() as f64);
        }
    }
}

impl Page<'_> {
    fn buckets(&mut self, name: &str, help: &str, buckets: &Buckets) {
        let name = format!("sglang:{name}");
        self.head(&name, "histogram", help);
        let mut total = 0;
        let bounds = buckets.bounds.iter().map(f64::to_string).chain(std::iter::once("+Inf".to_owned()));
        for (bound, count) in bounds.zip(&buckets.counts) {
            total += count;
            self.sample(&format!("{name}_bucket"), 0, &format!(",le=\"{bound}\""), total as f64);
        }
        self.sample(&format!("{name}_sum"), 0, "", buckets.sum);
        self.sample(&format!("{name}_count"), 0, "", total as f64);
    }
}

type Reading<'a> = &'a dyn Fn(&Stats) -> f64;

fn text(state: &State) -> String {
    let ranks = state.engine.handle().stats();
    let size = state.engine.size();
    let model = state.config.model_name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page =
        Page { out: String::with_capacity(8192), model: &model, role: role(state).engine_type(), ranks: &ranks };
    let page_tokens = size.page_tokens;
    let total = size.kv_tokens as f64;
    let used = |stats: &Stats| (stats.held_pages * page_tokens) as f64;
    let evictable = |stats: &Stats| (stats.idle_cached_pages * page_tokens) as f64;
    let gauges: [(&str, &str, Reading<'_>); 14] = [
        ("num_running_reqs", "Requests in the running batch", &|s| s.running as f64),
        ("num_queue_reqs", "Requests in the waiting queue", &|s| s.waiting as f64),
        ("num_used_tokens", "KV tokens held by requests", &used),
        ("kv_used_tokens", "KV tokens held by requests", &used),
        ("kv_evictable_tokens", "KV tokens cached and held by nobody", &evictable),
        ("kv_available_tokens", "KV tokens free", &|s| total - used(s) - evictable(s)),
        ("token_usage", "Share of KV tokens held by requests", &|s| used(s) / total),
        ("full_token_usage", "Share of KV tokens held by requests", &|s| used(s) / total),
        ("max_total_num_tokens", "KV tokens in all", &|_| total),
        ("page_size", "Tokens per KV page", &|_| page_tokens as f64),
        ("num_pages", "KV pages", &|s| s.total_pages as f64),
        ("context_len", "Context length", &|_| state.context_tokens as f64),
        ("gen_throughput", "Generated tokens per second", &|s| s.generation_rate),
        ("cache_hit_rate", "Share of prompt tokens from the cache since the start", &Stats::hit_rate),
    ];
    for (name, help, value) in gauges {
        page.one(&format!("sglang:{name}"), "gauge", help, value);
    }
    let counters: [(&str, &str, Reading<'_>); 6] = [
        ("prompt_tokens_total", "Prompt tokens of prefilled requests", &|s| s.prompt_tokens as f64),
        ("generation_tokens_total", "Generated tokens", &|s| s.generated_tokens as f64),
        ("num_requests_total", "Requests", &|s| s.requests as f64),
        ("num_aborted_requests_total", "Requests aborted or left by their reader", &|s| s.aborted as f64),
        ("num_retracted_requests_total", "Preemptions", &|s| s.retractions as f64),
        ("evicted_tokens_total", "KV tokens evicted from the cache", &|s| {
            (s.evicted_pages * page_tokens as u64) as f64
        }),
    ];
    for (name, help, value) in counters {
        page.one(&format!("sglang:{name}"), "counter", help, value);
    }
    let cached = |s: &Stats| s.cached_tokens as f64;
    page.head("sglang:cached_tokens_total", "counter", "Prompt tokens from the cache");
    let host = |s: &Stats| s.host_tokens as f64;
    page.each("sglang:cached_tokens_total", ",cache_source=\"device\"", |s| cached(s) - host(s));
    page.each("sglang:cached_tokens_total", ",cache_source=\"host\"", host);
    page.each("sglang:cached_tokens_total", ",cache_source=\"total\"", cached);
    page.head(
        "sglang:prefill_effective_tokens_total",
        "counter",
        "Prompt tokens by where they came from, without recomputation",
    );
    page.each("sglang:prefill_effective_tokens_total", ",mode=\"input\"", |s| s.computed_prompt_tokens as f64);
    page.each("sglang:prefill_effective_tokens_total", ",mode=\"device_hit\"", |s| cached(s) - host(s));
    page.each("sglang:prefill_effective_tokens_total", ",mode=\"host_hit\"", host);
    page.histogram("sglang:time_to_first_token_seconds", "Arrival to first token", |s| s.ttft);
    page.histogram("sglang:inter_token_latency_seconds", "Between tokens of a request", |s| s.itl);
    page.histogram("sglang:e2e_request_latency_seconds", "Arrival to last token", |s| s.e2e);
    page.histogram("sglang:queue_time_seconds", "Arrival to first admission", |s| s.queue_time);
    scheduling(&mut page);
    lockstep(&mut page);
    offload::write(&mut page, &size);
    if let Some(streams) = &state.kv_events {
        kv_events(&mut page, &streams.stats());
    }
    if let Some(service) = &state.disagg {
        legs(&mut page, &service.context().stats.lock());
    }
    page.out
}

/// What it costs to keep the schedule, and whom it turned away.
fn scheduling(page: &mut Page<'_>) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    page.joint(
        "plimsoll_engine_loop_cpu_seconds_total",
        "counter",
        "Processor time of the step loop, which steps all ranks, outside the model and the sampling",
        |s| seconds(s.loop_cpu_ns),
    );
    let counters: [(&str, &str, Reading<'_>); 5] = [
        ("steps_total", "Steps in which this rank computed anything", &|s| s.steps as f64),
        ("scheduling_seconds_total", "Time of steps outside the model and the sampling", &|s| seconds(s.scheduling_ns)),
        (
            "delivery_cpu_seconds_total",
            "Processor time of the task that brings tokens from the step loop to their readers",
            &|s| seconds(s.delivery_cpu_ns),
        ),
        ("sampling_seconds_total", "Time spent choosing tokens", &|s| seconds(s.sampling_ns)),
        ("refused_requests_total", "Requests turned away: queue full, late, displaced, too long", &|s| {
            s.refused as f64
        }),
    ];
    for (name, help, value) in counters {
        page.one(&format!("plimsoll_engine_{name}"), "counter", help, value);
    }
}

/// What SGLang's prefill and decode engines say of their transfers. Those of all ranks count under rank 0.
fn legs(page: &mut Page<'_>, transfers: &TransferStats) {
    let gauges: [(&str, &str, Reading<'_>); 4] = [
        ("num_prefill_bootstrap_queue_reqs", "Prefill legs that wait for decode", &|s| s.legs.prefill_bootstrap as f64),
        ("num_prefill_inflight_queue_reqs", "Computed prefill legs on their way", &|s| s.legs.prefill_inflight as f64),
        ("num_decode_prealloc_queue_reqs", "Decode legs that wait for prefill or for pages", &|s| {
            s.legs.decode_prealloc as f64
        }),
        ("num_decode_transfer_queue_reqs", "Decode legs whose pages are on their way", &|s| {
            s.legs.decode_transfer as f64
        }),
    ];
    for (name, help, value) in gauges {
        page.one(&format!("sglang:{name}"), "gauge", help, value);
    }
    let counters = [
        ("num_bootstrap_failed_reqs_total", "Legs that did not meet", transfers.bootstrap_failed),
        ("num_transfer_failed_reqs_total", "Legs whose transfer failed", transfers.transfer_failed),
    ];
    for (name, help, value) in counters {
        page.head(&format!("sglang:{name}"), "counter", help);
        page.sample(&format!("sglang:{name}"), 0, "", value as f64);
    }
    page.buckets("kv_transfer_speed_gb_s", "Bytes of pages over the time they took", &transfers.speed_gb_s);
    page.buckets("kv_transfer_latency_ms", "First page to last word", &transfers.latency_ms);
    page.buckets("kv_transfer_bootstrap_ms", "Arrival to both legs being there", &transfers.bootstrap_ms);
    page.buckets("kv_transfer_alloc_ms", "Both legs there to decode having pages", &transfers.alloc_ms);
    page.buckets("kv_transfer_total_mb", "Pages of one request", &transfers.total_mb);
}

/// What no stock engine says: where the time of ranks that step together goes.
fn lockstep(page: &mut Page<'_>) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let counters: [(&str, &str, Reading<'_>); 5] = [
        ("joint_steps_total", "Steps that all ranks took together", &|s| s.joint_steps as f64),
        ("rank_busy_seconds_total", "Time of the rank's own in joint steps", &|s| seconds(s.busy_ns)),
        ("rank_idle_seconds_total", "Time the rank waited for the slowest one in joint steps", &|s| seconds(s.idle_ns)),
        ("timing_late_steps_total", "Joint steps that were not done when timing mode wanted", &|s| s.late_steps as f64),
        ("timing_lost_seconds_total", "Time that timing mode gave up catching up", &|s| seconds(s.lost_ns)),
    ];
    for (name, help, value) in counters {
        page.one(&format!("plimsoll_engine_{name}"), "counter", help, value);
    }
    let name = "plimsoll_engine_timing_late_ratio";
    page.one(name, "gauge", "Share of joint steps that were late since the start", |s| {
        if s.joint_steps == 0 { 0.0 } else { s.late_steps as f64 / s.joint_steps as f64 }
    });
}

/// The stream of KV events, which no stock engine counts.
fn kv_events(page: &mut Page<'_>, streams: &[StreamStats]) {
    /// Labels and value of one sample.
    type Value<'a> = (&'a str, fn(&StreamStats) -> u64);
    let rows: [(&str, &str, &str, &[Value<'_>]); 5] = [
        ("batches_total", "counter", "Batches of KV events sent", &[("", |s| s.batches)]),
        ("total", "counter", "KV events sent", &[("", |s| s.events)]),
        (
            "dropped_batches_total",
            "counter",
            "Batches of KV events lost: for all because the sender fell behind, or for one slow subscriber",
            &[(",reason=\"queue\"", |s| s.dropped_queue), (",reason=\"subscriber\"", |s| s.dropped_subscriber)],
        ),
        ("subscribers", "gauge", "Subscribers to KV events", &[("", |s| s.subscribers as u64)]),
        ("replays_total", "counter", "Requests to the replay socket", &[("", |s| s.replays)]),
    ];
    for (name, kind, help, values) in rows {
        let name = format!("plimsoll_engine_kv_events_{name}");
        page.head(&name, kind, help);
        for (labels, value) in values {
            for (rank, stats) in streams.iter().enumerate() {
                page.sample(&name, rank, labels, value(stats) as f64);
            }
        }
    }
}
