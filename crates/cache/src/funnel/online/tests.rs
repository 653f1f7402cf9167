use super::*;
use crate::chain::NameFormat;
use plimsoll_core::{Class, InstanceId, Rank};
use proptest::prelude::*;
use std::collections::BTreeSet;

const BLOCK: u64 = 16;

fn family() -> Family {
    Family { format: NameFormat::Own, block_tokens: BLOCK as u32 }
}

fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}

fn key() -> CellKey {
    CellKey { class: Class::Medium, tenant: "t".into() }
}

fn chained(ids: &[u64]) -> Vec<u64> {
    let mut hash = 7;
    let next = |id: &u64| {
        hash = xxhash_rust::xxh3::xxh3_64_with_seed(&id.to_le_bytes(), hash);
        hash
    };
    ids.iter().map(next).collect()
}

/// One LRU cache, as slow and obvious as can be: youngest first, with the time of the last touch.
#[derive(Clone, Default)]
struct Plain {
    stack: Vec<(u64, u64)>,
    capacity: usize,
}

impl Plain {
    fn holds(&self, name: u64) -> Option<usize> {
        self.stack.iter().position(|(held, _)| *held == name)
    }

    /// Leading blocks found within a capacity.
    fn hits(&self, path: &[u64], capacity: usize) -> u64 {
        path.iter().take_while(|name| self.holds(**name).is_some_and(|at| at < capacity)).count() as u64
    }

    fn touch(&mut self, path: &[u64], now: u64) {
        for name in path.iter().rev() {
            self.stack.retain(|(held, _)| held != name);
            self.stack.insert(0, (*name, now));
        }
        self.stack.truncate(self.capacity);
    }

    fn expire(&mut self, horizon: u64) {
        self.stack.retain(|(_, touched)| *touched >= horizon);
    }

