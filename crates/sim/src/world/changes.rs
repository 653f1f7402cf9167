//! What happens to engines while a run goes on: they die, come back, become slow, join.
//!
//! The gateway finds out as it would: by streams that break, connections that nobody takes and probes that fail.

use super::{Event, World, fleet, precedence};
use plimsoll_core::{InstanceId, LegRole, Nanos};
use plimsoll_load::AttemptEnd;
use std::fmt;

/// Phases before an engine serves, one after the other, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartUp(pub Vec<(String, Nanos)>);

impl StartUp {
    /// All phases together.
    #[must_use]
    pub fn total(&self) -> Nanos {
        self.0.iter().fold(Nanos::ZERO, |sum, (_, phase)| sum + *phase)
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The process is gone, with its memory.
    Die { instance: u32 },
    /// It is started again.
    Return { instance: u32, start_up: StartUp },
    /// Its steps take so many times as long, at least once; 1 ends it.
    Slow { instance: u32, times: u64 },
    /// Another engine is started.
    Join { start_up: StartUp },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Die { instance } => write!(f, "engine {instance} dies"),
            Change::Return { instance, start_up } => {
                write!(f, "engine {instance} is started again, for {} s", start_up.total().as_secs_f64())
            }
            Change::Slow { instance, times } => write!(f, "engine {instance} takes {times} times as long for a step"),
            Change::Join { start_up } => {
                write!(f, "another engine is started, for {} s", start_up.total().as_secs_f64())
            }
        }
    }
}

/// All of them in words, in order of time; equal ones that happen at once are counted.
#[must_use]
pub fn in_words(changes: &[(Nanos, Change)]) -> String {
    let mut in_order: Vec<&(Nanos, Change)> = changes.iter().collect();
    in_order.sort_by_key(|(at, _)| *at);
    let alike = in_order.chunk_by(|one, next| one == next);
    let words = alike.map(|same| {
        let times = if same.len() > 1 { format!(" (x{})", same.len()) } else { String::new() };
        format!("at {} s {}{times}", same[0].0.as_secs_f64(), same[0].1)
    });
    words.collect::<Vec<_>>().join("; ")
}

/// Of those changes that came too late for a run that was over at `end`, what would have happened.
#[must_use]
pub fn too_late(changes: &[(Nanos, Change)], end: Nanos) -> Option<String> {
    let late: Vec<(Nanos, Change)> = changes.iter().filter(|(at, _)| *at > end).cloned().collect();
    let over = end.as_secs_f64();
    (!late.is_empty())
        .then(|| format!("the run was over at {over:.1} s, and this changed nothing: {}", in_words(&late)))
}

impl World<'_> {
    pub(super) fn note_changes(&mut self) {
        for nth in 0..self.changes.len() {
            self.idle_events += 1;
            self.agenda.put(self.changes[nth].0, precedence::CHANGE, Event::Change(nth as u32));
        }
    }

    pub(super) fn change(&mut self, nth: u32) {
        self.idle_events -= 1;
        let change = self.changes[nth as usize].1.clone();
        match change {
            Change::Die { instance } => self.die(instance),
            Change::Return { instance, start_up } => self.start_engine(instance, &start_up),
            Change::Slow { instance, times } => {
                if let Some(engine) = self.engines.get_mut(instance as usize) {
                    engine.instance.set_slowdown(times);
                }
            }
            Change::Join { start_up } => {
                let role = if self.fleet.is_split() { LegRole::Prefill } else { LegRole::Unified };
                let id = self.add_engine(role);
                self.engines[id as usize].up = false;
                self.start_engine(id, &start_up);
            }
        }
    }

    fn start_engine(&mut self, instance: u32, start_up: &StartUp) {
        self.idle_events += 1;
        if let Some(engine) = self.engines.get_mut(instance as usize) {
            engine.starting = !engine.up;
        }
        self.agenda.put(self.now + start_up.total(), precedence::CHANGE, Event::Ready(instance));
    }

    pub(super) fn ready(&mut self, id: u32) {
        self.idle_events -= 1;
        let Some(engine) = self.engines.get_mut(id as usize) else { return };
        (engine.up, engine.starting) = (true, false);
        if !engine.known {
            self.make_known(id);
        }
    }

    fn die(&mut self, id: u32) {
        let Some(engine) = self.engines.get_mut(id as usize).filter(|engine| engine.up) else { return };
        engine.up = false;
        let lost = engine.instance.die();
        // The host's memory went with the process; the pool is elsewhere.
        fleet::furnish(&self.fleet, &mut engine.instance);
        self.gateway.lost(InstanceId(id), self.fleet.ranks);
        for key in lost {
            self.broken(key, AttemptEnd::Failed);
        }
    }
}
