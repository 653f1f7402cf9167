//! Is an instance in, out, or on trial?
//!
//! Peers need 60-180 s to notice a frozen engine and 12 s and more to use a revived one; 4xx and overload answers open
//! their breakers, and one per cent of resets ejects a fleet (`gateways.md` §3.3, §5 cases 29, 30, 33). The rules here:
//!
//! - Probes eject only when no stream of the instance moved between them, so that a long prefill is not a freeze.
//! - Failed requests eject when they come in a row. Failed connects count in a short row of their own, which any sign
//!   of life ends: nobody listening is stronger evidence than a broken answer.
//! - 4xx, refusals and cancellations are never held against an instance.
//! - Only evidence that is younger than the last ejection counts for or against readmission (`era`): streams that die
//!   late with an old failure must not throw out what has recovered.
//! - Readmission goes through a bounded number of trial requests.
//!
//! - Where all are out (panic), one that has answered no probe since it was ejected takes as many requests at once as there are trials: any
//!   sign of life lets it in again, and without one everybody would wait for a frozen engine until his time is up. Unless it has
//!   answered requests while it answered no probe: then it is the probes that are not to be believed.
//!
//! Who is asked in panic is the scheduler's business.

#[cfg(test)]
mod tests;

use crate::ask::AttemptEnd;
use crate::config::HealthConfig;
use plimsoll_core::InstanceId;
use serde::Serialize;
use std::fmt;

/// Health of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Added, never answered a probe.
    Unproven,
    Healthy,
    Ejected,
    /// Answers probes again; trial requests decide.
    HalfOpen,
}

impl HealthState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            HealthState::Unproven => "unproven",
            HealthState::Healthy => "healthy",
            HealthState::Ejected => "ejected",
            HealthState::HalfOpen => "half_open",
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transition, for the log line and the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HealthChange {
    pub instance: InstanceId,
    pub from: HealthState,
    pub to: HealthState,
    pub why: &'static str,
}

/// The moment of a choice as health sees it; kept in the ledger entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Number of ejections before it.
    era: u32,
    /// Placed while half open.
    trial: bool,
    /// Placed while ejected, because all were.
    last_resort: bool,
}

impl Stamp {
    pub(crate) const fn is_trial(self) -> bool {
        self.trial
    }
}

/// What a transition says, without the instance's name.
pub(crate) type Change = (HealthState, HealthState, &'static str);

/// Probes in a row, with no trial sent, that readmit without a trial.
const IDLE_PROBES: u32 = 2;

/// One instance's machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Health {
    state: HealthState,
    era: u32,
    trials: u32,
    /// Of those in flight, placed since it was ejected; counted while it is.
    last_resorts: u32,
    /// It answered a request while it was out for its probes, and no probe since.
    probes_doubted: bool,
    request_failures: u32,
    connect_failures: u32,
    probe_failures: u32,
    idle_probes: u32,
}

impl Health {
    pub(crate) const fn new() -> Self {
        Health {
            state: HealthState::Unproven,
            era: 0,
            trials: 0,
            last_resorts: 0,
            probes_doubted: false,
            request_failures: 0,
            connect_failures: 0,
            probe_failures: 0,
            idle_probes: 0,
        }
    }

    pub(crate) const fn state(&self) -> HealthState {
        self.state
    }

    /// Trial requests in flight.
    pub(crate) const fn trials(&self) -> u32 {
        self.trials
    }

    /// True while `stamp` holds one of [`Health::trials`].
    pub(crate) const fn holds_trial(&self, stamp: Stamp) -> bool {
        stamp.trial && stamp.era == self.era
    }

    /// Requests in flight that were placed since it was ejected; 0 where it is not.
    pub(crate) const fn last_resorts(&self) -> u32 {
        self.last_resorts
    }

    /// True while `stamp` holds one of [`Health::last_resorts`].
    pub(crate) const fn holds_last_resort(&self, stamp: Stamp) -> bool {
        matches!(self.state, HealthState::Ejected) && stamp.last_resort && stamp.era == self.era
    }

    /// Takes another one in panic.
    #[inline]
    pub(crate) fn takes_last_resort(&self, config: &HealthConfig) -> bool {
        match self.state {
            HealthState::HalfOpen => true,
            HealthState::Ejected => self.probes_doubted || self.last_resorts < config.half_open_requests.max(1),
            HealthState::Healthy | HealthState::Unproven => false,
        }
    }

