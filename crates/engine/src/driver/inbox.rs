//! What lies between the handles and the step loop, in the order in which it came.
//!
//! A frozen engine takes nothing out, so each kind has a bound of its own: requests do not lose their place to polls, and
//! what a migration's connection brings, which that bounds itself, takes none from either. An abort that was answered is
//! never lost: the same one lies here once, however often it is sent.

use super::Command;
use std::collections::{BTreeMap, VecDeque};

#[cfg(test)]
mod tests;

/// There are too many of this kind already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Default)]
pub(super) struct Inbox {
    commands: VecDeque<Command>,
    /// Of the commands, those that [`Self::request`] and [`Self::control`] have put there.
    requests: usize,
    controls: usize,
    /// Start of the ids to abort (`None`: all) and how many commands came before.
    aborts: BTreeMap<Option<String>, usize>,
    pub(super) stop: bool,
    /// Something has changed outside that the step loop waits for.
    pub(super) woken: bool,
}

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.aborts.is_empty()
    }

    /// A request to submit.
    pub(super) fn request(&mut self, command: Command, limit: usize) -> Result<(), Full> {
        if self.requests >= limit {
            return Err(Full);
        }
        self.requests += 1;
        self.commands.push_back(command);
        Ok(())
    }

    /// A question or an order to the engine.
    pub(super) fn control(&mut self, command: Command, limit: usize) -> Result<(), Full> {
        if self.controls >= limit {
            return Err(Full);
        }
        self.controls += 1;
        self.commands.push_back(command);
        Ok(())
    }

    /// Something that its sender bounds.
    pub(super) fn parcel(&mut self, command: Command) {
        self.commands.push_back(command);
    }

    /// Ends everything that came before and whose id starts so.
    pub(super) fn abort(&mut self, prefix: Option<String>, limit: usize) -> Result<(), Full> {
        let before = self.commands.len();
        match prefix {
            // All: nothing that came before is left to the others.
            None => self.aborts.clear(),
            Some(_) if self.aborts.len() >= limit && !self.aborts.contains_key(&prefix) => return Err(Full),
            Some(_) => {}
        }
        self.aborts.insert(prefix, before);
        Ok(())
    }

    /// Everything, in order.
    pub(super) fn take(&mut self) -> Vec<Command> {
        if self.is_empty() {
            return Vec::new();
        }
        (self.requests, self.controls) = (0, 0);
        let mut aborts: Vec<_> =
            std::mem::take(&mut self.aborts).into_iter().map(|(prefix, at)| (at, prefix)).collect();
        aborts.sort_unstable();
        let mut aborts = aborts.into_iter().peekable();
        let mut all = Vec::with_capacity(self.commands.len() + aborts.len());
        for (index, command) in std::mem::take(&mut self.commands).into_iter().enumerate() {
            while let Some((_, prefix)) = aborts.next_if(|(at, _)| *at <= index) {
                all.push(Command::Abort { prefix });
            }
            all.push(command);
        }
        all.extend(aborts.map(|(_, prefix)| Command::Abort { prefix }));
        all
    }
}
