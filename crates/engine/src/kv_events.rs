//! What enters and leaves the KV cache, told to whoever routes requests.
//!
//! A router that knows which prefixes an engine holds sends a conversation where its KV lies. Stock engines publish that
//! as *KV events* over ZMQ, with two weaknesses that a router has to live with: a late or slow subscriber has holes, and two
//! namespaces may publish the same name for different pages. Here the stream is exact: events leave in the order in which
//! the block manager acted, a page is announced before anything that hangs on it, and a name is withdrawn when the **last**
//! page of that name is gone, so that a subscriber who applies all events holds exactly the names that are cached.
//!
//! [`Log`] collects and merges the events of one step; `names` makes the names; `encode` writes SGLang's and vLLM's
//! bytes; `publish` numbers, keeps and sends them. Facts: SGLang 0.5.23, `disaggregation/kv_events.py`,
//! `mem_cache/events.py`; vLLM 0.32, `distributed/kv_events.py`.

use crate::namespace::Namespace;
use plimsoll_cache::EventHash;
use std::collections::HashMap;
use std::sync::Arc;

pub mod config;
pub mod encode;
pub mod faults;
pub mod names;
pub mod publish;

pub use config::KvEventsConfig;

#[cfg(test)]
pub(crate) mod tests;

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// In the pages that the model computes on: what a GPU's memory is to a stock engine.
    Gpu,
    /// In the offload store's memory.
    Cpu,
}

/// Whose page it is, as far as events tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub namespace: Namespace,
    /// Session of the request that computed it first. Attribution only.
    pub session_id: Option<Arc<str>>,
}

/// All that events say about one page. Names hold vLLM's unsigned numbers bit for bit too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    pub name: EventHash,
    /// Name of the page before it; `None` at the start of a prompt.
    pub parent: Option<EventHash>,
    /// As many as a page has.
    pub tokens: Box<[u32]>,
    pub owner: Arc<Owner>,
}

/// One event, after merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Pages that follow each other: `tokens` are theirs one after another, `parent` is before the first.
    Stored {
        names: Vec<EventHash>,
        parent: Option<EventHash>,
        tokens: Vec<u32>,
        owner: Arc<Owner>,
        medium: Medium,
    },
    Removed {
        names: Vec<EventHash>,
        medium: Medium,
    },
    /// Nothing is cached any more, on any medium.
    Cleared,
}

/// Everything that is cached, as events name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachedNames {
    /// Number of the batch that comes next: those before it tell all of this.
    pub next_batch: u64,
    /// In ascending order.
    pub gpu: Vec<EventHash>,
    /// In ascending order.
    pub cpu: Vec<EventHash>,
}

/// The events since the last [`Log::take`], in order.
///
/// Bounded by what can happen to the pages in one step.
#[derive(Debug, Default)]
pub struct Log {
    pending: Vec<KvEvent>,
    /// Pages per name and medium. More than one only where a scheme gives two namespaces the same names.
    copies: HashMap<(Medium, EventHash), u32>,
}

impl Log {
    /// A page became findable. Nothing is announced when its name already was.
    pub fn stored(&mut self, medium: Medium, label: &Label) {
        let copies = self.copies.entry((medium, label.name)).or_insert(0);
        *copies += 1;
        if *copies > 1 {
            return;
        }
        if let Some(KvEvent::Stored { names, tokens, owner, medium: tail, .. }) = self.pending.last_mut()
            && *tail == medium
            && label.parent.is_some()
            && names.last().copied() == label.parent
            && (Arc::ptr_eq(owner, &label.owner) || *owner == label.owner)
        {
            names.push(label.name);
            tokens.extend_from_slice(&label.tokens);
            return;
        }
        self.pending.push(KvEvent::Stored {
            names: vec![label.name],
            parent: label.parent,
            tokens: label.tokens.to_vec(),
            owner: Arc::clone(&label.owner),
            medium,
        });
    }

    /// A page is gone. Announced when it was the last of its name.
    pub fn removed(&mut self, medium: Medium, name: EventHash) {
        let Some(copies) = self.copies.get_mut(&(medium, name)) else {
            debug_assert!(false, "page {name} was never announced on {medium:?}");
            return;
        };
        *copies -= 1;
        if *copies > 0 {
            return;
        }
        self.copies.remove(&(medium, name));
        match self.pending.last_mut() {
            Some(KvEvent::Removed { names, medium: tail }) if *tail == medium => names.push(name),
            _ => self.pending.push(KvEvent::Removed { names: vec![name], medium }),
        }
    }

    /// Everything is gone: what was to be said before is said no more.
    pub fn cleared(&mut self) {
        self.copies.clear();
        self.pending.clear();
        self.pending.push(KvEvent::Cleared);
    }

    /// The events so far, which are then forgotten here.
    pub fn take(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.pending)
    }

    /// Names announced and not withdrawn, in ascending order.
    #[must_use]
    pub fn names(&self, medium: Medium) -> Vec<EventHash> {
        let mut names: Vec<_> = self.copies.keys().filter(|key| key.0 == medium).map(|key| key.1).collect();
        names.sort_unstable();
        names
    }
}
