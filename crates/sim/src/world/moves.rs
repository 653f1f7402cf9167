//! Running requests that move: KV is copied while the source goes on decoding, what has grown meanwhile is copied again, and
//! only the last, small piece stops the stream (Llumnix, OSDI'24: at most 3 stages, the last one of few blocks).
//!
//! Who moves is a [`Mover`]'s decision. A move is charged with all it costs: the link, the KV in two places, the step in which
//! it leaves, a handshake.

use super::fleet::Engine;
use super::requests::{Stage, request};
use super::{Event, World, precedence};
use crate::engine::Key;
use crate::gateway::Wanted;
use crate::histogram::{Histogram, Summary};
use plimsoll_core::{InstanceId, LegRole, Nanos, Rank, Target};
use plimsoll_load::AttemptEnd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Copies before the one that stops the stream, at most.
const MOST_STAGES: u8 = 3;
/// A rest of so many tokens is copied with the stream stopped.
const LAST_STAGE_TOKENS: u64 = 256;
/// Messages back and forth before the destination goes on.
const HANDSHAKE: Nanos = Nanos(2_000_000);

/// A request that decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    pub key: Key,
    pub target: Target,
    pub kv_tokens: u64,
}

/// One request goes to another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub key: Key,
    pub to: Target,
}

/// Decides who moves.
pub trait Mover: fmt::Debug {
    /// `ranks` is every rank that answers and decodes with the KV tokens in use on it; `under_way` are moving already and not in `running`.
    fn moves(&mut self, now: Nanos, ranks: &[(Target, u64)], running: &[Running], under_way: usize) -> Vec<Move>;
}

/// Evens out KV: from the fullest rank to the emptiest, the request that brings them nearest to each other. The baseline that
/// length buckets have to beat (`workloads.md` section 3).
#[derive(Clone, Copy, Debug)]
pub struct KvBalance {
    /// Nothing moves while the fullest has less than so many times what the emptiest has.
    pub ratio: f64,
    pub most_under_way: usize,
}

impl Default for KvBalance {
    fn default() -> Self {
        KvBalance { ratio: 1.2, most_under_way: 1 }
    }
}

impl Mover for KvBalance {
    fn moves(&mut self, _now: Nanos, ranks: &[(Target, u64)], running: &[Running], under_way: usize) -> Vec<Move> {
        if under_way >= self.most_under_way {
            return Vec::new();
        }
        let fullest = ranks.iter().max_by_key(|(target, tokens)| (*tokens, *target));
        let emptiest = ranks.iter().min_by_key(|(target, tokens)| (*tokens, *target));
        let (Some((from, most)), Some((to, least))) = (fullest, emptiest) else { return Vec::new() };
        if (*most as f64) <= *least as f64 * self.ratio {
            return Vec::new();
        }
        let half = (most - least) / 2;
        let fits = running.iter().filter(|one| one.target == *from && one.kv_tokens <= half);
        let best = fits.max_by_key(|one| (one.kv_tokens, one.key));
        best.map(|one| Move { key: one.key, to: *to }).into_iter().collect()
    }
}

/// What moves cost, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MoveFigures {
    pub moved: u64,
    /// Ended or was preempted before it had moved, or its destination was gone.
    pub aborted: u64,
    pub copied_tokens: u64,
    /// Between the last token at the source and the first at the destination.
    pub pause_ms: Summary,
}

#[derive(Clone, Copy, Debug)]
struct Copying {
    to: Target,
    copied_tokens: u64,
    stage: u8,
    /// It leaves with the end of the step.
    leaves: bool,
}

#[derive(Debug)]
pub(super) struct Moves {
    mover: Option<Box<dyn Mover>>,
    under_way: BTreeMap<Key, Copying>,
    moved: u64,
    aborted: u64,
    copied_tokens: u64,
    pause: Histogram,
}

impl Moves {
    pub(super) fn new(mover: Option<Box<dyn Mover>>) -> Self {
        Moves { mover, under_way: BTreeMap::new(), moved: 0, aborted: 0, copied_tokens: 0, pause: Histogram::default() }
    }

    pub(super) fn figures(&self) -> MoveFigures {
        MoveFigures {
            moved: self.moved,
            aborted: self.aborted,
            copied_tokens: self.copied_tokens,
            pause_ms: self.pause.summary(),
        }
    }

    pub(super) fn paused(&mut self, time: Nanos) {
        self.pause.record(time.0);
    }
}

