//! Two gateways before the same engines, on a virtual clock: twice what the engines can do, with leases and without.
//!
//! `cargo run -p plimsoll-traffic --example two_gateways`
//!
//! Four engines prefill 8,000 tokens a second each, one request after another, for five minutes. The high class (1,000 tokens, first token within
//! 2 s) asks for 40 % of that, the low class (20,000 tokens) for 160 %, in gaps drawn from a fixed seed. A gateway knows its own requests at once
//! and the others' as engines reported them up to 500 ms ago. Reports between the gateways take 20 ms.
//!
//! Columns: requests of the high class with their first token in time, of all that asked; their mean time to it; tokens of the low class that quotas let in,
//! waiting or served, of what the engines could do; their mean time to it; what was served; the mean level.

use plimsoll_core::{Class, GatewayId, GatewayReport, InstanceLoad, Nanos, RequestId};
use plimsoll_traffic::Admission;
use plimsoll_traffic::admission::{Arrival, Decision, PoolView, Rules, Verdict};
use plimsoll_traffic::lease::{LeaseRules, Leases};
use std::collections::{BTreeMap, VecDeque};

const ENGINES: usize = 4;
const RATE: f64 = 8_000.0;
const STEP: Nanos = Nanos::from_millis(5);
const SECONDS: u64 = 300;
const PROMISE: Nanos = Nanos::from_secs(2);
const MODEL: &str = "m";

struct Job {
    gateway: usize,
    key: RequestId,
    left_tokens: f64,
}

/// What becomes of one class.
#[derive(Clone, Copy, Default)]
struct Tally {
    asked: u64,
    refused: u64,
    /// Times to the first token, added up.
    waits_s: f64,
    served: u64,
    served_tokens: u64,
    in_time: u64,
}

struct World {
    now: Nanos,
    gateways: Vec<Admission>,
    leases: Option<Vec<Leases>>,
    engines: Vec<VecDeque<Job>>,
    /// Backlog by engine and gateway, as last reported.
    reported: Vec<Vec<f64>>,
    arrivals: BTreeMap<RequestId, (Class, u64, Nanos)>,
    on_their_way: VecDeque<(Nanos, GatewayReport)>,
    tally: [Tally; 3],
    level_sum: f64,
    looks: u32,
    seed: u64,
}

impl World {
    fn new(gateways: usize, leases: bool) -> World {
        let rules = LeaseRules { lease: Nanos::from_secs(5), assumed_gateways: 2 };
        let lease = |id: usize| Leases::new(GatewayId(id as u64), rules);
        World {
            now: Nanos::from_secs(1),
            gateways: (0..gateways).map(|_| Admission::new(Rules::default())).collect(),
            leases: leases.then(|| (0..gateways).map(lease).collect()),
            engines: (0..ENGINES).map(|_| VecDeque::new()).collect(),
            reported: vec![vec![0.0; gateways]; ENGINES],
            arrivals: BTreeMap::new(),
            on_their_way: VecDeque::new(),
            tally: [Tally::default(); 3],
            level_sum: 0.0,
            looks: 0,
            seed: 1,
        }
    }

