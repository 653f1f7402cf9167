//! Listening to an engine's KV events for as long as it is in the fleet.
//!
//! The probe says where each rank publishes; one task per rank feeds the view. When the engine moves its sockets, changes its model or
//! leaves, its tasks end and what was believed of it is forgotten.

use crate::fleet::EngineHandle;
use crate::kv_view::{Alias, Basis, Entry, Said, ViewName};
use crate::state::Shared;
use plimsoll_core::{EngineKind, Rank, Target};
use plimsoll_pools::capability::Capability;
use plimsoll_pools::kv_events::{Heard, Source, Subscription};
use plimsoll_protocol::request::GRAM_BYTES;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// What there is to know of an engine's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    /// What it tells of them.
    told: Option<Sources>,
    /// How much it can hold.
    room: Option<Room>,
    /// By which other names its model and adapters are asked for.
    names: BTreeMap<String, Alias>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Room {
    model: String,
    kind: EngineKind,
    page_tokens: Option<u32>,
    ranks: u16,
    rank_tokens: u64,
}

/// A change of a token's bytes by less than this share changes nothing.
const RESIZED_SHARE: f64 = 0.05;

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
    /// Bytes of a token when their rooms for text were measured.
    bytes_per_token: f64,
}

impl Following {
    /// The engine is another process by now, with empty caches. `sure`: not only may be. One that may be, and tells of its caches, would
    /// be heard to be gone.
    pub(crate) fn restarted(&mut self, sure: bool) {
        for place in &self.assumed {
            place.shared.kv_views.lost(place.view(), place.target);
        }
        if sure {
            // Whatever connection there is to the old process, it is followed anew.
            self.known = None;
        }
    }

    /// Listens to what the engine offers now; goes on where nothing has changed.
    pub(crate) fn follow(&mut self, shared: &Arc<Shared>, engine: &Arc<EngineHandle>, found: &Capability) {
        let wanted = Known { told: sources(found), room: room(engine, found), names: names(engine, found) };
        if self.known.as_ref() == Some(&wanted) {
            self.measure_texts(shared);
            return;
        }
        self.tasks.abort_all();
        self.tasks = JoinSet::new();
        self.assumed.clear();
        self.known = Some(wanted.clone());
        shared.kv_views.name(&wanted.names);
        if let Some(room) = wanted.room {
            self.bytes_per_token = shared.token_estimate.bytes_per_token(&room.model);
            self.assume(shared, engine, &room, wanted.told.is_none());
        }
        let Some(told) = wanted.told else { return };
        for (rank, source) in told.ranks.into_iter().enumerate() {
            let target = Target { instance: engine.id, rank: Rank(rank as u16) };
            tracing::info!(engine = %engine.id, rank, endpoint = source.live, "listening to KV events");
            let entry = shared.kv_views.add(&told.model, target, told.kind, told.block_tokens);
            let place = Place { shared: shared.clone(), basis: Basis::Ids, model: told.model.clone(), target, entry };
            self.tasks.spawn(listen(place, source));
        }
    }

    /// Texts are always compared by what is sent; ids only where the engine tells nothing.
    fn assume(&mut self, shared: &Arc<Shared>, engine: &EngineHandle, room: &Room, ids_too: bool) {
        let Room { model, kind, page_tokens, ranks, rank_tokens } = room;
        let (views, bytes_per_token) = (&shared.kv_views, self.bytes_per_token);
        for rank in 0..*ranks {
            let target = Target { instance: engine.id, rank: Rank(rank) };
            let mut place = |basis, entry| {
                self.assumed.push(Place { shared: shared.clone(), basis, model: model.clone(), target, entry });
            };
            if ids_too {
                place(Basis::Ids, views.add_approximate(model, target, *kind, *page_tokens, *rank_tokens));
            }
            place(Basis::Text, views.add_text(model, target, *kind, grams(*rank_tokens, bytes_per_token)));
        }
        if ids_too {
            tracing::info!(engine = %engine.id, "no KV events: its caches are taken from what is sent there");
        }
    }

    /// Answers have taught how many bytes a token has: so much text is in a cache.
    fn measure_texts(&mut self, shared: &Shared) {
        let Some(room) = self.known.as_ref().and_then(|known| known.room.as_ref()) else { return };
        let bytes_per_token = shared.token_estimate.bytes_per_token(&room.model);
        if (bytes_per_token / self.bytes_per_token - 1.0).abs() < RESIZED_SHARE {
            return;
        }
        self.bytes_per_token = bytes_per_token;
        for place in self.assumed.iter().filter(|place| place.basis == Basis::Text) {
            let grams = grams(room.rank_tokens, bytes_per_token);
            shared.kv_views.resize_text(&place.model, place.target, place.entry, grams);
        }
    }
}

fn grams(tokens: u64, bytes_per_token: f64) -> u64 {
    (tokens as f64 * bytes_per_token / GRAM_BYTES as f64) as u64
}

/// The model whose KV an engine holds: the first that is no adapter.
fn base(found: &Capability) -> Option<&str> {
    found.models.iter().find(|model| model.parent.is_none()).map(|model| model.id.as_str())
}

/// Names that clients may use for it, other than its own.
fn names(engine: &EngineHandle, found: &Capability) -> BTreeMap<String, Alias> {
    let Some(base) = base(found) else { return BTreeMap::new() };
    let settings = engine.settings();
    let adapter = |name: &str| found.models.iter().any(|model| model.id == name && model.parent.is_some());
    let served = found.models.iter().map(|model| &model.id).chain(&settings.models).filter(|name| *name != base);
    let alias = |name: &String| Alias { model: base.to_owned(), adapter: adapter(name).then(|| name.clone()) };
    served.map(|name| (name.clone(), alias(name))).collect()
}

/// `None` where nobody says how much it can hold.
fn room(engine: &EngineHandle, found: &Capability) -> Option<Room> {
    let model = base(found)?.to_owned();
    let ranks = found.dp_ranks.max(1);
    let set = engine.settings().capacity_kv_tokens.map(|tokens| tokens / u64::from(ranks));
    let rank_tokens = set.or(found.kv_capacity_tokens).filter(|tokens| *tokens > 0)?;
    Some(Room { model, kind: found.kind, page_tokens: found.page_size_tokens, ranks, rank_tokens })
}

fn sources(found: &Capability) -> Option<Sources> {
    let events = found.kv_events.as_ref()?;
    // Adapters share the KV events of the model they lie on.
    let model = base(found)?.to_owned();
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
    basis: Basis,
    model: String,
    target: Target,
    entry: Entry,
}

impl Place {
    fn view(&self) -> ViewName<'_> {
        ViewName { basis: self.basis, model: &self.model }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.kv_views.remove(self.view(), self.target, self.entry);
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
                shared.kv_views.tick(shared.now(), &place.model, target, place.entry);
                continue;
            }
        };
        if let Some(from) = shared.kv_views.said(shared.now(), &place.model, target, place.entry, said) {
            subscription.replay(from);
        }
    }
}