    /// `path[from..]` lies below `path[..from]`, if that is here whole and nothing stands on it.
    fn extend(&mut self, path: &[u64], from: usize, children: &BTreeSet<(u64, u64)>) {
        let whole = path[..from].iter().all(|name| self.holds(*name).is_some());
        let last = path[from - 1];
        let bare = !children.iter().any(|(parent, child)| *parent == last && self.holds(*child).is_some());
        if let Some(at) = self.holds(last).filter(|_| whole && bare) {
            let touched = self.stack[at].1;
            for (more, name) in path[from..].iter().enumerate() {
                self.stack.insert(at + 1 + more, (*name, touched));
            }
            self.stack.truncate(self.capacity);
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    later: u64,
    prompt: Vec<u64>,
    tail_tokens: u64,
    target: u32,
    reported: Option<u64>,
    believed: Option<(u64, u64)>,
    /// Blocks of the prompt that are the answer to what stands before them.
    answer: Option<(usize, u32)>,
}

fn step() -> impl Strategy<Value = Step> {
    (
        0u64..12,
        proptest::collection::vec(0u64..3, 0..9),
        0..BLOCK,
        0u32..3,
        proptest::option::weighted(0.9, 0u64..160),
        proptest::option::weighted(0.7, (0u64..160, 0u64..80)),
        proptest::option::weighted(0.3, (1usize..5, 0u32..3)),
    )
        .prop_map(|(later, prompt, tail_tokens, target, reported, believed, answer)| {
            let answer = answer.filter(|(blocks, _)| *blocks < prompt.len());
            Step { later, prompt, tail_tokens, target, reported, believed, answer }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_layer_is_what_plain_lru_caches_say(
        steps in proptest::collection::vec(step(), 1..60),
        capacities in proptest::collection::vec(1u64..9, 3),
        window in 20u64..200,
    ) {
        let config = FunnelConfig { window: Nanos(window), period: Nanos::MAX, ..FunnelConfig::default() };
        let mut funnel = Funnel::new(config);
        let mut pool = Plain { capacity: usize::MAX, ..Plain::default() };
        let mut ranks: Vec<Plain> =
            capacities.iter().map(|blocks| Plain { capacity: *blocks as usize, ..Plain::default() }).collect();
        for (at, blocks) in capacities.iter().enumerate() {
            // What is left over of a block holds nothing.
            funnel.set_capacity(target(at as u32), Some(blocks * BLOCK + 5));
        }
        let all = (capacities.iter().sum::<u64>() * BLOCK + 15) / BLOCK;
        let (mut children, mut now) = (BTreeSet::new(), 0u64);
        let (mut requests, mut layers, mut curve) = (0, [0u64; 5], [0u64; CURVE_EIGHTHS.len()]);
        for (number, step) in steps.iter().enumerate() {
            now += step.later;
            let path = chained(&step.prompt);
            for pair in path.windows(2) {
                children.insert((pair[0], pair[1]));
            }
            let horizon = now.saturating_sub(window);
            let tokens = path.len() as u64 * BLOCK + step.tail_tokens;
            let most = tokens.saturating_sub(1) / BLOCK;
            let answer = step.answer.map(|(blocks, target_at)| {
                let from = path.len() - blocks;
                pool.extend(&path, from, &children);
                ranks[target_at as usize].extend(&path, from, &children);
                // One token more than is computed.
                let answer = (from as u64 * BLOCK, blocks as u64 * BLOCK + 1);
                Answer { prompt_tokens: answer.0, output_tokens: answer.1, target: target(target_at) }
            });
            pool.expire(horizon);
            let ceiling = pool.hits(&path, usize::MAX).min(most);
            let at = |eighths: u64| pool.hits(&path, (all * eighths / 8) as usize).min(most);
            let points = CURVE_EIGHTHS.map(at);
            pool.touch(&path, now);
            let rank = &mut ranks[step.target as usize];
            rank.expire(horizon);
            let placed = rank.hits(&path, usize::MAX).min(most);
            rank.touch(&path, now);
            // An answer may be where it was made alone: what stands on its prompt in the pool is another one.
            let ceiling = ceiling.max(placed);

            let request = RequestId(number as u128);
            let believed = step.believed.map(|(certain, guessed)| Hit {
                device_tokens: certain + guessed,
                host_tokens: 0,
                speculative_tokens: guessed,
                shared_tokens: 0,
            });
            funnel.arrived(Nanos(now), &Arrival {
                request,
                attempt: 0,
                key: key(),
                family: family(),
                names: &path,
                prompt_tokens: tokens,
                target: target(step.target),
                believed,
                answer,
            });
            funnel.ended(Nanos(now), request, step.reported.map(|tokens| Reported { tokens, tiers: None }));
            if let Some(actual) = step.reported {
                requests += 1;
                let all = [tokens, ceiling * BLOCK, points[ONE] * BLOCK, placed * BLOCK, actual];
                for (sum, more) in layers.iter_mut().zip(all) {
                    *sum += more;
                }
                for (sum, more) in curve.iter_mut().zip(points) {
                    *sum += more * BLOCK;
                }
            }
            let report = funnel.report(Nanos(now));
            let sums = report.cells.first().map(|(_, ever, _)| *ever).unwrap_or_default();
            prop_assert_eq!(sums.check(), Ok(()));
            prop_assert_eq!(sums.requests, requests);
            prop_assert_eq!(Layer::ALL.map(|layer| sums[layer]), layers);
            let found: Vec<u64> = report.curve.iter().map(|(_, ever, _)| *ever).collect();
            prop_assert_eq!(found.as_slice(), curve.as_slice());
            prop_assert!(!report.bounded);
        }
    }
}

fn arrive(funnel: &mut Funnel, number: u128, ids: &[u64], to: u32, believed: Option<Hit>) {
    let names = chained(ids);
    let tokens = names.len() as u64 * BLOCK + 3;
    funnel.arrived(
        Nanos(number as u64),
        &Arrival {
            request: RequestId(number),
            attempt: 0,
            key: key(),
            family: family(),
            names: &names,
            prompt_tokens: tokens,
            target: target(to),
            believed,
            answer: None,
        },
    );
}

fn end(funnel: &mut Funnel, number: u128, cached: u64) {
    funnel.ended(Nanos(number as u64), RequestId(number), Some(Reported { tokens: cached, tiers: None }));
}

fn sums(funnel: &mut Funnel) -> Sums {
    funnel.report(Nanos::ZERO).cells.iter().fold(Sums::default(), |mut all, (_, ever, _)| {
        all += ever;
        all
    })
}

fn two_ranks(blocks: u64) -> Funnel {
    let mut funnel = Funnel::new(FunnelConfig::default());
    funnel.set_capacity(target(0), Some(blocks * BLOCK));
    funnel.set_capacity(target(1), Some(blocks * BLOCK));
    funnel
}

#[test]
fn what_another_rank_had_is_lost_by_the_choice() {
    let mut funnel = two_ranks(8);
    arrive(&mut funnel, 1, &[1, 2, 3, 4], 0, None);
    end(&mut funnel, 1, 0);
    arrive(&mut funnel, 2, &[1, 2, 3, 4], 1, None);
    end(&mut funnel, 2, 0);
    let found = sums(&mut funnel);
    assert_eq!((found[Layer::Entrance], found[Layer::Placed]), (64, 0));
    assert_eq!((found[Loss::CrossInstance], found[Loss::Partition]), (64, 0));
}

#[test]
fn what_no_rank_kept_is_lost_to_the_partition() {
    let mut funnel = two_ranks(4);
    arrive(&mut funnel, 1, &[1, 2, 3, 4], 0, None);
    end(&mut funnel, 1, 0);
    // Pushes it out of the only rank that had it; a pool of eight blocks has room for both.
    arrive(&mut funnel, 2, &[5, 6, 7, 8], 0, None);
    end(&mut funnel, 2, 0);
    arrive(&mut funnel, 3, &[1, 2, 3, 4], 0, None);
    end(&mut funnel, 3, 0);
    let found = sums(&mut funnel);
    assert_eq!((found[Loss::Partition], found[Loss::CrossInstance], found[Loss::Capacity]), (64, 0, 0));
    arrive(&mut funnel, 4, &[9, 10, 11, 12], 0, None);
    end(&mut funnel, 4, 0);
    arrive(&mut funnel, 5, &[5, 6, 7, 8], 1, None);
    end(&mut funnel, 5, 0);
    assert_eq!(sums(&mut funnel)[Loss::Capacity], 64, "twelve blocks in eight");
}

#[test]
fn the_engines_losses_have_the_views_word_for_it_or_none() {
    let mut funnel = two_ranks(8);
    arrive(&mut funnel, 1, &[1, 2, 3, 4], 0, None);
    end(&mut funnel, 1, 0);
    let again = |funnel: &mut Funnel, number, believed, cached| {
        arrive(funnel, number, &[1, 2, 3, 4], 0, believed);
        end(funnel, number, cached);
    };
    again(&mut funnel, 2, None, 16);
    assert_eq!(sums(&mut funnel)[Loss::Unknown], 48);
    // 48 believed, 16 of them by a decision alone; 8 came.
    let believed = Hit { device_tokens: 48, speculative_tokens: 16, ..Hit::default() };
    again(&mut funnel, 3, Some(believed), 8);
    let found = sums(&mut funnel);
    assert_eq!((found[Loss::StaleView], found[Loss::InFlight], found[Loss::Evicted]), (24, 16, 16));
    assert_eq!(found.above_model, 0);
    again(&mut funnel, 4, Some(believed), 66);
    let found = sums(&mut funnel);
    assert_eq!((found[Gain::AboveModel], found.above_model), (2, 0), "less than a block is rounding");
    again(&mut funnel, 5, Some(believed), 80);
    assert_eq!(sums(&mut funnel).above_model, 1);
}

#[test]
fn a_second_attempt_counts_once_and_where_it_ended() {
    let mut funnel = two_ranks(8);
    arrive(&mut funnel, 1, &[1, 2, 3, 4], 0, None);
    end(&mut funnel, 1, 0);
    arrive(&mut funnel, 2, &[1, 2, 3, 4], 0, None);
    arrive(&mut funnel, 2, &[1, 2, 3, 4], 1, None);
    end(&mut funnel, 2, 0);
    end(&mut funnel, 2, 0);
    let found = sums(&mut funnel);
    assert_eq!((found.requests, found[Layer::Entrance], found[Layer::Placed], found[Loss::Retry]), (2, 64, 0, 64));
}

#[test]
fn who_is_not_measured_is_counted_by_why() {
    let mut funnel = Funnel::new(FunnelConfig { max_pending: 2, ..FunnelConfig::default() });
    funnel.set_capacity(target(0), Some(64));
    funnel.set_capacity(target(1), None);
    arrive(&mut funnel, 1, &[1], 1, None);
    end(&mut funnel, 1, 0);
    arrive(&mut funnel, 2, &[1], 0, None);
    funnel.ended(Nanos(2), RequestId(2), None);
    arrive(&mut funnel, 3, &[1], 0, None);
    funnel.failed(RequestId(3));
    for number in 4..7 {
        arrive(&mut funnel, number, &[1], 0, None);
    }
    funnel.not_measured(Unmeasured::NoTokenIds);
    let report = funnel.report(Nanos(9));
    assert_eq!((report.pending, report.ranks_without_capacity), (2, 1));
    assert!(report.unmeasured.iter().all(|(_, count)| *count == 1), "{:?}", report.unmeasured);
    assert!(report.cells.is_empty());
}

#[test]
fn pages_of_one_token_are_taken_together() {
    let mut funnel = Funnel::new(FunnelConfig::default());
    funnel.set_capacity(target(0), Some(1_000));
    let names = chained(&(0..100).collect::<Vec<_>>());
    for number in 0..2 {
        funnel.arrived(
            Nanos::ZERO,
            &Arrival {
                request: RequestId(number),
                attempt: 0,
                key: key(),
                family: Family { block_tokens: 1, ..family() },
                names: &names,
                prompt_tokens: 100,
                target: target(0),
                believed: None,
                answer: None,
            },
        );
        end(&mut funnel, number, if number == 0 { 0 } else { 99 });
    }
    let report = funnel.report(Nanos::ZERO);
    assert_eq!((report.grain_tokens, report.pool_blocks), (Some(16), 6));
    let found = sums(&mut funnel);
    assert_eq!((found[Layer::Placed], found[Layer::Actual], found.above_model), (96, 99, 0));
}

#[test]
fn bounds_hold_and_are_told() {
    let config = FunnelConfig { max_blocks: 500, max_nodes: 50, max_cells: 3, ..FunnelConfig::default() };
    let mut funnel = Funnel::new(config);
    for instance in 0..4 {
        funnel.set_capacity(target(instance), Some(1_000 * BLOCK));
    }
    for number in 0..2_000u64 {
        let names = chained(&[number % 7, number % 50, number, number + 1, number + 2]);
        funnel.arrived(
            Nanos(number),
            &Arrival {
                request: RequestId(u128::from(number)),
                attempt: 0,
                key: CellKey { class: Class::Low, tenant: number.to_string().into() },
                family: family(),
                names: &names,
                prompt_tokens: 5 * BLOCK + 1,
                target: target((number % 4) as u32),
                believed: None,
                answer: None,
            },
        );
        end(&mut funnel, u128::from(number), 0);
    }
    let report = funnel.report(Nanos(2_000));
    assert!(report.bounded);
    assert!(report.pool_blocks <= 500 && report.rank_blocks <= 500, "{report:?}");
    assert!(report.bytes < 100_000, "{}", report.bytes);
    assert!(report.cells.len() <= 4 && report.cells.iter().any(|(key, ..)| &*key.tenant == "other"));
}