    /// From 0 to 1 (Knuth's multiplier for 64 bits).
    fn draw(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 11) as f64 / (1u64 << 53) as f64
    }

    fn backlog(&self, engine: usize, gateway: usize) -> f64 {
        self.engines[engine].iter().filter(|job| job.gateway == gateway).map(|job| job.left_tokens).sum()
    }

    /// As one gateway sees them.
    fn loads(&self, gateway: usize) -> Vec<InstanceLoad> {
        let load = |engine: usize| {
            let foreign = self.reported[engine].iter().enumerate().filter(|(other, _)| *other != gateway);
            let tokens = self.backlog(engine, gateway) + foreign.map(|(_, tokens)| tokens).sum::<f64>();
            let running = u32::from(tokens > 0.0);
            let rate = Some(RATE);
            InstanceLoad {
                backlog_tokens: tokens.ceil() as u64,
                prefill_tokens_per_s: rate,
                running,
                ..InstanceLoad::default()
            }
        };
        (0..ENGINES).map(load).collect()
    }

    fn arrive(&mut self, gateway: usize, class: Class, tokens: u64) {
        let key = RequestId(self.arrivals.len() as u128);
        self.arrivals.insert(key, (class, tokens, self.now));
        let promise = (class == Class::High).then(|| self.now + PROMISE);
        let arrival = Arrival {
            key,
            tenant: "t".into(),
            class,
            prompt_tokens: tokens,
            prefill_tokens: tokens,
            decode_tokens: 0,
            bytes: 0,
            service: None,
            first_token_by: promise,
            answer_by: Nanos::MAX,
            retry: false,
        };
        let loads = self.loads(gateway);
        let view = PoolView { taken_at: self.now, instances: &loads };
        self.tally[class as usize].asked += 1;
        match self.gateways[gateway].arrive(self.now, arrival, &view) {
            Verdict::Go(_) => self.begin(gateway, key),
            Verdict::Wait => {}
            Verdict::Refuse(_) => self.tally[class as usize].refused += 1,
        }
    }

    fn begin(&mut self, gateway: usize, key: RequestId) {
        let (_, tokens, _) = self.arrivals[&key];
        let loads = self.loads(gateway);
        let best = (0..ENGINES).min_by_key(|engine| loads[*engine].backlog_tokens).unwrap_or(0);
        self.engines[best].push_back(Job { gateway, key, left_tokens: tokens as f64 });
        self.gateways[gateway].begun(key, None);
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let mut done = Vec::new();
        for engine in &mut self.engines {
            let mut budget = RATE * STEP.as_secs_f64();
            while let Some(first) = engine.front_mut() {
                if first.left_tokens > budget {
                    first.left_tokens -= budget;
                    break;
                }
                budget -= first.left_tokens;
                done.extend(engine.pop_front());
            }
        }
        for Job { gateway, key, .. } in done {
            self.gateways[gateway].first_token(key, self.now);
            self.gateways[gateway].settle(key, self.now, None, None);
            let (class, tokens, arrived) = self.arrivals[&key];
            let tally = &mut self.tally[class as usize];
            tally.served_tokens += tokens;
            tally.served += 1;
            tally.waits_s += self.now.since(arrived).as_secs_f64();
            tally.in_time += u64::from(self.now.since(arrived) <= PROMISE);
        }
        if self.now.0 % Nanos::from_millis(500).0 < STEP.0 {
            let gateways = self.gateways.len();
            self.reported = (0..ENGINES).map(|e| (0..gateways).map(|g| self.backlog(e, g)).collect()).collect();
        }
        self.tell_each_other();
        for gateway in 0..self.gateways.len() {
            let loads = self.loads(gateway);
            let view = PoolView { taken_at: self.now, instances: &loads };
            for decision in self.gateways[gateway].dispatch(self.now, &view) {
                match decision {
                    Decision::Go { key, .. } => self.begin(gateway, key),
                    Decision::Refuse { key, .. } => self.tally[self.arrivals[&key].0 as usize].refused += 1,
                }
            }
            self.level_sum += self.gateways[gateway].snapshot(self.now).level.unwrap_or(0.0);
            self.looks += 1;
        }
    }

    fn tell_each_other(&mut self) {
        let Some(leases) = &mut self.leases else { return };
        if self.now.0 % Nanos::from_secs(1).0 < STEP.0 {
            for (id, gateway) in self.gateways.iter().enumerate() {
                let models = [(MODEL.to_owned(), gateway.demand(self.now))].into();
                let sequence = 1 + self.now.0 / Nanos::from_secs(1).0;
                leases[id].saying(sequence);
                let report = GatewayReport { gateway: GatewayId(id as u64), sequence, leaving: false, models };
                self.on_their_way.push_back((self.now + Nanos::from_millis(20), report));
            }
        }
        while self.on_their_way.front().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, report)) = self.on_their_way.pop_front() else { break };
            for (leases, gateway) in leases.iter_mut().zip(&mut self.gateways) {
                leases.hear(self.now, report.clone());
                gateway.set_lease(Some(leases.lease(MODEL, self.now)));
            }
        }
    }

    /// `first`: the part of the requests that comes to the first gateway.
    fn run(&mut self, first: f64) {
        let capacity = RATE * ENGINES as f64;
        let classes = [(Class::High, 0.4, 1_000u64), (Class::Low, 1.6, 20_000)];
        while self.now < Nanos::from_secs(1 + SECONDS) {
            for (class, part, tokens) in classes {
                let chance = part * capacity / tokens as f64 * STEP.as_secs_f64();
                if self.draw() < chance {
                    let gateway = usize::from(self.gateways.len() > 1 && self.draw() >= first);
                    self.arrive(gateway, class, tokens);
                }
            }
            self.step();
        }
    }
}

fn main() {
    println!(
        "{:<24} {:>9} {:>10} {:>13} {:>8} {:>9} {:>6}",
        "", "high met", "high s", "low admitted", "low s", "served", "level"
    );
    for (name, gateways, leases, first) in [
        ("one gateway", 1, false, 1.0),
        ("two, 50:50, no leases", 2, false, 0.5),
        ("two, 50:50, leases", 2, true, 0.5),
        ("two, 90:10, no leases", 2, false, 0.9),
        ("two, 90:10, leases", 2, true, 0.9),
    ] {
        let mut world = World::new(gateways, leases);
        world.run(first);
        let capacity = RATE * ENGINES as f64 * SECONDS as f64;
        let [high, _, low] = world.tally;
        let percent = |part: f64, all: f64| format!("{:.1}%", 100.0 * part / all);
        println!(
            "{name:<24} {:>9} {:>10.3} {:>13} {:>8.1} {:>9} {:>6.3}",
            percent(high.in_time as f64, high.asked as f64),
            high.waits_s / high.served as f64,
            percent(((low.asked - low.refused) * 20_000) as f64, capacity),
            low.waits_s / low.served as f64,
            percent((high.served_tokens + low.served_tokens) as f64, capacity),
            world.level_sum / f64::from(world.looks),
        );
    }
}
