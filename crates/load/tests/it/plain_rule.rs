//! Choices on random fleets are those of the plain rule, to the last draw.
//!
//! The scheduler keeps what a choice reads a second time, in a dense list, filters with one comparison, meets hits in
//! passing and works out most numbers only for the record. Here everything is read from what operators see and reckoned
//! as `docs/operating/placement.md` says it, one instance after the other.

use crate::fleet::{MODEL, T0, spec};
use plimsoll_core::{EngineKind, InstanceId, LegRole, LoadReport, Nanos, Rank, RequestId, Target};
use plimsoll_load::place::TIE_FLOOR_S;
use plimsoll_load::place::price::{DECODE_SHARE_S, MOST_PRESSURE, MOST_SHARED_STEPS, STEP_SHARE_S};
use plimsoll_load::{
    Ask, AttemptEnd, Charge, HealthState, HeldTokens, InstanceSpec, InstanceView, PlaceError, Placed, RankLoad, Reason,
    RouteSet, Scheduler, SchedulerConfig, Ticket,
};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

const KINDS: [EngineKind; 3] = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Openai];
const SAME_RATE_FACTOR: f64 = 1.5;
const MEAN_FRESH: Nanos = Nanos::from_millis(100);

/// A rank that may be chosen, as the plain rule sees it.
#[derive(Clone, Copy, Debug)]
struct Plain {
    target: Target,
    score_s: f64,
    wait_s: f64,
    tier: u8,
}

struct Rule {
    config: SchedulerConfig,
    draws: ChaCha8Rng,
    /// In the order they joined.
    specs: Vec<(InstanceId, InstanceSpec)>,
    /// Median prefill rate and mean tokens in front of a rank, and when they were taken.
    mean: Option<(Nanos, (Option<f64>, f64))>,
    /// Of each that is out: requests in flight that were sent there since.
    out: BTreeMap<InstanceId, Vec<Ticket>>,
    /// Those that came back by an answer: no probe is answered here after the first.
    doubted: BTreeSet<InstanceId>,
}

impl Rule {
    /// Who is chosen and why, with all candidates in the order of the fleet.
    fn choose(&mut self, now: Nanos, views: &[InstanceView], ask: &Ask<'_>) -> Option<(Target, Reason, Vec<Plain>)> {
        let (rate, front) = self.mean(now, views);
        let peers = rate.unwrap_or(self.config.assumed_prefill_tokens_per_s);
        let meant = |health: fn(HealthState) -> bool| {
            let fits = |(id, spec): &&(InstanceId, InstanceSpec)| {
                let view = of(views, *id);
                let of_kind = ask.kinds.is_none_or(|kinds| kinds.contains(&spec.kind));
                let in_service = spec.ready && !view.draining && health(view.health);
                in_service && of_kind && spec.role == ask.role && spec.routes.contains(ask.route)
            };
            self.specs.iter().filter(fits).collect::<Vec<_>>()
        };
        let not_tried = |from: Vec<&(InstanceId, InstanceSpec)>| -> Vec<Plain> {
            let left = from.into_iter().filter(|(id, _)| !ask.exclude.contains(id));
            left.flat_map(|(id, spec)| {
                let view = of(views, *id);
                let ranks = view.ranks.iter().take(usize::from(spec.ranks.max(1)));
                ranks.map(|rank| self.plain(spec, view, rank, ask, (peers, front))).collect::<Vec<_>>()
            })
            .collect()
        };
        let open = meant(|health| health == HealthState::Healthy);
        let all = if open.is_empty() {
            let mut out = not_tried(meant(|health| health == HealthState::Ejected));
            // One at a time, until it shows that it lives.
            out.retain(|one| {
                let id = one.target.instance;
                self.doubted.contains(&id) || self.out.get(&id).is_none_or(Vec::is_empty)
            });
            let lived = !not_tried(meant(|health| health != HealthState::Unproven)).is_empty();
            if lived { out } else { not_tried(meant(|health| health == HealthState::Unproven)) }
        } else {
            not_tried(open)
        };
        let best_tier = all.iter().map(|c| c.tier).min()?;
        let choice = self.of_best(&best_tier_first(&all, best_tier));
        Some((choice.0, choice.1, all))
    }

