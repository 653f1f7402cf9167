//! Listening to an engine's KV events for as long as it is in the fleet.
//!
//! The probe says where each rank publishes; one task per rank feeds the view. When the engine moves its sockets, changes its model or
//! leaves, its tasks end and what was believed of it is forgotten.

use crate::fleet::EngineHandle;
use crate::kv_view::{Entry, Said};
use crate::state::Shared;
use plimsoll_core::{EngineKind, Rank, Target};
use plimsoll_pools::capability::Capability;
use plimsoll_pools::kv_events::{Heard, Source, Subscription};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// What there is to know of an engine's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    Told(Sources),
    /// It tells nothing, but how much it can hold.
    Assumed {
        model: String,
        kind: EngineKind,
        page_tokens: Option<u32>,
        ranks: u16,
        rank_tokens: u64,
    },
}

/// What is listened to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sources {
    model: String,
    kind: EngineKind,
    block_tokens: Option<u32>,
    ranks: Vec<Source>,
}

/// The listening tasks of one engine; they end with it.
#[derive(Default)]
pub(crate) struct Following {
    known: Option<Known>,
    tasks: JoinSet<()>,
    /// Ranks whose caches are assumed.
    assumed: Vec<Place>,
}

impl Following {
    /// The engine may be another process by now, with empty caches. Those that tell of them are heard to be gone.
    pub(crate) fn restarted(&self) {
        for place in &self.assumed {
            place.shared.kv_views.lost(&place.model, place.target);
        }
    }

    /// Listens to what the engine offers now; goes on where nothing has changed.
    pub(crate) fn follow(&mut self, shared: &Arc<Shared>, engine: &Arc<EngineHandle>, found: &Capability) {
        let wanted = sources(found).map(Known::Told).or_else(|| assumed(engine, found));
        if wanted == self.known {
            return;
        }
        self.tasks.abort_all();
        self.tasks = JoinSet::new();
        self.assumed.clear();
        self.known.clone_from(&wanted);
        let wanted = match wanted {
            None => return,
            Some(Known::Told(sources)) => sources,
            Some(Known::Assumed { model, kind, page_tokens, ranks, rank_tokens }) => {
                for rank in 0..ranks {
                    let target = Target { instance: engine.id, rank: Rank(rank) };
                    let entry = shared.kv_views.add_approximate(&model, target, kind, page_tokens, rank_tokens);
                    self.assumed.push(Place { shared: shared.clone(), model: model.clone(), target, entry });
                }
                tracing::info!(engine = %engine.id, "no KV events: its caches are taken from what is sent there");
                return;
            }
        };
        for (rank, source) in wanted.ranks.into_iter().enumerate() {
            let target = Target { instance: engine.id, rank: Rank(rank as u16) };
            tracing::info!(engine = %engine.id, rank, endpoint = source.live, "listening to KV events");
            let entry = shared.kv_views.add(&wanted.model, target, wanted.kind, wanted.block_tokens);
            let place = Place { shared: shared.clone(), model: wanted.model.clone(), target, entry };
            self.tasks.spawn(listen(place, source));
        }
    }
}

/// `None` where nobody says how much it can hold.
fn assumed(engine: &EngineHandle, found: &Capability) -> Option<Known> {
    let model = found.models.iter().find(|model| model.parent.is_none())?.id.clone();
    let ranks = found.dp_ranks.max(1);
    let set = engine.settings().capacity_kv_tokens.map(|tokens| tokens / u64::from(ranks));
    let rank_tokens = set.or(found.kv_capacity_tokens).filter(|tokens| *tokens > 0)?;
    Some(Known::Assumed { model, kind: found.kind, page_tokens: found.page_size_tokens, ranks, rank_tokens })
}

fn sources(found: &Capability) -> Option<Sources> {
    let events = found.kv_events.as_ref()?;
    // Adapters share the KV events of the model they lie on.
    let model = found.models.iter().find(|model| model.parent.is_none())?.id.clone();
    let ranks = events.endpoints.iter().enumerate().map(|(rank, live)| Source {
        live: live.clone(),
        replay: events.replay_endpoints.get(rank).cloned(),
        topic: events.topic.clone(),
    });
    let block_tokens = events.block_size_tokens.or(found.page_size_tokens);
    Some(Sources { model, kind: found.kind, block_tokens, ranks: ranks.collect() })
}

/// A target's place in the views; leaving it takes everything believed with it.
struct Place {
    shared: Arc<Shared>,
    model: String,
    target: Target,
    entry: Entry,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.kv_views.remove(&self.model, self.target, self.entry);
    }
}

async fn listen(place: Place, source: Source) {
    let (shared, target) = (&place.shared, place.target);
    let mut subscription = match Subscription::start(source) {
        Ok(subscription) => subscription,
        Err(error) => {
            tracing::warn!(engine = %target.instance, error, "KV events cannot be listened to");
            return;
        }
    };
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let said = tokio::select! {
            heard = subscription.heard.recv() => match heard {
                Some(Heard::Live { seq, batch }) => Said::Live { seq, batch },
                Some(Heard::Replayed { seq, batch }) => Said::Replayed { seq, batch },
                Some(Heard::ReplayEnded) => Said::ReplayEnded,
                Some(Heard::Gone) => Said::Gone,
                Some(Heard::Connected) => {
                    tracing::debug!(engine = %target.instance, "connected to KV events");
                    continue;
                }
                Some(Heard::Lost(why)) => {
                    tracing::debug!(engine = %target.instance, why, "no connection to KV events");
                    continue;
                }
                Some(Heard::Undecodable(why)) => {
                    shared.metrics.kv_events_undecodable.inc();
                    tracing::debug!(engine = %target.instance, why, "a message that is no batch of KV events");
                    continue;
                }
                None => return,
            },
            _ = ticks.tick() => {
                shared.kv_views.tick(shared.now());
                continue;
            }
        };
        if let Some(from) = shared.kv_views.said(shared.now(), &place.model, target, place.entry, said) {
            subscription.replay(from);
        }
    }
}
