//! The ledger under any order of events: counters equal the sums of live entries, never below zero, all zero at the
//! end, each ticket settled exactly once.

use crate::fleet::{T0, spec};
use plimsoll_core::{InstanceId, LoadReport, Nanos, Rank, RequestId};
use plimsoll_load::{
    Ask, AttemptEnd, Charge, InstanceSpec, PlaceError, PolicyKind, Scheduler, SchedulerConfig, Settled, Ticket, Totals,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
enum Step {
    Add {
        model: u8,
        ranks: u16,
        capacity: Option<u64>,
        context: Option<u64>,
    },
    Update {
        nth: u8,
        model: u8,
        ranks: u16,
        ready: bool,
        context: Option<u64>,
    },
    Remove {
        nth: u8,
    },
    Drain {
        nth: u8,
        on: bool,
    },
    Place {
        model: Option<u8>,
        prefill: u64,
        kv: u64,
        sequences: u64,
        streams: bool,
        exclude: Option<u8>,
    },
    /// A further attempt of an earlier request while the first is still charged.
    Retry {
        nth: u8,
    },
    PlaceAgain {
        nth: u8,
    },
    FirstToken {
        nth: u8,
    },
    Settle {
        nth: u8,
        end: AttemptEnd,
    },
    SettleTwice {
        nth: u8,
        end: AttemptEnd,
    },
    SettleStranger,
    Report {
        nth: u8,
        rank: u16,
        tokens: Option<u64>,
    },
    ProbeOk {
        nth: u8,
    },
    ProbeFailed {
        nth: u8,
    },
    Progress {
        nth: u8,
    },
    Reload {
        policy: PolicyKind,
        seed: u64,
    },
    Pass {
        ms: u64,
    },
}

fn ends() -> impl Strategy<Value = AttemptEnd> {
    prop_oneof![
        4 => Just(AttemptEnd::Ok),
        1 => Just(AttemptEnd::ClientFault),
        2 => Just(AttemptEnd::Cancelled),
        1 => Just(AttemptEnd::Refused { retry_after: None }),
        1 => Just(AttemptEnd::ConnectFailed),
        2 => Just(AttemptEnd::Failed),
        1 => Just(AttemptEnd::Stalled),
    ]
}

fn policies() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![
        Just(PolicyKind::LeastDelay),
        Just(PolicyKind::LeastWait),
        Just(PolicyKind::RoundRobin),
        Just(PolicyKind::PowerOfTwo)
    ]
}

fn contexts() -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(0..20_000_u64)
}

