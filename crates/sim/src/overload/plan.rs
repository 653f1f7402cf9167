//! Who asks for what, and when: fixed before anything is started, so that every control gets the same.

use super::shape::Shape;
use super::{SCALE, Scenario};
use plimsoll_core::Class;
use plimsoll_traffic::class::{ClassRules, Past, classify};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// Usual load as a share of what the engines can do.
const USUAL: f64 = 0.75;
/// Share of requests that are cold and long in the usual mix, and how long those are.
const LONG_SHARE: f64 = 0.03;
const LONG_TOKENS: Range<u64> = 17_000 / SCALE..32_000 / SCALE;
/// Scenario B: sessions that take turns, for each engine as many as nearly fill its memory; context of a session, and what a turn adds.
const SESSIONS_PER_ENGINE: usize = 10;
const CONTEXT_TOKENS: Range<u64> = 12_800 / SCALE..40_000 / SCALE;
const TURN_TOKENS: u64 = 1_200 / SCALE;
/// Share of requests that come from new users when the hit rate has fallen.
const NEW_USERS: f64 = 0.55;
const ANSWER_TOKENS: u64 = 4;
/// Tenants, numbered from 0.
pub const TENANTS: usize = 4;
/// The one that sends more in scenario C.
pub const LOUD_TENANT: usize = 0;
/// How many times as much one of them sends in scenario C.
const LOUD: f64 = 10.0;
/// First token promised, in seconds by prompt tokens: the gateway's defaults, scaled.
const PROMISED: [(u64, f64); 5] =
    [(1_024 / SCALE, 2.0), (4_096 / SCALE, 4.0), (16_384 / SCALE, 8.0), (65_536 / SCALE, 20.0), (u64::MAX, 60.0)];

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Second of the scenario.
    pub at: f64,
    pub tenant: usize,
    /// Prompts of one session begin alike.
    pub session: u64,
    pub prompt_tokens: u64,
    /// Of these, what an unlimited cache would hold.
    pub hit_tokens: u64,
    pub output_tokens: u64,
    pub class: Class,
    /// First token promised, in scenario seconds from arrival.
    pub promised_s: f64,
}

impl Ask {
    /// What it costs the engines at least, in tokens.
    #[must_use]
    pub fn cost_tokens(&self) -> u64 {
        self.prompt_tokens - self.hit_tokens + self.output_tokens
    }
}

/// Everything that is asked, and when.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By time.
    pub asks: Vec<Ask>,
    pub capacity_tokens_per_s: f64,
    pub seconds: f64,
    /// When there is too much.
    pub crowd: Range<f64>,
    /// Times a refused request is sent again.
    pub repeats: u32,
}

/// Class rules in scaled tokens.
#[must_use]
pub fn class_rules() -> ClassRules {
    let rules = ClassRules::default();
    ClassRules {
        high_uncached_tokens: rules.high_uncached_tokens / SCALE,
        low_uncached_tokens: rules.low_uncached_tokens / SCALE,
        ..rules
    }
}

/// Seconds from arrival to first token that are promised to class high, by prompt tokens up to which.
pub fn promised() -> impl Iterator<Item = (u64, f64)> {
    PROMISED.into_iter()
}