    /// Who is out, and since when anew.
    fn follow(&mut self, views: &[InstanceView]) {
        let is_out = |view: &&InstanceView| view.health == HealthState::Ejected;
        self.doubted.extend(self.out.keys().filter(|id| !is_out(&of(views, **id))));
        self.out.retain(|id, _| is_out(&of(views, *id)));
        for view in views.iter().filter(is_out) {
            self.out.entry(view.id).or_default();
        }
    }

    fn of_best(&mut self, best: &[Plain]) -> (Target, Reason) {
        if let [only] = best {
            return (only.target, Reason::Only);
        }
        let least = best.iter().map(|c| c.score_s).fold(f64::INFINITY, f64::min);
        let bound = least + least * self.config.tie_fraction + TIE_FLOOR_S;
        let tied: Vec<&Plain> = best.iter().filter(|c| c.score_s <= bound).collect();
        match tied[..] {
            [only] => (only.target, Reason::LeastDelay),
            _ => (tied[self.draws.random_range(0..tied.len())].target, Reason::TieDraw),
        }
    }

    fn plain(
        &self,
        spec: &InstanceSpec,
        view: &InstanceView,
        rank: &RankLoad,
        ask: &Ask<'_>,
        mean: (f64, f64),
    ) -> Plain {
        let (peers, front) = mean;
        let target = Target { instance: view.id, rank: rank.rank };
        let prompt = ask.charge.uncached_prefill_tokens;
        let held =
            ask.hits.iter().find(|(holder, _)| *holder == target).map_or(HeldTokens::default(), |(_, held)| *held);
        let device = held.device_tokens.min(prompt);
        let host = held.host_tokens.min(prompt - device);
        let peers_s = 1.0 / peers;
        let own_s = view.prefill_tokens_per_s.map(|rate| 1.0 / rate);
        let differs = |own: &f64| *own > peers_s * SAME_RATE_FACTOR || *own * SAME_RATE_FACTOR < peers_s;
        let per_token = own_s.filter(differs).unwrap_or(peers_s);
        let requests = f64::from(rank.requests) + rank.foreign_requests.unwrap_or(0.0);
        let in_front = rank.uncached_prefill_tokens as f64 + rank.foreign_prefill_tokens.unwrap_or(0.0);
        let prefill = (prompt as f64 - (device + host) as f64) * per_token;
        let load = host as f64 * (1.0 / self.config.assumed_kv_load_tokens_per_s);
        let wait_s = in_front * per_token + load + prefill + requests * DECODE_SHARE_S;
        let sequences = ask.charge.sequences as f64;
        let output = ask.charge.reserved_kv_tokens.saturating_sub(prompt) as f64;
        let steps = (output / sequences).clamp(0.0, MOST_SHARED_STEPS) * sequences;
        let others = requests * (prefill + steps * STEP_SHARE_S);
        let most = spec.context_tokens.unwrap_or(1 << 20) * ask.charge.sequences;
        // What others hold there anyway takes no room of its own.
        let shared = held.shared_tokens.min(device) as f64;
        let wanted = (ask.charge.reserved_kv_tokens.min(most) as f64 - shared).max(0.0);
        let kv = rank.reserved_kv_tokens as f64 + rank.foreign_kv_tokens.unwrap_or(0.0);
        let full = rank.capacity_kv_tokens.is_some_and(|capacity| kv + wanted > capacity as f64);
        let tier = u8::from(view.refusing) * 2 + u8::from(full);
        let per_token = self.config.pressure_weight / (prompt.max(1) as f64);
        let pressure = (per_token * front.min(in_front)).min(MOST_PRESSURE);
        let score_s = wait_s + self.config.others_weight * others + pressure * prefill;
        Plain { target, score_s, wait_s, tier }
    }

