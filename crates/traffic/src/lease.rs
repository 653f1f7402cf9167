//! Which part of the fleet's budget is this gateway's, where several stand before the same engines.
//!
//! Each gateway would admit the whole budget by itself, and the engines would get as much again from every further one. So each tells the
//! others once a second what its clients ask for ([`GatewayReport`]), and takes of each class, with `n` gateways that are heard,
//!
//! ```text
//! share = FLOOR / n + (1 - FLOOR) x own demand / everybody's demand          (1 / n where nobody asks)
//! ```
//!
//! The floor lets a gateway that had no traffic serve its first requests at once. Nobody is asked and nothing is agreed on: the shares of
//! gateways that heard the same reports add up to one because all compute the same sum.
//!
//! **A share is computed from reports that have passed through the store, one's own included.** A gateway hears its own reports; the last one
//! that came back is what it knows of itself, and the proof that the way there and back works. Cut off, it hears neither itself nor others,
//! and its share stays as it was without a rule for it. A peer is given up only by a gateway that hears itself: when one of its own
//! reports comes back, and for [`LeaseRules::lease`] of unbroken contact there was none of the peer's. Silence of the store is
//! nobody's absence. Ages are told by the receiver's clock alone.
//!
//! Whoever has not had contact for a whole lease yet does not know who else there is, and takes no more than an equal part among
//! [`LeaseRules::assumed_gateways`], or among those that it has heard if they are more.
//!
//! ## How far the sum may be from one
//! Demand is smoothed where it is measured (time constant 10 s), so shares move with it and need no smoothing of their own. With reports once a second:
//!
//! | case | sum of the shares | for how long |
//! |---|---|---|
//! | all hear all | 1 | |
//! | a report is on its way, or one was lost | 1 + what that report moved; of a step in demand a tenth per second | until it, or the next one, is there |
//! | a gateway joins | 1 + 1 / n of the newcomer | until its first report is heard, 1 s |
//! | one dies | 1 - its share | the lease and 1 s |
//! | one leaves in order, or is stopped (SIGSTOP) and thawed | 1, or 1 + its share | until its next report, 1 s |
//! | the store is gone | 1, and of each gateway that starts meanwhile an equal part on top | until it is back |
//! | one is cut off from it and the others are not | 1 + its last share | until it is back |
//!
//! The last line is the price of serving on without contact. What is beyond one shows in the water level, which comes from the engines and holds
//! everybody's load, and tightens the quotas of all.

use plimsoll_core::{Class, GatewayId, GatewayReport, ModelDemand, Nanos};
use serde::Serialize;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// The part of each budget that is divided evenly.
pub const FLOOR: f64 = 0.1;
/// Gateways listened to at most; further ones are no more than noise on the subject.
pub const MOST_PEERS: usize = 1_024;

/// Reports that may be on their way when one's own comes back. More, and what is heard is of too long ago to share by: no contact.
const MOST_BEHIND: u64 = 2;

/// What the operator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRules {
    /// A gateway that is silent for so long while contact holds is given up. Several reports long.
    pub lease: Nanos,
    /// How many gateways there are taken to be until it is known.
    pub assumed_gateways: u32,
}

/// What a gateway may count as its own, of one model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lease {
    /// Of the budget of each class: high, medium, low; 0 to 1.
    pub share: [f64; 3],
    /// Of the engines that long prefills of the lower classes may keep: all gateways' parts lie side by side from 0 to 1, the smallest
    /// first, and this is where its own begins and ends.
    pub long_between: [f64; 2],
    /// What the others' clients ask for, and what waits at the others; the longest of their prefills.
    pub others: ModelDemand,
}

impl Lease {
    /// This gateway's of so many engines. What all gateways have together is so many, each being a whole number: two halves of three engines are one and
    /// two, or one would stand idle; and what is left by the small goes to the large, who can use it.
    #[must_use]
    pub fn of_engines(&self, engines: usize) -> usize {
        // A little more than nothing, so that the end of the last part is not just below the end.
        let [begin, end] = self.long_between.map(|at| (at * engines as f64 + 1e-9) as usize);
        end.saturating_sub(begin)
    }
}

/// How the shares came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Standing {
    /// Nobody was ever heard: an equal part among as many as there are taken to be.
    Unknown,
    /// Contact, for less than a lease yet.
    Joining,
    /// Contact.
    Held,
    /// Contact was lost; the shares are those of then. `since`: when an own report came back last.
    Kept { since: Nanos },
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Own,
    Peer,
    /// It is older than what is known of that gateway.
    Late,
    /// There are too many gateways already.
    TooMany,
    /// It has this gateway's name, and this gateway has not said it: nothing is taken from it.
    NotMine,
}

#[derive(Clone, Debug)]
struct Peer {
    report: GatewayReport,
    heard_at: Nanos,
}

/// Unbroken contact.
#[derive(Clone, Copy, Debug)]
struct Contact {
    since: Nanos,
    last: Nanos,
}

/// What one gateway knows of all.
#[derive(Debug)]
pub struct Leases {
    own: GatewayId,
    rules: LeaseRules,
    /// The number of the last own report that was sent.
    said: u64,
    /// The last own report that came back.
    echo: Option<GatewayReport>,
    peers: BTreeMap<GatewayId, Peer>,
    contact: Option<Contact>,
    /// It has once had contact for a whole lease.
    joined: bool,
}

impl Leases {
    #[must_use]
    pub fn new(own: GatewayId, rules: LeaseRules) -> Self {
        Leases { own, rules, said: 0, echo: None, peers: BTreeMap::new(), contact: None, joined: false }
    }