impl Plan {
    /// `capacity`: tokens per second that these `engines` can do together; loads are multiples of it.
    #[must_use]
    pub fn new(scenario: Scenario, shape: &Shape, engines: u16, capacity: f64, seconds: u64, seed: u64) -> Plan {
        let seconds = seconds as f64;
        let crowd = seconds / 4.0..seconds * 3.0 / 4.0;
        let mut draw = Draw { shape, random: ChaCha8Rng::seed_from_u64(seed), next_session: 0, asks: Vec::new() };
        let long = (LONG_TOKENS.start + LONG_TOKENS.end) as f64 / 2.0;
        let mix = (1.0 - LONG_SHARE) * shape.mean_tokens() + LONG_SHARE * long;
        let usual = USUAL * capacity / mix;
        let parts = [0.0..crowd.start, crowd.clone(), crowd.end..seconds];
        match scenario {
            Scenario::A => {
                for part in parts {
                    draw.stream(part, usual, |draw, at| draw.usual(at, None));
                }
                draw.stream(crowd.clone(), USUAL * capacity / long, |draw, at| draw.long(at, None));
            }
            Scenario::B => {
                let turn = TURN_TOKENS + ANSWER_TOKENS;
                let cold = (CONTEXT_TOKENS.start + CONTEXT_TOKENS.end) as f64 / 2.0;
                // Too much is twice the usual: what comes before is little work.
                let mean = (1.0 - NEW_USERS) * turn as f64 + NEW_USERS * cold;
                let rate = 2.0 * USUAL * capacity / mean;
                let mut sessions = Sessions::new(&mut draw, SESSIONS_PER_ENGINE * usize::from(engines.max(1)));
                for part in parts {
                    draw.stream(part, rate, |draw, at| {
                        let new = crowd.contains(&at) && draw.random.random_bool(NEW_USERS);
                        if new { draw.cold(at, None, CONTEXT_TOKENS) } else { sessions.turn(draw, at) }
                    });
                }
            }
            Scenario::C => {
                let each = usual * 0.8 / TENANTS as f64;
                for (tenant, part) in (0..TENANTS).flat_map(|tenant| parts.clone().map(|part| (tenant, part))) {
                    draw.stream(part, each, |draw, at| draw.usual(at, Some(tenant)));
                }
                draw.stream(crowd.clone(), (LOUD - 1.0) * each, |draw, at| draw.usual(at, Some(LOUD_TENANT)));
            }
            Scenario::D => {
                for part in parts {
                    draw.stream(part, usual, |draw, at| draw.usual(at, None));
                }
                draw.stream(crowd.clone(), usual, |draw, at| draw.usual(at, None));
            }
        }
        let mut asks = draw.asks;
        asks.sort_by(|a, b| a.at.total_cmp(&b.at));
        let repeats = if scenario == Scenario::D { 3 } else { 0 };
        Plan { asks, capacity_tokens_per_s: capacity, seconds, crowd, repeats }
    }

    /// Offered cost in the crowd, as a share of capacity.
    #[must_use]
    pub fn crowd_load(&self) -> f64 {
        let tokens: u64 = self.asks.iter().filter(|ask| self.crowd.contains(&ask.at)).map(Ask::cost_tokens).sum();
        tokens as f64 / (self.crowd.end - self.crowd.start) / self.capacity_tokens_per_s
    }
}

struct Draw<'a> {
    shape: &'a Shape,
    random: ChaCha8Rng,
    next_session: u64,
    asks: Vec<Ask>,
}

impl Draw<'_> {
    /// Independent arrivals at this mean rate, in the shape's rhythm.
    fn stream(&mut self, within: Range<f64>, per_s: f64, mut ask: impl FnMut(&mut Self, f64) -> Ask) {
        // The rhythm moves load within this time, and none into it or out of it.
        let mean = self.shape.mean_beat(&within);
        let mut at = within.start;
        loop {
            let gap = -(1.0 - self.random.random::<f64>()).ln() / (per_s * self.shape.beat(at) / mean).max(1e-9);
            at += gap;
            if at >= within.end {
                return;
            }
            let ask = ask(self, at);
            self.asks.push(ask);
        }
    }

    fn usual(&mut self, at: f64, tenant: Option<usize>) -> Ask {
        if self.random.random_bool(LONG_SHARE) {
            return self.long(at, tenant);
        }
        let (prompt, answer) = self.shape.draw(&mut self.random);
        let session = self.session();
        self.ask(at, tenant, session, prompt, 0, answer)
    }

    fn long(&mut self, at: f64, tenant: Option<usize>) -> Ask {
        self.cold(at, tenant, LONG_TOKENS)
    }

    fn cold(&mut self, at: f64, tenant: Option<usize>, tokens: Range<u64>) -> Ask {
        let (prompt, session) = (self.random.random_range(tokens), self.session());
        self.ask(at, tenant, session, prompt, 0, ANSWER_TOKENS)
    }

    fn session(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    fn ask(&mut self, at: f64, tenant: Option<usize>, session: u64, prompt: u64, hit: u64, output: u64) -> Ask {
        let tenant = tenant.unwrap_or_else(|| self.random.random_range(0..TENANTS));
        let class = classify(&class_rules(), prompt, Some(hit), Past::default()).class;
        let base = PROMISED.iter().find(|(tokens, _)| prompt <= *tokens).map_or(60.0, |(_, seconds)| *seconds);
        let times = match class {
            Class::High => 1.0,
            Class::Medium => 1.5,
            Class::Low => 3.0,
        };
        Ask {
            at,
            tenant,
            session,
            prompt_tokens: prompt,
            hit_tokens: hit,
            output_tokens: output,
            class,
            promised_s: base * times,
        }
    }
}

/// Sessions whose context grows turn by turn, until it is full and a new one takes its place.
struct Sessions(Vec<(u64, u64)>);

