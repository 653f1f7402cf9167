//! What a subscriber makes of the events, and how they are merged.

use super::*;
use std::collections::BTreeSet;

pub(crate) mod decode;

/// A subscriber: applies events and complains about any that makes no sense where it stands.
#[derive(Debug, Default)]
pub(crate) struct Mirror(BTreeSet<(Medium, EventHash)>);

impl Mirror {
    pub(crate) fn apply(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored { names, parent, tokens, medium, .. } => {
                    assert!(!names.is_empty() && tokens.len().is_multiple_of(names.len()), "{event:?}");
                    let known = |name| [Medium::Gpu, Medium::Cpu].iter().any(|m| self.0.contains(&(*m, name)));
                    assert!(parent.is_none_or(known), "nobody told of the parent: {event:?}");
                    for name in names {
                        assert!(self.0.insert((*medium, *name)), "announced twice: {event:?}");
                    }
                }
                KvEvent::Removed { names, medium } => {
                    for name in names {
                        assert!(self.0.remove(&(*medium, *name)), "withdrawn but never announced: {event:?}");
                    }
                }
                KvEvent::Cleared => self.0.clear(),
            }
        }
    }

    pub(crate) fn on(&self, medium: Medium) -> Vec<EventHash> {
        self.0.iter().filter(|page| page.0 == medium).map(|page| page.1).collect()
    }
}

fn label(name: EventHash, parent: Option<EventHash>) -> Label {
    Label { name, parent, tokens: Box::new([name as u32; 2]), owner: Arc::default() }
}

#[test]
fn chained_stores_become_one_event_and_removals_too() {
    let mut log = Log::default();
    log.stored(Medium::Gpu, &label(1, None));
    log.stored(Medium::Gpu, &label(2, Some(1)));
    log.stored(Medium::Gpu, &label(3, Some(2)));
    // Another branch, another medium, another owner: events of their own.
    log.stored(Medium::Gpu, &label(9, Some(1)));
    log.stored(Medium::Cpu, &label(3, Some(2)));
    let owner = Arc::new(Owner { session_id: Some("s".into()), ..Owner::default() });
    log.stored(Medium::Gpu, &Label { owner, ..label(10, Some(9)) });
    log.removed(Medium::Gpu, 10);
    log.removed(Medium::Gpu, 3);
    log.removed(Medium::Cpu, 3);
    let events = log.take();
    let shape: Vec<(usize, Option<EventHash>)> = events
        .iter()
        .map(|event| match event {
            KvEvent::Stored { names, parent, .. } => (names.len(), *parent),
            KvEvent::Removed { names, .. } => (names.len(), None),
            KvEvent::Cleared => (0, None),
        })
        .collect();
    assert_eq!(shape, [(3, None), (1, Some(1)), (1, Some(2)), (1, Some(9)), (2, None), (1, None)]);
    let KvEvent::Stored { tokens, .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!(tokens, &[1, 1, 2, 2, 3, 3]);
    assert_eq!(log.take(), []);
    assert_eq!((log.names(Medium::Gpu), log.names(Medium::Cpu)), (vec![1, 2, 9], Vec::new()));
}

#[test]
fn a_name_is_withdrawn_with_its_last_page() {
    let mut log = Log::default();
    log.stored(Medium::Gpu, &label(1, None));
    log.stored(Medium::Gpu, &label(1, None));
    log.removed(Medium::Gpu, 1);
    assert_eq!(log.take().len(), 1);
    log.removed(Medium::Gpu, 1);
    assert_eq!(log.take(), [KvEvent::Removed { names: vec![1], medium: Medium::Gpu }]);
}

#[test]
fn a_clear_outdoes_what_came_before() {
    let mut log = Log::default();
    log.stored(Medium::Gpu, &label(1, None));
    log.stored(Medium::Cpu, &label(2, None));
    log.cleared();
    assert_eq!(log.take(), [KvEvent::Cleared]);
    assert!(log.names(Medium::Cpu).is_empty());
    log.stored(Medium::Gpu, &label(1, None));
    assert_eq!(log.take().len(), 1);
}
