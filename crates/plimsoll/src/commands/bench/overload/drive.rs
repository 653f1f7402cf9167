//! Sends every request when the plan says so, and takes down what came of it.

use super::OverloadArgs;
use super::entrance::Entrance;
use super::fleet::{Fleet, tenant_key};
use crate::commands::demo::client::{Client, NoAnswer};
use crate::commands::demo::stream::{self, Answer};
use crate::{Failure, output};
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_sim::overload::{Ask, Done, Outcome, PATIENCE_S, Plan, repeat_after_s};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

pub(super) struct Drive {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    entrance: Entrance,
    time_scale: f64,
    repeats: u32,
    bar: Option<ProgressBar>,
}

impl Drive {
    pub(super) fn new(args: &OverloadArgs, fleet: &Fleet, entrance: Entrance) -> Result<Self, Failure> {
        let client = Client::new(fleet.gateway_url())?;
        let shared = Shared { client, entrance, time_scale: args.time_scale, repeats: 0, bar: None };
        Ok(Drive { shared: Arc::new(shared) })
    }

    /// Runs the plan to the end of its last request.
    pub(super) async fn run(mut self, plan: &Plan) -> Vec<Done> {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.repeats = plan.repeats;
            shared.bar = bar(plan.asks.len());
        }
        let begun = Instant::now();
        let mut running = JoinSet::new();
        let mut done = Vec::with_capacity(plan.asks.len());
        let mut told = Instant::now();
        for (index, ask) in plan.asks.iter().enumerate() {
            let due = begun + self.wall(ask.at);
            tokio::time::sleep_until(due.into()).await;
            let (shared, ask) = (Arc::clone(&self.shared), ask.clone());
            running.spawn(async move {
                let (outcome, sent) = shared.one(&ask, begun, due).await;
                Done { ask: index, outcome, sent }
            });
            while let Some(ended) = running.try_join_next() {
                done.extend(ended.ok());
            }
            self.tell(&done, running.len(), plan.asks.len(), &mut told);
        }
        while let Some(ended) = running.join_next().await {
            done.extend(ended.ok());
            self.tell(&done, running.len(), plan.asks.len(), &mut told);
        }
        if let Some(bar) = &self.shared.bar {
            bar.finish_and_clear();
        }
        done
    }

    fn tell(&self, done: &[Done], in_flight: usize, all: usize, told: &mut Instant) {
        match &self.shared.bar {
            Some(bar) => {
                bar.set_position(done.len() as u64);
                bar.set_message(format!("{in_flight} in flight"));
            }
            None if told.elapsed() >= Duration::from_secs(10) => {
                *told = Instant::now();
                output::note(&format!("plimsoll bench: {} of {all} answered, {in_flight} in flight", done.len()));
            }
            None => {}
        }
    }

    fn wall(&self, scenario_s: f64) -> Duration {
        Duration::from_secs_f64(scenario_s / self.shared.time_scale)
    }
}

fn bar(requests: usize) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(requests as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} answered, {msg}") {
            bar.set_style(style);
        }
        bar
    })
}

impl Shared {
    /// One request with its repetitions.
    async fn one(&self, ask: &Ask, begun: Instant, due: Instant) -> (Outcome, u32) {
        let patience = Duration::from_secs_f64(PATIENCE_S / self.time_scale);
        let body = body(ask);
        let mut sent = 0;
        loop {
            let left = patience.saturating_sub(due.elapsed());
            let outcome = if self.entrance.admits(ask, begun.elapsed().as_secs_f64() * self.time_scale) {
                let answered = tokio::time::timeout(left, self.send(ask, body.clone(), sent, due)).await;
                answered.unwrap_or(Outcome::GaveUp)
            } else {
                Outcome::Refused { code: "entrance".to_owned(), after_s: self.since(due) }
            };
            sent += 1;
            if !matches!(outcome, Outcome::Refused { .. }) || sent > self.repeats {
                return (outcome, sent);
            }
            tokio::time::sleep(Duration::from_secs_f64(repeat_after_s(sent) / self.time_scale)).await;
        }
    }

    async fn send(&self, ask: &Ask, body: Bytes, repetition: u32, due: Instant) -> Outcome {
        let promised_ms = (ask.promised_s / self.time_scale * 1e3 - due.elapsed().as_secs_f64() * 1e3).max(1.0);
        let mut headers = vec![
            ("authorization", format!("Bearer {}", tenant_key(ask.tenant))),
            ("x-slo-ttft-ms", format!("{promised_ms:.0}")),
        ];
        if repetition > 0 {
            headers.push(("x-stainless-retry-count", repetition.to_string()));
        }
        let sent = Instant::now();
        let (response, lease) = match self.client.post_with("/v1/completions", &headers, body).await {
            Ok(answered) => answered,
            Err(NoAnswer { code, .. }) => return Outcome::Failed { code: code.to_owned() },
        };
        match stream::read(response, sent).await {
            Ok(answer) => {
                self.client.give_back(lease);
                self.served(ask, &answer, sent, due)
            }
            Err(refusal) if refusal.retry_after.is_some() => {
                Outcome::Refused { code: refusal.code, after_s: self.since(due) }
            }
            Err(refusal) => Outcome::Failed { code: refusal.code },
        }
    }

    fn served(&self, ask: &Ask, answer: &Answer, sent: Instant, due: Instant) -> Outcome {
        let before = sent.saturating_duration_since(due);
        let ttft_s = (before + answer.ttft).as_secs_f64() * self.time_scale;
        let cached = answer.usage.and_then(|usage| usage.cached_tokens()).unwrap_or(0);
        let prompt = answer.usage.map_or(ask.prompt_tokens, |usage| usage.prompt_tokens);
        Outcome::Served {
            ttft_s,
            e2e_s: self.since(due),
            uncached_tokens: prompt.saturating_sub(cached),
            output_tokens: answer.usage.map_or(ask.output_tokens, |usage| usage.completion_tokens),
        }
    }

    fn since(&self, due: Instant) -> f64 {
        due.elapsed().as_secs_f64() * self.time_scale
    }
}

/// Token ids: of one session the same at the same place, of two sessions different from the start.
fn body(ask: &Ask) -> Bytes {
    let mut text = String::with_capacity(ask.prompt_tokens as usize * 4 + 200);
    text.push_str(
        "{\"model\":\"plimsoll-tiny\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,",
    );
    let _ = write!(text, "\"temperature\":0,\"max_tokens\":{},\"prompt\":[", ask.output_tokens);
    for at in 0..ask.prompt_tokens {
        let mixed = (ask.session.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let _ = write!(text, "{}{}", if at > 0 { "," } else { "" }, 3 + (mixed >> 40) % 190);
    }
    text.push_str("]}");
    Bytes::from(text)
}
