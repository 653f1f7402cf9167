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
    },
    Update {
        nth: u8,
        model: u8,
        ranks: u16,
        ready: bool,
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
    prop_oneof![Just(PolicyKind::LeastWait), Just(PolicyKind::RoundRobin), Just(PolicyKind::PowerOfTwo)]
}

fn steps() -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        3 => (0..3_u8, 0..4_u16, proptest::option::of(0..50_000_u64))
            .prop_map(|(model, ranks, capacity)| Step::Add { model, ranks, capacity }),
        1 => (n(), 0..3_u8, 0..4_u16, any::<bool>())
            .prop_map(|(nth, model, ranks, ready)| Step::Update { nth, model, ranks, ready }),
        1 => n().prop_map(|nth| Step::Remove { nth }),
        1 => (n(), any::<bool>()).prop_map(|(nth, on)| Step::Drain { nth, on }),
        12 => (proptest::option::weighted(0.9, 0..3_u8), 0..20_000_u64, 0..30_000_u64, proptest::option::of(n()))
            .prop_map(|(model, prefill, kv, exclude)| Step::Place { model, prefill, kv, exclude }),
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
    instances: Vec<InstanceId>,
    added: u32,
    requests: u128,
    live: BTreeMap<Ticket, Live>,
    settled: BTreeSet<Ticket>,
}

#[derive(Clone, Copy)]
struct Live {
    instance: InstanceId,
    charge: Charge,
    prefilling: bool,
}

impl World {
    fn new() -> Self {
        World {
            scheduler: Scheduler::new(SchedulerConfig::default()),
            now: T0,
            instances: Vec::new(),
            added: 0,
            requests: 0,
            live: BTreeMap::new(),
            settled: BTreeSet::new(),
        }
    }

    fn instance(&self, nth: u8) -> InstanceId {
        // An id that does not exist now and then.
        self.instances.get(usize::from(nth) % (self.instances.len() + 1)).copied().unwrap_or(InstanceId(u32::MAX))
    }

    fn ticket(&self, nth: u8) -> Option<Ticket> {
        let index = usize::from(nth) % self.live.len().max(1);
        self.live.keys().nth(index).copied()
    }

    fn spec(model: u8, ranks: u16, capacity: Option<u64>, ready: bool) -> InstanceSpec {
        let models = (0..=model).map(|m| format!("model-{m}")).collect();
        InstanceSpec { models, ranks, capacity_kv_tokens: capacity, ready, ..spec() }
    }

    fn place(&mut self, ticket: Ticket, model: Option<u8>, charge: Charge, exclude: Option<InstanceId>) {
        let name = model.map(|m| format!("model-{m}"));
        let exclude: Vec<InstanceId> = exclude.into_iter().collect();
        let ask = Ask {
            request: ticket.request,
            attempt: ticket.attempt,
            leg: ticket.leg,
            model: name.as_deref(),
            charge,
            exclude: &exclude,
            ..Ask::default()
        };
        match self.scheduler.place(self.now, &ask) {
            Ok(placed) => {
                assert!(!self.live.contains_key(&ticket), "charged twice");
                assert_eq!(placed.ticket, ticket);
                assert!(!exclude.contains(&placed.target.instance));
                assert!(self.instances.contains(&placed.target.instance));
                self.settled.remove(&ticket);
                self.live.insert(ticket, Live { instance: placed.target.instance, charge, prefilling: true });
            }
            Err(error) => {
                assert_eq!(error == PlaceError::AlreadyCharged, self.live.contains_key(&ticket), "{error}");
            }
        }
    }

    fn settle(&mut self, ticket: Ticket, end: AttemptEnd) {
        let settled = self.scheduler.settle(ticket, self.now, end);
        match self.live.remove(&ticket) {
            Some(live) if self.instances.contains(&live.instance) => {
                assert!(matches!(settled, Settled::Released { .. }), "{settled:?}");
            }
            Some(_) => assert_eq!(settled, Settled::InstanceGone),
            None => assert_eq!(settled, Settled::Already),
        }
        self.settled.insert(ticket);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Add { model, ranks, capacity } => {
                let id = InstanceId(self.added);
                self.added += 1;
                self.instances.push(id);
                self.scheduler.add_instance(id, World::spec(model, ranks, capacity, true));
            }
            Step::Update { nth, model, ranks, ready } => {
                self.scheduler.update_instance(self.instance(nth), World::spec(model, ranks, None, ready));
            }
            Step::Remove { nth } => {
                let id = self.instance(nth);
                let orphans = self.scheduler.remove_instance(id);
                assert_eq!(orphans, self.live.values().filter(|live| live.instance == id).count());
                self.instances.retain(|&known| known != id);
            }
            Step::Drain { nth, on } => {
                let id = self.instance(nth);
                assert_eq!(self.scheduler.set_draining(id, on), self.instances.contains(&id));
            }
            Step::Place { model, prefill, kv, exclude } => {
                self.requests += 1;
                let ticket = Ticket { request: RequestId(self.requests), leg: 0, attempt: 0 };
                let charge = Charge { uncached_prefill_tokens: prefill, reserved_kv_tokens: kv, sequences: 1 };
                let exclude = exclude.map(|nth| self.instance(nth));
                self.place(ticket, model, charge, exclude);
            }
            Step::Retry { nth } => {
                let Some(earlier) = self.ticket(nth) else { return };
                let ticket = Ticket { attempt: earlier.attempt.wrapping_add(1), ..earlier };
                let live = self.live[&earlier];
                self.place(ticket, Some(0), live.charge, Some(live.instance));
            }
            Step::PlaceAgain { nth } => {
                let Some(ticket) = self.ticket(nth) else { return };
                self.place(ticket, Some(0), Charge::default(), None);
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
            Step::Pass { ms } => self.now = self.now + Nanos::from_millis(ms),
        }
    }

    fn check(&self) {
        self.scheduler.check_invariants().unwrap();
        let held = || self.live.values().filter(|live| self.instances.contains(&live.instance));
        let expected = Totals {
            requests: held().count() as u64,
            uncached_prefill_tokens: held().filter(|l| l.prefilling).map(|l| l.charge.uncached_prefill_tokens).sum(),
            reserved_kv_tokens: held().map(|l| l.charge.reserved_kv_tokens).sum(),
            entries: self.live.len() as u64,
            orphans: (self.live.len() - held().count()) as u64,
        };
        assert_eq!(self.scheduler.totals(), expected);
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
        prop_assert_eq!(world.scheduler.totals(), Totals::default());
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