fn placements() -> impl Strategy<Value = Step> {
    let kv = prop_oneof![4 => 0..30_000_u64, 1 => any::<u64>()];
    let model = proptest::option::weighted(0.9, 0..3_u8);
    (model, 0..20_000_u64, kv, 0..4_u64, any::<bool>(), proptest::option::of(any::<u8>())).prop_map(
        |(model, prefill, kv, sequences, streams, exclude)| Step::Place {
            model,
            prefill,
            kv,
            sequences,
            streams,
            exclude,
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        3 => (0..3_u8, 0..4_u16, proptest::option::of(0..50_000_u64), contexts())
            .prop_map(|(model, ranks, capacity, context)| Step::Add { model, ranks, capacity, context }),
        1 => (n(), 0..3_u8, 0..4_u16, any::<bool>(), contexts())
            .prop_map(|(nth, model, ranks, ready, context)| Step::Update { nth, model, ranks, ready, context }),
        1 => n().prop_map(|nth| Step::Remove { nth }),
        1 => (n(), any::<bool>()).prop_map(|(nth, on)| Step::Drain { nth, on }),
        12 => placements(),
        2 => n().prop_map(|nth| Step::Retry { nth }),
        1 => n().prop_map(|nth| Step::PlaceAgain { nth }),
        5 => n().prop_map(|nth| Step::FirstToken { nth }),
        7 => (n(), ends()).prop_map(|(nth, end)| Step::Settle { nth, end }),
        1 => (n(), ends()).prop_map(|(nth, end)| Step::SettleTwice { nth, end }),
        1 => Just(Step::SettleStranger),
        3 => (n(), 0..5_u16, proptest::option::of(0..100_000_u64))
            .prop_map(|(nth, rank, tokens)| Step::Report { nth, rank, tokens }),
        4 => n().prop_map(|nth| Step::ProbeOk { nth }),
        2 => n().prop_map(|nth| Step::ProbeFailed { nth }),
        1 => n().prop_map(|nth| Step::Progress { nth }),
        1 => (policies(), 0..4_u64).prop_map(|(policy, seed)| Step::Reload { policy, seed }),
        2 => (0..2_000_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What a plain reading of the rules expects, kept beside the scheduler.
struct World {
    scheduler: Scheduler,
    now: Nanos,
    /// With the context of each.
    instances: BTreeMap<InstanceId, Option<u64>>,
    added: u32,
    requests: u128,
    live: BTreeMap<Ticket, Live>,
    settled: BTreeSet<Ticket>,
}

#[derive(Clone, Copy)]
struct Live {
    instance: InstanceId,
    charge: Charge,
    reserved_kv_tokens: u64,
    streams: bool,
    prefilling: bool,
    until: Option<Nanos>,
}

impl World {
    fn new() -> Self {
        World {
            scheduler: Scheduler::new(SchedulerConfig::default()),
            now: T0,
            instances: BTreeMap::new(),
            added: 0,
            requests: 0,
            live: BTreeMap::new(),
            settled: BTreeSet::new(),
        }
    }

    fn instance(&self, nth: u8) -> InstanceId {
        // An id that does not exist now and then.
        self.instances
            .keys()
            .nth(usize::from(nth) % (self.instances.len() + 1))
            .copied()
            .unwrap_or(InstanceId(u32::MAX))
    }

    fn ticket(&self, nth: u8) -> Option<Ticket> {
        let index = usize::from(nth) % self.live.len().max(1);
        self.live.keys().nth(index).copied()
    }

    fn spec(model: u8, ranks: u16, capacity: Option<u64>, ready: bool) -> InstanceSpec {
        let models = (0..=model).map(|m| format!("model-{m}")).collect();
        InstanceSpec { models, ranks, capacity_kv_tokens: capacity, ready, ..spec() }
    }

    fn place(&mut self, ticket: Ticket, model: Option<u8>, charge: Charge, streams: bool, exclude: Option<InstanceId>) {
        let name = model.map(|m| format!("model-{m}"));
        let exclude: Vec<InstanceId> = exclude.into_iter().collect();
        let ask = Ask {
            request: ticket.request,
            attempt: ticket.attempt,
            leg: ticket.leg,
            model: name.as_deref(),
            charge,
            streams,
            exclude: &exclude,
            ..Ask::default()
        };
        match self.scheduler.place(self.now, &ask) {
            Ok(placed) => {
                assert!(!self.live.contains_key(&ticket), "charged twice");
                assert_eq!(placed.ticket, ticket);
                assert!(!exclude.contains(&placed.target.instance));
                let instance = placed.target.instance;
                let context = self.instances[&instance].filter(|&context| context > 0).unwrap_or(1 << 20);
                let until = placed.prefill_until;
                assert_eq!(until.is_none(), streams);
                assert!(until.is_none_or(|until| until >= self.now));
                // What the record expects the wait to be is the prefill and a share for every request; sums of floats in another order differ by
                // a nanosecond.
                let most = self.now + placed.expected_wait.unwrap() + Nanos(1_000);
                assert!(until.is_none_or(|until| until <= most));
                self.settled.remove(&ticket);
                let reserved_kv_tokens = charge.reserved_kv_tokens.min(charge.sequences.max(1) * context);
                let live = Live { instance, charge, reserved_kv_tokens, streams, prefilling: true, until };
                self.live.insert(ticket, live);
            }
            Err(error) => {
                assert_eq!(error == PlaceError::AlreadyCharged, self.live.contains_key(&ticket), "{error}");
            }
        }
    }

    fn settle(&mut self, ticket: Ticket, end: AttemptEnd) {
        let settled = self.scheduler.settle(ticket, self.now, end);
        match self.live.remove(&ticket) {
            Some(live) if self.instances.contains_key(&live.instance) => {
                assert!(matches!(settled, Settled::Released { .. }), "{settled:?}");
            }
            Some(_) => assert_eq!(settled, Settled::InstanceGone),
            None => assert_eq!(settled, Settled::Already),
        }
        self.settled.insert(ticket);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Add { model, ranks, capacity, context } => {
                let id = InstanceId(self.added);
                self.added += 1;
                self.instances.insert(id, context);
                let spec = World::spec(model, ranks, capacity, true);
                self.scheduler.add_instance(id, InstanceSpec { context_tokens: context, ..spec });
            }
            Step::Update { nth, model, ranks, ready, context } => {
                let id = self.instance(nth);
                let spec = World::spec(model, ranks, None, ready);
                self.scheduler.update_instance(id, InstanceSpec { context_tokens: context, ..spec });
                self.instances.entry(id).and_modify(|known| *known = context);
            }
            Step::Remove { nth } => {
                let id = self.instance(nth);
                let orphans = self.scheduler.remove_instance(id);
                assert_eq!(orphans, self.live.values().filter(|live| live.instance == id).count());
                self.instances.remove(&id);
            }
            Step::Drain { nth, on } => {
                let id = self.instance(nth);
                assert_eq!(self.scheduler.set_draining(id, on), self.instances.contains_key(&id));
            }
            Step::Place { model, prefill, kv, sequences, streams, exclude } => {
                self.requests += 1;
                let ticket = Ticket { request: RequestId(self.requests), leg: 0, attempt: 0 };
                let charge = Charge { uncached_prefill_tokens: prefill, reserved_kv_tokens: kv, sequences };
                let exclude = exclude.map(|nth| self.instance(nth));
                self.place(ticket, model, charge, streams, exclude);
            }
            Step::Retry { nth } => {
                let Some(earlier) = self.ticket(nth) else { return };
                let ticket = Ticket { attempt: earlier.attempt.wrapping_add(1), ..earlier };
                let live = self.live[&earlier];
                self.place(ticket, Some(0), live.charge, live.streams, Some(live.instance));
            }
            Step::PlaceAgain { nth } => {
                let Some(ticket) = self.ticket(nth) else { return };
                self.place(ticket, Some(0), Charge::default(), true, None);
            }
            Step::FirstToken { nth } => {
                let Some(ticket) = self.ticket(nth) else { return };
                self.scheduler.first_token(ticket, self.now);
                if let Some(live) = self.live.get_mut(&ticket) {
                    live.prefilling = false;
                }
            }
            Step::Settle { nth, end } => {
                let Some(ticket) = self.ticket(nth) else { return };
                self.settle(ticket, end);
            }
            Step::SettleTwice { nth, end } => {
                let Some(&ticket) = self.settled.iter().nth(usize::from(nth) % self.settled.len().max(1)) else {
                    return;
                };
                assert!(!self.live.contains_key(&ticket));
                self.scheduler.first_token(ticket, self.now);
                self.settle(ticket, end);
            }
            Step::SettleStranger => {
                let stranger = Ticket { request: RequestId(u128::MAX), leg: 0, attempt: 0 };
                assert_eq!(self.scheduler.settle(stranger, self.now, AttemptEnd::Ok), Settled::Already);
            }
            Step::Report { nth, rank, tokens } => {
                let report = LoadReport {
                    rank: Rank(rank),
                    received: self.now,
                    running_requests: tokens.map(|t| t / 1_000),
                    waiting_uncached_tokens: tokens,
                    used_kv_tokens: tokens,
                    capacity_kv_tokens: tokens.map(|t| t * 2),
                    ..LoadReport::default()
                };
                self.scheduler.report(self.instance(nth), report, self.now);
            }
            Step::ProbeOk { nth } => drop(self.scheduler.probe_ok(self.instance(nth), self.now)),
            Step::ProbeFailed { nth } => drop(self.scheduler.probe_failed(self.instance(nth), self.now)),
            Step::Progress { nth } => self.scheduler.progress(self.instance(nth), self.now),
            Step::Reload { policy, seed } => {
                self.scheduler.reconfigure(SchedulerConfig { policy, seed, ..SchedulerConfig::default() });
            }
            Step::Pass { ms } => {
                self.now = self.now + Nanos::from_millis(ms);
                for live in self.live.values_mut().filter(|live| live.until.is_some_and(|until| until <= self.now)) {
                    live.prefilling = false;
                }
            }
        }
    }

    fn check(&mut self) {
        self.scheduler.check_invariants().unwrap();
        let held = || self.live.values().filter(|live| self.instances.contains_key(&live.instance));
        let expected = Totals {
            requests: held().count() as u64,
            uncached_prefill_tokens: held().filter(|l| l.prefilling).map(|l| l.charge.uncached_prefill_tokens).sum(),
            reserved_kv_tokens: held().map(|l| l.reserved_kv_tokens).sum(),
            entries: self.live.len() as u64,
            orphans: (self.live.len() - held().count()) as u64,
        };
        assert_eq!(self.scheduler.totals(self.now), expected);
        self.scheduler.check_invariants().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_balances_after_every_step(steps in proptest::collection::vec(steps(), 1..250)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check();
        }
        while let Some(ticket) = world.ticket(0) {
            world.settle(ticket, AttemptEnd::Ok);
        }
        world.check();
        prop_assert_eq!(world.scheduler.totals(world.now), Totals::default());
    }

    #[test]
    fn the_same_steps_make_the_same_choices(steps in proptest::collection::vec(steps(), 1..150)) {
        let (mut one, mut two) = (World::new(), World::new());
        for step in steps {
            one.take(step);
            two.take(step);
            prop_assert_eq!(
                one.live.values().map(|l| l.instance).collect::<Vec<_>>(),
                two.live.values().map(|l| l.instance).collect::<Vec<_>>()
            );
        }
        prop_assert_eq!(one.scheduler.instances(one.now), two.scheduler.instances(two.now));
    }
}
