//! What the online funnel costs per request. `cargo run --release -p plimsoll-cache --example funnel_cost`
//!
//! Goal: all layers under 10 % of one core at 1,000 requests/s of 1,400 blocks, that is 100 us per request, placing and ending together. CPU
//! time of this thread is what is printed; making the names is left out, since placement has them anyway.

use plimsoll_cache::chain::NameFormat;
use plimsoll_cache::funnel::{Arrival, CellKey, Funnel, FunnelConfig, Layer, Reported};
use plimsoll_cache::view::{Family, Hit};
use plimsoll_core::{Class, InstanceId, Nanos, Rank, RequestId, Target};
use rustix::time::{ClockId, clock_gettime};

const BLOCK_TOKENS: u32 = 64;
const BLOCKS: usize = 1_400;

fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn mix(previous: u64, id: u64) -> u64 {
    let mut x = previous.rotate_left(23) ^ id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Agent sessions: a shared system prompt, then turns of 30 blocks each until they are as long as asked for; then a new one.
struct Session {
    names: Vec<u64>,
    home: u32,
}

impl Session {
    fn new(number: u64, instances: u32) -> Session {
        let mut session = Session { names: Vec::new(), home: (number % u64::from(instances)) as u32 };
        let shared = (0..100).map(|at| ((number % 8) << 32) | at);
        let own = (100..BLOCKS as u64 - 300).map(|at| ((number + 100) << 32) | at);
        session.grow(shared.chain(own));
        session
    }

    fn grow(&mut self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            self.names.push(mix(self.names.last().copied().unwrap_or(0), id));
        }
    }
}

fn main() {
    println!(
        "| instances | sticky | requests | us per request | of a core at 1,000/s | pool blocks | MB | bounded | entrance | placed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (instances, sticky) in [(1, 1.0), (16, 1.0), (16, 0.5), (256, 1.0), (256, 0.9), (1_024, 0.9)] {
        let mut funnel = Funnel::new(FunnelConfig::default());
        for instance in 0..instances {
            funnel.set_capacity(target(instance), Some(1_000_000));
        }
        let mut sessions: Vec<Session> = (0..400).map(|number| Session::new(number, instances)).collect();
        let (mut spent, mut random, mut next, requests) = (0.0, 1u64, 400, 40_000u64);
        for number in 0..requests {
            random = mix(random, number);
            let at = (random % 400) as usize;
            if sessions[at].names.len() > BLOCKS + 600 {
                next += 1;
                sessions[at] = Session::new(next, instances);
            } else {
                sessions[at].grow((0..30).map(|turn| random ^ turn));
            }
            let session = &sessions[at];
            let home = if (mix(random, 7) % 1_000) as f64 >= sticky * 1e3 {
                (random >> 20) as u32 % instances
            } else {
                session.home
            };
            let tokens = session.names.len() as u64 * u64::from(BLOCK_TOKENS);
            let arrival = Arrival {
                request: RequestId(u128::from(number)),
                attempt: 0,
                key: CellKey { class: Class::Medium, tenant: "tenant".into() },
                family: Family { format: NameFormat::Sglang, block_tokens: BLOCK_TOKENS },
                names: &session.names,
                prompt_tokens: tokens,
                target: target(home),
                believed: Some(Hit::default()),
                answer: None,
            };
            let began = cpu_s();
            funnel.arrived(Nanos::from_millis(number), &arrival);
            funnel.ended(Nanos::from_millis(number), arrival.request, Some(Reported { tokens: 0, tiers: None }));
            spent += cpu_s() - began;
        }
        let report = funnel.report(Nanos::from_millis(requests));
        let sums = report.cells[0].1;
        let us = spent * 1e6 / requests as f64;
        println!(
            "| {instances} | {sticky} | {requests} | {us:.1} | {:.2} % | {} | {:.1} | {} | {:.3} | {:.3} |",
            us / 10.0,
            report.pool_blocks,
            report.bytes as f64 / 1e6,
            report.bounded,
            sums.rate(Layer::Entrance).unwrap_or(0.0),
            sums.rate(Layer::Placed).unwrap_or(0.0),
        );
    }
}

fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}