impl Sessions {
    fn new(draw: &mut Draw<'_>, count: usize) -> Self {
        let context = |draw: &mut Draw<'_>| (draw.session(), draw.random.random_range(CONTEXT_TOKENS));
        Sessions((0..count).map(|_| context(draw)).collect())
    }

    fn turn(&mut self, draw: &mut Draw<'_>, at: f64) -> Ask {
        let index = draw.random.random_range(0..self.0.len());
        let (mut session, before) = self.0[index];
        let (mut prompt, mut hit) = (before + TURN_TOKENS, before);
        if prompt > CONTEXT_TOKENS.end {
            (session, prompt, hit) = (draw.session(), CONTEXT_TOKENS.start, 0);
        }
        self.0[index] = (session, prompt);
        // All turns of a session are one tenant's.
        draw.ask(at, Some(session as usize % TENANTS), session, prompt, hit, ANSWER_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scenario: Scenario) -> Plan {
        Plan::new(scenario, &Shape::fitted(), 4, 6_000.0, 400, 7)
    }

    fn load(plan: &Plan, within: Range<f64>) -> f64 {
        let asks = plan.asks.iter().filter(|ask| within.contains(&ask.at));
        asks.map(Ask::cost_tokens).sum::<u64>() as f64 / (within.end - within.start) / plan.capacity_tokens_per_s
    }

    #[test]
    fn the_crowd_is_what_the_scenario_says() {
        for (scenario, before, during) in [(Scenario::A, 0.75, 1.5), (Scenario::C, 0.6, 1.95), (Scenario::D, 0.75, 1.5)]
        {
            let plan = plan(scenario);
            let (first, crowd, last) = (load(&plan, 0.0..100.0), plan.crowd_load(), load(&plan, 300.0..400.0));
            assert!((first / before - 1.0).abs() < 0.15, "{scenario:?} before: {first}");
            assert!((crowd / during - 1.0).abs() < 0.15, "{scenario:?} during: {crowd}");
            assert!((last / before - 1.0).abs() < 0.15, "{scenario:?} after: {last}");
            assert_eq!(plan.repeats, if scenario == Scenario::D { 3 } else { 0 });
        }
    }

    /// Seen with the trace: its quiet minutes lay in the crowd, which then was none.
    #[test]
    fn a_rhythm_moves_no_load_out_of_the_crowd() {
        let mut shape = Shape::fitted();
        shape.set_rhythm((0..40).map(|beat| if (10..30).contains(&beat) { 0.5 } else { 1.5 }).collect());
        let plan = Plan::new(Scenario::A, &shape, 4, 6_000.0, 400, 7);
        assert!((plan.crowd_load() / 1.5 - 1.0).abs() < 0.15, "{}", plan.crowd_load());
        assert!((load(&plan, 0.0..100.0) / 0.75 - 1.0).abs() < 0.15);
    }

    #[test]
    fn the_hit_rate_falls_from_ninety_to_forty_at_a_constant_rate() {
        let plan = plan(Scenario::B);
        let hit_rate = |within: Range<f64>| {
            let asks: Vec<&Ask> = plan.asks.iter().filter(|ask| within.contains(&ask.at)).collect();
            let sum = |of: fn(&Ask) -> u64| asks.iter().map(|ask| of(ask)).sum::<u64>() as f64;
            (sum(|ask| ask.hit_tokens) / sum(|ask| ask.prompt_tokens), asks.len() as f64 / (within.end - within.start))
        };
        // Sessions are cold to begin with.
        let (before, rate_before) = hit_rate(20.0..100.0);
        let (during, rate_during) = hit_rate(plan.crowd.clone());
        assert!(before > 0.88, "{before}");
        assert!((0.35..0.48).contains(&during), "{during}");
        assert!((rate_during / rate_before - 1.0).abs() < 0.15, "{rate_before} {rate_during}");
        assert!((1.3..1.8).contains(&plan.crowd_load()), "{}", plan.crowd_load());
    }

    #[test]
    fn every_class_asks_and_the_same_seed_asks_the_same() {
        let one = plan(Scenario::A);
        for class in Class::ALL {
            assert!(one.asks.iter().filter(|ask| ask.class == class).count() > 50, "{class}");
        }
        let two = plan(Scenario::A);
        assert_eq!(one.asks.len(), two.asks.len());
        assert!(one.asks.iter().zip(&two.asks).all(|(a, b)| a.at.total_cmp(&b.at).is_eq() && a.session == b.session));
        let loud = plan(Scenario::C);
        let tenant =
            |tenant| loud.asks.iter().filter(|ask| ask.tenant == tenant && loud.crowd.contains(&ask.at)).count();
        assert!((8..13).contains(&(tenant(0) / tenant(1))));
    }
}