impl World<'_> {
    pub(super) fn ask_mover(&mut self) {
        let Some(mut mover) = self.moves.mover.take() else { return };
        let (mut ranks, mut running) = (Vec::new(), Vec::new());
        // Engines that prefill only have nobody to give away and cannot go on with anybody.
        let takes = |engine: &Engine| engine.known && engine.up && engine.role != LegRole::Prefill;
        for (id, engine) in self.engines.iter().enumerate().filter(|(_, engine)| takes(engine)) {
            for (at, report) in engine.instance.reports(self.now).enumerate() {
                let target = Target { instance: InstanceId(id as u32), rank: Rank(at as u16) };
                ranks.push((target, report.used_kv_tokens.unwrap_or(0)));
                let of_rank = engine.instance.ranks()[at].decoding();
                let still = of_rank.filter(|(key, _)| !self.moves.under_way.contains_key(key));
                running.extend(still.map(|(key, kv_tokens)| Running { key, target, kv_tokens }));
            }
        }
        let moves = mover.moves(self.now, &ranks, &running, self.moves.under_way.len());
        self.moves.mover = Some(mover);
        for one in moves {
            self.begin_move(one);
        }
    }

    fn begin_move(&mut self, one: Move) {
        let Some(kv_tokens) = self.kv_of(one.key) else { return };
        self.moves.under_way.insert(one.key, Copying { to: one.to, copied_tokens: 0, stage: 0, leaves: false });
        self.copy(one.key, kv_tokens);
    }

    /// What a decoding request holds now; `None` when it does not decode.
    fn kv_of(&mut self, key: Key) -> Option<u64> {
        let target = request(&mut self.requests, key)?.open.target;
        let now = self.now;
        self.engines[target.instance.0 as usize].instance.kv_of(now, target.rank, key)
    }

    /// Sends what is there and was not sent yet.
    fn copy(&mut self, key: Key, kv_tokens: u64) {
        let Some(from) = request(&mut self.requests, key).map(|request| request.open.target) else { return };
        let Some(copying) = self.moves.under_way.get_mut(&key) else { return };
        let rest = kv_tokens.saturating_sub(copying.copied_tokens);
        (copying.copied_tokens, copying.stage) = (kv_tokens, copying.stage + 1);
        self.moves.copied_tokens += rest;
        let at = self.over_network(from, rest);
        self.agenda.put(at, precedence::HANDED, Event::Copied { key });
    }

    /// A copy is through: another one, or the stream stops with the end of this step.
    pub(super) fn copied(&mut self, key: Key) {
        let Some(copying) = self.moves.under_way.get(&key).copied() else { return };
        let Some(kv_tokens) = self.kv_of(key) else { return self.abort(key) };
        if kv_tokens.saturating_sub(copying.copied_tokens) > LAST_STAGE_TOKENS && copying.stage < MOST_STAGES {
            return self.copy(key, kv_tokens);
        }
        let Some(target) = request(&mut self.requests, key).map(|request| request.open.target) else { return };
        if let Some(copying) = self.moves.under_way.get_mut(&key) {
            copying.leaves = true;
        }
        let now = self.now;
        let ends = self.instance(target.instance).cut(now);
        self.announce(target.instance.0, ends);
    }

    fn abort(&mut self, key: Key) {
        if self.moves.under_way.remove(&key).is_some() {
            self.moves.aborted += 1;
        }
    }

    /// A step of an engine is over: whoever is to leave it leaves.
    pub(super) fn let_go(&mut self, id: u32) {
        if self.moves.under_way.is_empty() {
            return;
        }
        let leaving: Vec<(Key, Copying)> =
            self.moves.under_way.iter().filter(|(_, one)| one.leaves).map(|(key, one)| (*key, *one)).collect();
        for (key, copying) in leaving {
            let Some(target) = request(&mut self.requests, key).map(|request| request.open.target) else {
                self.abort(key);
                continue;
            };
            if target.instance.0 == id {
                self.leave(key, target, copying);
            }
        }
    }

    fn leave(&mut self, key: Key, from: Target, copying: Copying) {
        let now = self.now;
        let Some(job) = self.instance(from.instance).take_out(from.rank, key) else { return self.abort(key) };
        self.moves.under_way.remove(&key);
        let Some(request) = request(&mut self.requests, key) else { return };
        let names = request.open.names().to_vec();
        request.attempt = request.attempt.saturating_add(1);
        let role = self.engines[copying.to.instance.0 as usize].role;
        let wanted = Wanted {
            role,
            leg: u8::from(role == LegRole::Decode),
            attempt: request.attempt,
            only: Some(copying.to),
            computed: true,
            max_output_tokens: request.max_output_tokens,
            past: request.past,
            ..Wanted::new(request.number, &names, request.prompt_tokens)
        };
        let up = self.engines[copying.to.instance.0 as usize].up;
        let placed = self.gateway.place(now, &wanted).ok();
        (request.stage, request.generated, request.last_token) = (Stage::Decode, job.generated, now);
        let (mut at, cached) = (now, request.cached_tokens);
        match placed {
            Some(open) if up && open.target.instance == copying.to.instance => {
                request.moved = true;
                let before = std::mem::replace(&mut request.open, open);
                self.gateway.completed(now, &before, cached, None);
                let rest = job.kv_tokens().saturating_sub(copying.copied_tokens);
                self.moves.copied_tokens += rest;
                self.moves.moved += 1;
                at = self.over_network(from, rest) + HANDSHAKE;
            }
            placed => {
                // It stays, with all of its KV.
                self.moves.aborted += 1;
                if let Some(open) = placed {
                    self.gateway.failed(now, &open, AttemptEnd::Cancelled);
                }
            }
        }
        self.agenda.put(at, precedence::HANDED, Event::Handed { key });
    }
}