    #[must_use]
    pub fn own(&self) -> GatewayId {
        self.own
    }

    /// An own report goes out now. Call it before.
    pub fn saying(&mut self, sequence: u64) {
        self.said = self.said.max(sequence);
    }

    /// A report came, one's own or another's. Reports of unsound numbers are the caller's to leave out.
    pub fn hear(&mut self, now: Nanos, report: GatewayReport) -> Heard {
        if report.gateway == self.own {
            if self.echo.as_ref().is_some_and(|known| known.sequence >= report.sequence) {
                return Heard::Late;
            }
            let Some(behind) = self.said.checked_sub(report.sequence) else { return Heard::NotMine };
            self.echo = Some(report);
            if behind <= MOST_BEHIND {
                self.proved(now);
            }
            return Heard::Own;
        }
        match self.peers.get(&report.gateway) {
            Some(known) if known.report.sequence >= report.sequence => return Heard::Late,
            None if self.peers.len() >= MOST_PEERS && !report.leaving => return Heard::TooMany,
            _ => {}
        }
        if report.leaving {
            self.peers.remove(&report.gateway);
        } else {
            self.peers.insert(report.gateway, Peer { report, heard_at: now });
        }
        Heard::Peer
    }

    /// The way to the store and back works now.
    fn proved(&mut self, now: Nanos) {
        let unbroken = self.contact.filter(|contact| now.since(contact.last) <= self.gap());
        let since = unbroken.map_or(now, |contact| contact.since);
        self.contact = Some(Contact { since, last: now });
        self.joined |= now.since(since) >= self.rules.lease;
        let lease = self.rules.lease;
        self.peers.retain(|_, peer| now.since(peer.heard_at.max(since)) <= lease);
    }

    /// Without an own report for so long contact is lost.
    fn gap(&self) -> Nanos {
        Nanos(self.rules.lease.0 / 5 * 3)
    }

    #[must_use]
    pub fn standing(&self, now: Nanos) -> Standing {
        match self.contact {
            None => Standing::Unknown,
            Some(contact) if now.since(contact.last) > self.gap() => Standing::Kept { since: contact.last },
            Some(_) if !self.joined => Standing::Joining,
            Some(_) => Standing::Held,
        }
    }

    /// Gateways that count, this one among them.
    #[must_use]
    pub fn gateways(&self) -> usize {
        1 + self.peers.len()
    }

    /// The others, and how long ago each was heard.
    pub fn peers(&self, now: Nanos) -> impl Iterator<Item = (GatewayId, Nanos)> {
        self.peers.iter().map(move |(id, peer)| (*id, now.since(peer.heard_at)))
    }

    /// The part of a model's budget that is this gateway's.
    #[must_use]
    pub fn lease(&self, model: &str, now: Nanos) -> Lease {
        let own = self.echo.as_ref().map(|report| demand(report, model)).unwrap_or_default();
        let mut others = ModelDemand::default();
        for peer in self.peers.values() {
            let theirs = demand(&peer.report, model);
            for (sum, one) in others.asked_tokens_per_s.iter_mut().zip(theirs.asked_tokens_per_s) {
                *sum += one;
            }
            others.high_prefill_tokens_per_s += theirs.high_prefill_tokens_per_s;
            others.waiting_prefill_tokens += theirs.waiting_prefill_tokens;
            others.long_prefill_tokens = others.long_prefill_tokens.max(theirs.long_prefill_tokens);
        }
        let asked = |demand: &ModelDemand, class: Class| demand.asked_tokens_per_s[class as usize];
        let lower = |demand: &ModelDemand| asked(demand, Class::Medium) + asked(demand, Class::Low);
        let share = Class::ALL.map(|class| self.share(asked(&own, class), asked(&others, class)));
        let (own_lower, all_lower) = (lower(&own), lower(&own) + lower(&others));
        let own_place = (own_lower, self.own);
        let before = self.peers.iter().filter_map(|(id, peer)| {
            let theirs = lower(&demand(&peer.report, model));
            let smaller = theirs.total_cmp(&own_place.0).then(id.cmp(&own_place.1)).is_lt();
            smaller.then(|| self.part(theirs, all_lower - theirs))
        });
        let begin: f64 = before.sum();
        let long_between = [begin, begin + self.share(own_lower, lower(&others))];
        // Queues and prefills are done within seconds. What was heard of longer ago than that would hold the level for nothing.
        if !matches!(self.standing(now), Standing::Held | Standing::Joining) {
            (others.waiting_prefill_tokens, others.long_prefill_tokens) = (0.0, 0.0);
        }
        Lease { share, long_between, others }
    }

    /// What this gateway takes.
    fn share(&self, own: f64, others: f64) -> f64 {
        let part = self.part(own, others);
        if self.joined {
            return part;
        }
        part.min(1.0 / self.gateways() as f64).min(1.0 / f64::from(self.rules.assumed_gateways.max(1)))
    }

    /// The part of one gateway that asks for `one` while the rest asks for `rest`.
    fn part(&self, one: f64, rest: f64) -> f64 {
        let gateways = self.gateways();
        if gateways == 1 {
            return 1.0;
        }
        let equal = 1.0 / gateways as f64;
        let proportion = if one + rest > 0.0 { one / (one + rest) } else { equal };
        FLOOR * equal + (1.0 - FLOOR) * proportion
    }
}

fn demand(report: &GatewayReport, model: &str) -> ModelDemand {
    report.models.get(model).copied().unwrap_or_default()
}