    /// The upper median of the rates observed, and the mean of what is in front of those that serve, kept for a while.
    fn mean(&mut self, now: Nanos, views: &[InstanceView]) -> (Option<f64>, f64) {
        if let Some((at, mean)) = self.mean
            && now.since(at) < MEAN_FRESH
        {
            return mean;
        }
        let mut known: Vec<f64> = views.iter().filter_map(|view| view.prefill_tokens_per_s).collect();
        known.sort_by(f64::total_cmp);
        let rate = known.get(known.len() / 2).copied();
        let ranks = self.specs.iter().flat_map(|(id, spec)| {
            let ranks = of(views, *id).ranks.iter().take(usize::from(spec.ranks.max(1)));
            ranks.map(|rank| rank.uncached_prefill_tokens as f64 + rank.foreign_prefill_tokens.unwrap_or(0.0))
        });
        let fronts: Vec<f64> = ranks.collect();
        let mean = (rate, fronts.iter().sum::<f64>() / fronts.len().max(1) as f64);
        self.mean = Some((now, mean));
        mean
    }
}

/// Views come by id.
fn of(views: &[InstanceView], id: InstanceId) -> &InstanceView {
    &views[views.binary_search_by_key(&id, |view| view.id).unwrap()]
}

/// Those of the best tier, in the order in which exchanging each with the first that is not leaves them.
fn best_tier_first(all: &[Plain], best: u8) -> Vec<Plain> {
    let mut order = all.to_vec();
    let mut end = 0;
    for index in 0..order.len() {
        if order[index].tier == best {
            order.swap(index, end);
            end += 1;
        }
    }
    order.truncate(end);
    order
}

fn random_spec(random: &mut SmallRng) -> InstanceSpec {
    let some =
        |random: &mut SmallRng, from: u64, to: u64| random.random_bool(0.7).then(|| random.random_range(from..to));
    InstanceSpec {
        kind: KINDS[random.random_range(0..3)],
        ranks: if random.random_bool(0.7) { 1 } else { random.random_range(0..4) },
        capacity_kv_tokens: some(random, 4_000, 60_000),
        context_tokens: some(random, 1_000, 9_000),
        role: if random.random_bool(0.9) { LegRole::Unified } else { LegRole::Decode },
        routes: if random.random_bool(0.8) { RouteSet::ALL } else { RouteSet::CHAT },
        ready: random.random_bool(0.95),
        ..spec()
    }
}

