//! The engines of a run.

use super::World;
use crate::engine::{Below, EngineShape, Instance};
use crate::step_time::{SpedUp, StepTime};
use crate::tier::{Link, SharedTier, Tier, TierConfig};
use plimsoll_core::{InstanceId, LegRole, Nanos, Rank};
use plimsoll_timing::Profile;

/// Network between two engines, one direction (workload notes, section 2).
const NETWORK_BYTES_PER_S: f64 = 50e9;
const NETWORK_LATENCY: Nanos = Nanos(1_000_000);

/// What engines there are.
#[derive(Debug)]
pub struct FleetConfig {
    /// Engines that take whole requests; with decode instances, those that prefill.
    pub instances: u32,
    /// Engines that take requests over after their prefill; 0: nobody does, and prefill is not apart.
    pub decode_instances: u32,
    /// Ranks of each that step together.
    pub ranks: u16,
    pub gpus_per_instance: u32,
    pub shape: EngineShape,
    /// KV of one token on a rank.
    pub kv_bytes_token: f64,
    /// Memory of the host, for each rank.
    pub host: Option<TierConfig>,
    /// A pool that all engines read from and write to.
    pub pool: Option<TierConfig>,
    /// Between engines: hand-over and migration. The capacity does not matter.
    pub network: TierConfig,
    time: Option<Box<dyn StepTime>>,
    shared: Option<SharedTier>,
}

impl FleetConfig {
    /// So many instances of a profile, with nothing beside them.
    #[must_use]
    pub fn of(profile: Profile, instances: u32, shape: EngineShape) -> Self {
        let ranks = profile.machine.data_parallel.clamp(1, u32::from(u16::MAX)) as u16;
        FleetConfig {
            ranks,
            gpus_per_instance: profile.gpus(),
            kv_bytes_token: profile.serving.kv_bytes_token as f64,
            ..FleetConfig::with(Box::new(profile), instances, shape)
        }
    }

    /// Instances of one rank and one GPU with another cost model.
    #[must_use]
    pub fn with(time: Box<dyn StepTime>, instances: u32, shape: EngineShape) -> Self {
        FleetConfig {
            instances,
            decode_instances: 0,
            ranks: 1,
            gpus_per_instance: 1,
            shape,
            kv_bytes_token: 0.0,
            host: None,
            pool: None,
            network: TierConfig { capacity_tokens: 0, bytes_per_s: NETWORK_BYTES_PER_S, latency: NETWORK_LATENCY },
            time: Some(time),
            shared: None,
        }
    }

    /// Makes every step so many times as fast; above 0.
    pub fn speed_up(&mut self, times: f64) {
        self.time = self.time.take().map(|time| Box::new(SpedUp { time, times }) as Box<dyn StepTime>);
    }

    pub(super) fn take_time(&mut self) -> Box<dyn StepTime> {
        match self.time.take() {
            Some(time) => time,
            None => unreachable!("a fleet is built once"),
        }
    }

    /// Prefill and decode are apart.
    pub(super) fn is_split(&self) -> bool {
        self.decode_instances > 0
    }
}

/// One engine and how it stands.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) instance: Instance,
    pub(super) role: LegRole,
    /// It answers.
    pub(super) up: bool,
    /// It was started and does not answer yet.
    pub(super) starting: bool,
    /// The gateway knows of it.
    pub(super) known: bool,
    /// Its GPUs are paid for from then on.
    pub(super) since: Nanos,
    /// Its link to other engines.
    pub(super) link: Link,
}

impl World<'_> {
    pub(super) fn build_fleet(&mut self) {
        self.fleet.shared = self.fleet.pool.map(|pool| Tier::shared(pool, self.fleet.shape.block_tokens));
        let first = if self.fleet.is_split() { LegRole::Prefill } else { LegRole::Unified };
        for _ in 0..self.fleet.instances {
            self.add_engine(first);
        }
        for _ in 0..self.fleet.decode_instances {
            self.add_engine(LegRole::Decode);
        }
        for id in 0..self.engines.len() as u32 {
            self.make_known(id);
        }
    }

    /// A machine is there; nobody knows of it yet.
    pub(super) fn add_engine(&mut self, role: LegRole) -> u32 {
        let tells = self.gateway.config().cache_view;
        let mut instance = Instance::new(self.fleet.shape, self.fleet.ranks, tells);
        furnish(&self.fleet, &mut instance);
        let (since, link) = (self.now, Link::default());
        let engine = Engine { instance, role, up: true, starting: false, known: false, since, link };
        self.engines.push(engine);
        self.engines.len() as u32 - 1
    }

    /// The gateway hears of an engine, and that it answers.
    pub(super) fn make_known(&mut self, id: u32) {
        let (role, shape, ranks) = (self.engines[id as usize].role, self.fleet.shape, self.fleet.ranks);
        self.engines[id as usize].known = true;
        self.gateway.add(self.now, InstanceId(id), role, ranks, shape.kv_tokens, shape.context_tokens);
    }
}

/// Gives an engine's ranks their places below.
pub(super) fn furnish(fleet: &FleetConfig, instance: &mut Instance) {
    for rank in 0..instance.ranks().len() as u16 {
        let host = fleet.host.map(|host| Tier::new(host, fleet.shape.block_tokens));
        instance.rank_mut(Rank(rank)).set_below(Below::new(host, fleet.shared.clone(), fleet.kv_bytes_token));
    }
}
