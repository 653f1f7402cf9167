//! The funnel as operators and Prometheus see it.

use super::Funnels;
use super::labels::{Cell, CellCause, CellLayer, ModelTier, ModelTimes, ModelWhy};
use crate::metrics::{Metrics, ModelLabel};
use plimsoll_cache::funnel::{CellKey, FunnelReport, Gain, Layer, Loss, Sums};
use plimsoll_core::Nanos;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;

/// Of which tier reported tokens are.
const TIERS: [&str; 3] = ["device", "host", "storage"];

fn sums(sums: &Sums) -> Value {
    let object = |pairs: Vec<(&'static str, u64)>| -> Map<String, Value> {
        pairs.into_iter().map(|(word, tokens)| (word.to_owned(), json!(tokens))).collect()
    };
    json!({
        "requests": sums.requests,
        "above_model_requests": sums.above_model,
        "tokens": object(Layer::ALL.iter().map(|layer| (layer.as_str(), sums[*layer])).collect()),
        "lost": object(Loss::ALL.iter().map(|loss| (loss.as_str(), sums[*loss])).collect()),
        "gained": object(Gain::ALL.iter().map(|gain| (gain.as_str(), sums[*gain])).collect()),
        "actual_by_tier": object(TIERS.iter().zip(&sums.tiers).map(|(tier, tokens)| (*tier, *tokens)).collect()),
    })
}

fn total(report: &FunnelReport, of: impl Fn(&(CellKey, Sums, Sums)) -> Sums) -> Sums {
    report.cells.iter().fold(Sums::default(), |mut all, cell| {
        all += &of(cell);
        all
    })
}

fn model(name: &str, report: &FunnelReport) -> Value {
    let cells: Vec<Value> = report
        .cells
        .iter()
        .map(|(key, ever, recent)| {
            json!({ "class": key.class, "tenant": &*key.tenant, "ever": sums(ever), "recent": sums(recent) })
        })
        .collect();
    let curve: Vec<Value> = report
        .curve
        .iter()
        .map(|(eighths, ever, recent)| {
            let times = *eighths as f64 / 8.0;
            let capacity = (report.capacity_tokens as f64 * times) as u64;
            json!({ "times": times, "capacity_tokens": capacity, "ever_tokens": ever, "recent_tokens": recent })
        })
        .collect();
    let unmeasured: Map<String, Value> =
        report.unmeasured.iter().map(|(why, count)| (why.as_str().to_owned(), json!(count))).collect();
    json!({
        "model": name,
        "grain_tokens": report.grain_tokens,
        "capacity_tokens": report.capacity_tokens,
        "ranks": report.ranks,
        "ranks_without_capacity": report.ranks_without_capacity,
        "window_s": report.window.as_secs_f64(),
        "reach_s": report.reach.as_secs_f64(),
        "bounded": report.bounded,
        "pool_blocks": report.pool_blocks,
        "rank_blocks": report.rank_blocks,
        "memory_bytes": report.bytes,
        "pending": report.pending,
        "renamed": report.renamed,
        "not_measured": unmeasured,
        "ever": sums(&total(report, |cell| cell.1)),
        "recent": sums(&total(report, |cell| cell.2)),
        "curve": curve,
        "cells": cells,
    })
}

/// `GET /admin/funnel`.
pub(crate) fn json(funnels: &Funnels, now: Nanos) -> Value {
    let models: Vec<Value> = funnels.reports(now).iter().map(|(name, report)| model(name, report)).collect();
    json!({ "enabled": funnels.enabled(), "queue_lost": funnels.lost(), "models": models })
}

impl Funnels {
    /// Brings the metrics up to date. Counters are set, not counted: the figures are kept in one place.
    pub(crate) fn render(&self, now: Nanos, metrics: &Metrics) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        set(&metrics.funnel_queue_lost, self.lost());
        for (name, report) in self.reports(now) {
            let label = ModelLabel { model: name.clone() };
            for (key, ever, _) in &report.cells {
                render_cell(metrics, &name, key, ever);
            }
            let all = total(&report, |cell| cell.1);
            set(&metrics.funnel_above_model.get_or_create(&label), all.above_model);
            for (tier, tokens) in TIERS.into_iter().zip(all.tiers) {
                set(&metrics.funnel_tiers.get_or_create(&ModelTier { model: name.clone(), tier }), tokens);
            }
            for (why, count) in &report.unmeasured {
                let labels = ModelWhy { model: name.clone(), why: why.as_str() };
                set(&metrics.funnel_not_measured.get_or_create(&labels), *count);
            }
            for (eighths, ever, _) in &report.curve {
                let labels = ModelTimes { model: name.clone(), times: (*eighths as f64 / 8.0).to_string() };
                set(&metrics.funnel_curve.get_or_create(&labels), *ever);
            }
            metrics.funnel_capacity.get_or_create(&label).set(gauge(report.capacity_tokens));
            metrics.funnel_reach.get_or_create(&label).set(report.reach.as_secs_f64());
            metrics.funnel_memory.get_or_create(&label).set(gauge(report.bytes as u64));
            metrics.funnel_bounded.get_or_create(&label).set(i64::from(report.bounded));
        }
    }
}

fn set(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}

fn render_cell(metrics: &Metrics, model: &str, key: &CellKey, ever: &Sums) {
    let (model, class, tenant) = (model.to_owned(), key.class.as_str(), key.tenant.to_string());
    let cause = |cause| CellCause { model: model.clone(), class, tenant: tenant.clone(), cause };
    for loss in Loss::ALL {
        set(&metrics.funnel_lost.get_or_create(&cause(loss.as_str())), ever[loss]);
    }
    for gain in Gain::ALL {
        set(&metrics.funnel_gained.get_or_create(&cause(gain.as_str())), ever[gain]);
    }
    for layer in Layer::ALL {
        let labels = CellLayer { model: model.clone(), class, tenant: tenant.clone(), layer: layer.as_str() };
        set(&metrics.funnel_tokens.get_or_create(&labels), ever[layer]);
    }
    set(&metrics.funnel_requests.get_or_create(&Cell { model, class, tenant }), ever.requests);
}