/// A fleet that is used, reported on, refused by, drained and changed, with a choice between any two of those.
fn run(seed: u64, engines: u32, steps: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let config = SchedulerConfig { seed, tie_fraction: 0.02, record_candidates: 6, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config);
    let draws = ChaCha8Rng::seed_from_u64(seed);
    let mut rule =
        Rule { config, draws, specs: Vec::new(), mean: None, out: BTreeMap::new(), doubted: BTreeSet::new() };
    let mut ids: Vec<InstanceId> = (0..engines).map(InstanceId).collect();
    if random.random_bool(0.5) {
        // Hits are then met out of order.
        ids.reverse();
    }
    let proven = random.random_bool(0.9);
    for &id in &ids {
        let spec = random_spec(&mut random);
        scheduler.add_instance(id, spec.clone());
        rule.specs.push((id, spec));
        if proven && random.random_bool(0.95) {
            scheduler.probe_ok(id, T0);
        }
    }
    let mut now = T0;
    let mut running: Vec<Placed> = Vec::new();
    for step in 0..steps {
        let id = ids[random.random_range(0..ids.len())];
        match random.random_range(0..10) {
            0..3 => {
                let tokens =
                    |random: &mut SmallRng, most| random.random_bool(0.8).then(|| random.random_range(0..most));
                let report = LoadReport {
                    rank: Rank(random.random_range(0..3)),
                    received: now,
                    running_requests: tokens(&mut random, 8),
                    waiting_uncached_tokens: tokens(&mut random, 6_000),
                    used_kv_tokens: tokens(&mut random, 20_000),
                    capacity_kv_tokens: tokens(&mut random, 60_000),
                    ..LoadReport::default()
                };
                scheduler.report(id, report, now);
                scheduler.report(id, report, now);
            }
            3..7 if !running.is_empty() => {
                let placed = running.swap_remove(random.random_range(0..running.len()));
                if random.random_bool(0.8) {
                    scheduler.first_token(placed.ticket, now);
                    scheduler.prefilled(placed.ticket, random.random_range(300..5_000), 0);
                }
                let refused = random.random_bool(0.1);
                let end = if refused { AttemptEnd::Refused { retry_after: None } } else { AttemptEnd::Ok };
                scheduler.settle(placed.ticket, now, end);
                rule.out.values_mut().for_each(|sent| sent.retain(|ticket| *ticket != placed.ticket));
            }
            7 => assert!(scheduler.set_draining(id, random.random_bool(0.2))),
            8 if random.random_bool(0.1) => {
                scheduler.probe_failed(id, now);
                scheduler.probe_failed(id, now);
            }
            8 => {
                let spec = random_spec(&mut random);
                scheduler.update_instance(id, spec.clone());
                rule.specs.iter_mut().filter(|(known, _)| *known == id).for_each(|(_, known)| *known = spec.clone());
            }
            _ => now = now + Nanos::from_millis(random.random_range(0..800)),
        }
        let hit = |rank| Target { instance: InstanceId(random.random_range(0..engines + 3)), rank: Rank(rank) };
        let mut holders: Vec<Target> = [0, 0, 1, 0, 2, 0].map(hit).to_vec();
        holders.sort_unstable();
        holders.dedup();
        let mut held = |target| {
            let (device_tokens, host_tokens) = (random.random_range(0..4_000), random.random_range(0..2_000));
            let shared_tokens = random.random_range(0..3_000);
            (target, HeldTokens { device_tokens, host_tokens, shared_tokens })
        };
        let hits: Vec<_> = holders.into_iter().map(&mut held).collect();
        let exclude = [ids[random.random_range(0..ids.len())]];
        let prompt = random.random_range(0..5_000);
        let ask = Ask {
            request: RequestId(step as u128),
            model: Some(MODEL),
            kinds: random.random_bool(0.2).then_some(&KINDS[..random.random_range(1..3)]),
            route: if random.random_bool(0.3) { RouteSet::GENERATE } else { RouteSet::CHAT },
            streams: random.random_bool(0.7),
            charge: Charge {
                uncached_prefill_tokens: prompt,
                reserved_kv_tokens: prompt + random.random_range(0..9_000),
                sequences: random.random_range(1..3),
            },
            hits: if random.random_bool(0.7) { &hits } else { &[] },
            exclude: if random.random_bool(0.3) { &exclude } else { &[] },
            ..Ask::default()
        };
        let views = scheduler.instances(now);
        rule.follow(&views);
        let expected = rule.choose(now, &views, &ask);
        match (scheduler.place(now, &ask), expected) {
            (Ok(placed), Some((target, reason, all))) => {
                assert_eq!((placed.target, placed.reason, placed.considered), (target, reason, all.len()), "{all:?}");
                assert_records_the_best(&placed, &all, config.record_candidates);
                if let Some(sent) = rule.out.get_mut(&target.instance) {
                    sent.push(placed.ticket);
                }
                running.push(placed);
            }
            (Err(PlaceError::NoCandidate { .. }), None) => {}
            (placed, expected) => panic!("{placed:?}, expected {expected:?}"),
        }
        scheduler.check_invariants().unwrap();
    }
}

fn assert_records_the_best(placed: &Placed, all: &[Plain], limit: usize) {
    let of = |target| all.iter().find(|c| c.target == target).unwrap();
    for scored in &placed.candidates {
        let plain = of(scored.target);
        assert_eq!((scored.score_s, scored.expected_wait_s), (plain.score_s, plain.wait_s), "{plain:?}");
    }
    let key = |c: &Plain| (c.tier, c.score_s.to_bits());
    let mut best: Vec<_> = all.iter().map(key).collect();
    best.sort_unstable();
    best.truncate(limit);
    let mut recorded: Vec<_> = placed.candidates.iter().map(|c| key(of(c.target))).collect();
    if !best.contains(&key(of(placed.target))) {
        // The chosen one takes the place of the last.
        best.pop();
        recorded.pop();
    }
    assert_eq!(recorded, best);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn choices_are_those_of_the_plain_rule(seed in any::<u64>(), engines in 1_u32..24) {
        run(seed, engines, 120);
    }
}

#[test]
fn a_thousand_engines_are_compared_as_a_few_are() {
    for seed in 0..2 {
        run(seed, 1_024, 60);
    }
}
