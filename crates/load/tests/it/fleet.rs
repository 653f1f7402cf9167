//! A fleet to test against, with requests numbered from zero.

use plimsoll_core::{EngineKind, InstanceId, LoadReport, Nanos, Rank, RequestId, Target};
use plimsoll_load::{
    Ask, AttemptEnd, Charge, HealthState, HeldTokens, InstanceSpec, PlaceError, Placed, PolicyKind, Scheduler,
    SchedulerConfig, Settled, Ticket,
};
use std::collections::BTreeMap;

pub(crate) const MODEL: &str = "model";
pub(crate) const T0: Nanos = Nanos::from_secs(100);

pub(crate) fn spec() -> InstanceSpec {
    InstanceSpec { models: vec![MODEL.to_owned()], kind: EngineKind::Sglang, ready: true, ..InstanceSpec::default() }
}

pub(crate) fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}

pub(crate) fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

pub(crate) struct Fleet {
    pub scheduler: Scheduler,
    pub now: Nanos,
    next: u128,
    /// Taken as `exclude` by every choice.
    pub exclude: Vec<InstanceId>,
    pub charge: Charge,
    /// Taken as `streams` by every choice.
    pub streams: bool,
    /// Taken as `hits` by every choice.
    pub hits: Vec<(Target, HeldTokens)>,
}

impl Fleet {
    pub(crate) fn new(policy: PolicyKind, instances: u32) -> Self {
        Fleet::with(SchedulerConfig { policy, ..SchedulerConfig::default() }, instances)
    }

    pub(crate) fn with(config: SchedulerConfig, instances: u32) -> Self {
        let charge = Charge { uncached_prefill_tokens: 1_000, reserved_kv_tokens: 1_500, sequences: 1 };
        let scheduler = Scheduler::new(config);
        let mut fleet =
            Fleet { scheduler, now: T0, next: 0, exclude: Vec::new(), charge, streams: true, hits: Vec::new() };
        for id in 0..instances {
            fleet.add(id);
        }
        fleet
    }

    /// Adds a proven instance.
    pub(crate) fn add(&mut self, id: u32) {
        self.scheduler.add_instance(InstanceId(id), spec());
        self.scheduler.probe_ok(InstanceId(id), self.now);
    }

    pub(crate) fn try_place(&mut self) -> Result<Placed, PlaceError> {
        self.next += 1;
        let ask = Ask {
            request: RequestId(self.next),
            model: Some(MODEL),
            charge: self.charge,
            streams: self.streams,
            hits: &self.hits,
            exclude: &self.exclude,
            ..Ask::default()
        };
        self.scheduler.place(self.now, &ask)
    }

    #[track_caller]
    pub(crate) fn place(&mut self) -> Placed {
        self.try_place().unwrap()
    }

    /// Places `count` requests and tells how many each instance got.
    #[track_caller]
    pub(crate) fn burst(&mut self, count: usize) -> (BTreeMap<u32, usize>, Vec<Ticket>) {
        let mut per_instance = BTreeMap::new();
        let mut tickets = Vec::new();
        for _ in 0..count {
            let placed = self.place();
            *per_instance.entry(placed.target.instance.0).or_insert(0) += 1;
            tickets.push(placed.ticket);
        }
        (per_instance, tickets)
    }

    pub(crate) fn settle(&mut self, ticket: Ticket, end: AttemptEnd) -> Settled {
        self.scheduler.settle(ticket, self.now, end)
    }

    /// One whole request: placed, first token, ended.
    #[track_caller]
    pub(crate) fn serve(&mut self, end: AttemptEnd) -> Placed {
        let placed = self.place();
        self.settle(placed.ticket, end);
        placed
    }

    pub(crate) fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
    }

    pub(crate) fn state(&mut self, id: u32) -> HealthState {
        self.scheduler.instances(self.now).into_iter().find(|i| i.id.0 == id).unwrap().health
    }

    pub(crate) fn probe_ok(&mut self, id: u32) {
        self.scheduler.probe_ok(InstanceId(id), self.now);
    }

    pub(crate) fn probe_failed(&mut self, id: u32) {
        self.scheduler.probe_failed(InstanceId(id), self.now);
    }

    /// Twice, since what only one report shows is not believed.
    pub(crate) fn report(&mut self, id: u32, report: LoadReport) {
        for _ in 0..2 {
            self.scheduler.report(InstanceId(id), LoadReport { received: self.now, ..report }, self.now);
        }
    }

    /// Takes an instance out the short way.
    pub(crate) fn eject(&mut self, id: u32) {
        self.probe_failed(id);
        self.probe_failed(id);
        assert_eq!(self.state(id), HealthState::Ejected);
    }

    /// Everything settled, nothing left over.
    #[track_caller]
    pub(crate) fn assert_empty(&mut self) {
        self.scheduler.check_invariants().unwrap();
        assert_eq!(self.scheduler.totals(self.now), plimsoll_load::Totals::default());
    }
}

/// Largest share over the mean one.
pub(crate) fn skew(per_instance: &BTreeMap<u32, usize>, instances: usize) -> f64 {
    let total: usize = per_instance.values().sum();
    let most = per_instance.values().copied().max().unwrap_or(0);
    most as f64 * instances as f64 / total as f64
}

pub(crate) fn rank_report(rank: u16) -> LoadReport {
    LoadReport { rank: Rank(rank), ..LoadReport::default() }
}
