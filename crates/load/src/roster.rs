//! All instances, and beside them what a choice reads of their ranks.
//!
//! A choice looks at a thousand ranks in a few microseconds. It needs a quarter of what an instance is, in places that are
//! far apart, so that is kept a second time: one [`Glance`] per serving rank, in a dense list. Instances are only ever
//! changed through [`Edit`], which brings their glances in line when it ends, so nobody can forget to.

use crate::config::HealthConfig;
use crate::glance::Glance;
use crate::instance::{Instance, RankState};
use smallvec::SmallVec;
use std::ops::{Deref, DerefMut};

/// Where a glance lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row(u32);

#[derive(Debug)]
struct Slot {
    instance: Instance,
    /// One for each serving rank.
    rows: SmallVec<[Row; 2]>,
}

#[derive(Debug, Default)]
pub(crate) struct Roster {
    slots: Vec<Option<Slot>>,
    free_slots: Vec<usize>,
    glances: Glances,
    health: HealthConfig,
}

#[derive(Debug, Default)]
struct Glances {
    rows: Vec<Glance>,
    free: Vec<Row>,
}

impl Roster {
    pub(crate) fn new(health: HealthConfig) -> Self {
        Roster { health, ..Roster::default() }
    }

    /// How many trials a half-open instance takes is part of every glance.
    pub(crate) fn reconfigure(&mut self, health: HealthConfig) {
        self.health = health;
        for slot in 0..self.slots.len() {
            drop(self.edit(slot));
        }
    }

    /// The slot of a new instance.
    pub(crate) fn add(&mut self, instance: Instance) -> usize {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Slot { instance, rows: SmallVec::new() });
        drop(self.edit(slot));
        slot
    }

    pub(crate) fn remove(&mut self, slot: usize) -> Option<Instance> {
        let gone = self.slots.get_mut(slot)?.take()?;
        self.free_slots.push(slot);
        self.glances.free.extend(gone.rows);
        Some(gone.instance)
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Instance> {
        Some(&self.slots.get(slot)?.as_ref()?.instance)
    }

    pub(crate) fn edit(&mut self, slot: usize) -> Option<Edit<'_>> {
        let slot = self.slots.get_mut(slot)?.as_mut()?;
        Some(Edit { slot, glances: &mut self.glances, health: &self.health })
    }

    /// In the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Instance> {
        self.slots.iter().flatten().map(|slot| &slot.instance)
    }

    /// The rows of an instance's serving ranks, in the order of the ranks. They change with the number of ranks.
    pub(crate) fn rows(&self, slot: usize) -> &[Row] {
        self.slots.get(slot).and_then(Option::as_ref).map_or(&[], |slot| &slot.rows)
    }

    /// `row` as [`Roster::rows`] gave it.
    #[inline]
    pub(crate) fn glance(&self, row: Row) -> &Glance {
        &self.glances.rows[row.0 as usize]
    }

    /// The first instance whose glances are not what it is.
    pub(crate) fn out_of_line(&self) -> Option<&Instance> {
        let current = |slot: &Slot, rank: usize| {
            slot.rows.get(rank).is_some_and(|&row| *self.glance(row) == Glance::of(&slot.instance, rank, &self.health))
        };
        let stale = |slot: &&Slot| {
            let ranks = slot.instance.rank_count();
            slot.rows.len() != ranks || !(0..ranks).all(|rank| current(slot, rank))
        };
        self.slots.iter().flatten().find(stale).map(|slot| &slot.instance)
    }
}

/// An instance that may be changed.
#[derive(Debug)]
pub(crate) struct Edit<'a> {
    slot: &'a mut Slot,
    glances: &'a mut Glances,
    health: &'a HealthConfig,
}

impl Deref for Edit<'_> {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.slot.instance
    }
}

impl DerefMut for Edit<'_> {
    fn deref_mut(&mut self) -> &mut Instance {
        &mut self.slot.instance
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        let Slot { instance, rows } = &mut *self.slot;
        let serving = instance.rank_count();
        if instance.ranks.len() < serving {
            instance.ranks.resize(serving, RankState::EMPTY);
        }
        while rows.len() > serving {
            self.glances.free.extend(rows.pop());
        }
        for rank in 0..serving {
            let glance = Glance::of(instance, rank, self.health);
            match rows.get(rank) {
                Some(&row) => self.glances.rows[row.0 as usize] = glance,
                None => rows.push(self.glances.add(glance)),
            }
        }
    }
}

impl Glances {
    fn add(&mut self, glance: Glance) -> Row {
        if let Some(row) = self.free.pop() {
            self.rows[row.0 as usize] = glance;
            return row;
        }
        self.rows.push(glance);
        Row(self.rows.len() as u32 - 1)
    }
}
