//! The step loop's ends of a request's transfer. Everything here returns at once.
//!
//! The other ends are with a task on the runtime ([`super::prefill`], [`super::decode`]). Either side notices that the other
//! is gone by its channel: a sequence that is dropped, for whatever reason, closes its transfer.

use super::failure::Failure;
use super::notes::First;
use crate::model::KvStore;
use crate::transfer::{Pages, Pool};
use plimsoll_cache::Digest;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

/// Buffers of one request between step loop and task.
const BUFFERS: usize = 4;
/// A leg has a handful of turns in all.
const TURNS: usize = 8;

/// A request's part in its transfer.
#[derive(Debug)]
pub(crate) enum Leg {
    Prefill(Box<Outbound>),
    Decode(Box<Inbound>),
}

/// Step loop to task, of a prefill leg.
#[derive(Debug)]
pub(crate) enum Shipment {
    Pages(Pages),
    /// All pages are sent.
    End {
        pages: u32,
        first: First,
    },
}

/// Task to step loop, of a prefill leg.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Decode has room, and these leading pages already.
    Ready {
        have_pages: usize,
    },
    Landed,
}

/// A prefill leg.
#[derive(Debug)]
pub(crate) struct Outbound {
    turns: mpsc::Receiver<Turn>,
    shipments: mpsc::Sender<Shipment>,
    pool: Pool,
    /// Of all pages of the prompt.
    digests: Vec<Digest>,
    /// The first page that decode has not.
    from: usize,
    /// The next page to send.
    next: usize,
    pub(crate) first: Option<First>,
    ended: bool,
    failure: Arc<OnceLock<Failure>>,
}

/// The task's end of an [`Outbound`].
#[derive(Debug)]
pub(crate) struct OutboundTask {
    pub(crate) turns: mpsc::Sender<Turn>,
    pub(crate) shipments: mpsc::Receiver<Shipment>,
    /// Set before the task gives up its other ends.
    pub(crate) failure: Arc<OnceLock<Failure>>,
}

impl Outbound {
    pub(crate) fn new(digests: Vec<Digest>, pool: Pool) -> (Box<Self>, OutboundTask) {
        let (turns_in, turns) = mpsc::channel(TURNS);
        let (shipments, shipments_out) = mpsc::channel(BUFFERS);
        let failure = Arc::<OnceLock<Failure>>::default();
        let leg = Outbound {
            turns,
            shipments,
            pool,
            digests,
            from: 0,
            next: 0,
            first: None,
            ended: false,
            failure: Arc::clone(&failure),
        };
        (Box::new(leg), OutboundTask { turns: turns_in, shipments: shipments_out, failure })
    }

    /// The task has ended and said all it had to say.
    pub(crate) fn is_over(&self) -> bool {
        self.turns.is_closed() && self.turns.is_empty()
    }

    /// Why it ended.
    pub(crate) fn failure(&self) -> Failure {
        self.failure.get().cloned().unwrap_or_else(Failure::unknown)
    }

    /// News from the task. `Err` when it has ended.
    pub(crate) fn turn(&mut self) -> Result<Option<Turn>, Failure> {
        match self.turns.try_recv() {
            Ok(turn) => {
                if let Turn::Ready { have_pages } = &turn {
                    self.from = (*have_pages).min(self.digests.len());
                    self.next = self.from;
                }
                Ok(Some(turn))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.failure()),
        }
    }

    /// Copies out computed pages that were not sent yet, as far as there are buffers. `pages` are the sequence's, of which
    /// the first `computed` are computed.
    pub(crate) fn ship(&mut self, pages: &[u32], computed: usize, kv: &KvStore) {
        let computed = computed.min(self.digests.len());
        while self.next < computed {
            let Ok(place) = self.shipments.try_reserve() else { return };
            let Some(mut buffer) = self.pool.try_take() else { return };
            while self.next < computed {
                let (index, page) = (self.next, pages[self.next]);
                let copy = |bytes: &mut [u8]| {
                    let copied = kv.copy_page(page, bytes);
                    debug_assert_eq!(copied, Ok(()), "a page of this store, in a buffer for its pages");
                };
                if !buffer.push(index as u32, &self.digests[index], copy) {
                    break;
                }
                self.next += 1;
            }
            place.send(Shipment::Pages(buffer));
        }
    }

    /// Every page is copied out: the sequence needs its pages no longer.
    pub(crate) fn is_shipped(&self) -> bool {
        self.next == self.digests.len()
    }

    /// Says the end once everything is shipped and the first token is known. True when that is done.
    pub(crate) fn end(&mut self) -> bool {
        if let (false, true, Some(first)) = (self.ended, self.is_shipped(), &self.first) {
            let end = Shipment::End { pages: (self.next - self.from) as u32, first: first.clone() };
            self.ended = self.shipments.try_send(end).is_ok();
        }
        self.ended
    }
}

/// Task to step loop, of a decode leg.
#[derive(Debug)]
pub(crate) enum News {
    /// The prefill leg is there.
    Paired,
    /// Checked, in order.
    Pages(Pages),
    /// All pages are here.
    Landed(First),
    Failed(Failure),
}

/// Step loop to task, of a decode leg.
#[derive(Debug)]
pub(crate) enum Reply {
    Ready { have_pages: usize },
    Landed,
}

/// A decode leg.
#[derive(Debug)]
pub(crate) struct Inbound {
    news: mpsc::Receiver<News>,
    replies: mpsc::Sender<Reply>,
}

/// The task's end of an [`Inbound`].
#[derive(Debug)]
pub(crate) struct InboundTask {
    pub(crate) news: mpsc::Sender<News>,
    pub(crate) replies: mpsc::Receiver<Reply>,
}

impl Inbound {
    pub(crate) fn new() -> (Box<Self>, InboundTask) {
        let (news_in, news) = mpsc::channel(BUFFERS);
        let (replies, replies_out) = mpsc::channel(TURNS);
        (Box::new(Inbound { news, replies }), InboundTask { news: news_in, replies: replies_out })
    }

    /// News from the task. `Err` when it is gone without a word.
    pub(crate) fn news(&mut self) -> Result<Option<News>, ()> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(()),
        }
    }

    pub(crate) fn reply(&self, reply: Reply) {
        // A task that is gone is noticed by its news.
        let _ = self.replies.try_send(reply);
    }
}