    /// In without panic: healthy, or half open with a free trial.
    #[inline]
    pub(crate) fn open(&self, config: &HealthConfig) -> bool {
        self.state == HealthState::Healthy
            || (self.state == HealthState::HalfOpen && self.trials < config.half_open_requests.max(1))
    }

    pub(crate) fn placed(&mut self) -> Stamp {
        let trial = self.state == HealthState::HalfOpen;
        if trial {
            self.trials = self.trials.saturating_add(1);
            self.idle_probes = 0;
        }
        let last_resort = self.state == HealthState::Ejected;
        if last_resort {
            self.last_resorts = self.last_resorts.saturating_add(1);
        }
        Stamp { era: self.era, trial, last_resort }
    }

    /// A stream of the instance moved.
    pub(crate) fn progress(&mut self) {
        self.probe_failures = 0;
        self.connect_failures = 0;
    }

    pub(crate) fn first_token(&mut self, stamp: Stamp) -> Option<Change> {
        self.progress();
        self.answered(stamp, "gave a first token")
    }

    pub(crate) fn ended(&mut self, stamp: Stamp, end: AttemptEnd, config: &HealthConfig) -> Option<Change> {
        let trial = self.holds_trial(stamp);
        if trial {
            self.trials = self.trials.saturating_sub(1);
        }
        if self.holds_last_resort(stamp) {
            self.last_resorts = self.last_resorts.saturating_sub(1);
        }
        match end {
            AttemptEnd::Ok => {
                self.progress();
                self.request_failures = 0;
                self.answered(stamp, "answered a request")
            }
            AttemptEnd::ClientFault => {
                self.progress();
                self.answered(stamp, "answered a request")
            }
            AttemptEnd::Cancelled | AttemptEnd::Refused { .. } => None,
            AttemptEnd::ConnectFailed | AttemptEnd::Failed | AttemptEnd::Stalled => {
                self.failed(stamp, trial, end, config)
            }
        }
    }

    pub(crate) fn probe_ok(&mut self) -> Option<Change> {
        self.progress();
        self.probes_doubted = false;
        match self.state {
            HealthState::Healthy => None,
            HealthState::Unproven => self.go(HealthState::Healthy, "answered its first probe"),
            HealthState::Ejected => self.go(HealthState::HalfOpen, "answers probes again"),
            HealthState::HalfOpen if self.trials > 0 => None,
            HealthState::HalfOpen => {
                self.idle_probes += 1;
                if self.idle_probes < IDLE_PROBES {
                    return None;
                }
                self.go(HealthState::Healthy, "answered further probes with no request sent")
            }
        }
    }

    pub(crate) fn probe_failed(&mut self, config: &HealthConfig) -> Option<Change> {
        self.idle_probes = 0;
        self.probe_failures = self.probe_failures.saturating_add(1);
        let out = matches!(self.state, HealthState::Healthy | HealthState::HalfOpen);
        if out && self.probe_failures >= config.probe_failures.max(1) {
            return self.go(HealthState::Ejected, "answers no probe and moves no stream");
        }
        None
    }

    fn answered(&mut self, stamp: Stamp, why: &'static str) -> Option<Change> {
        if self.state == HealthState::Healthy || stamp.era != self.era {
            return None;
        }
        self.probes_doubted = self.state == HealthState::Ejected;
        self.go(HealthState::Healthy, why)
    }

    fn failed(&mut self, stamp: Stamp, trial: bool, end: AttemptEnd, config: &HealthConfig) -> Option<Change> {
        if stamp.era != self.era {
            return None;
        }
        let connect = end == AttemptEnd::ConnectFailed;
        self.connect_failures = if connect { self.connect_failures.saturating_add(1) } else { 0 };
        self.request_failures = self.request_failures.saturating_add(1);
        match self.state {
            HealthState::HalfOpen if trial => self.go(HealthState::Ejected, "failed its trial request"),
            HealthState::Healthy if self.connect_failures >= config.connect_failures.max(1) => {
                self.go(HealthState::Ejected, "accepts no connection")
            }
            HealthState::Healthy if self.request_failures >= config.request_failures.max(1) => {
                self.go(HealthState::Ejected, "failed several requests in a row")
            }
            _ => None,
        }
    }

    fn go(&mut self, to: HealthState, why: &'static str) -> Option<Change> {
        let from = self.state;
        self.state = to;
        self.request_failures = 0;
        self.connect_failures = 0;
        self.probe_failures = 0;
        self.idle_probes = 0;
        self.last_resorts = 0;
        if to == HealthState::Ejected {
            self.era = self.era.wrapping_add(1);
            self.trials = 0;
        }
        Some((from, to, why))
    }
}
