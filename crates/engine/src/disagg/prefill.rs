//! The task of a prefill leg: waits for decode, then sends what the step loop computes.

use super::failure::{Failure, LegName, Phase};
use super::leg::{OutboundTask, Shipment, Turn};
use super::notes::Note;
use super::rooms::{Caller, Guest};
use super::service::{Context, Prompt};
use crate::transfer::{Incoming, Link, TransferError};
use std::sync::Arc;
use tokio::time::{Instant, timeout};

/// What the peer reads when our side ends first.
const CANCELLED: &str = "the prefill leg was cancelled";

pub(crate) async fn run(context: Arc<Context>, name: LegName, prompt: Prompt, guest: Guest, mut task: OutboundTask) {
    let turns = task.turns.clone();
    let result = Shipping { context: &context, name: &name, task: &mut task }.carry(&prompt, guest).await;
    // The room is free before anybody learns that the request is over.
    let turn = match result {
        Ok(true) => Turn::Landed,
        Ok(false) => return,
        Err(failure) => {
            tracing::warn!(message = %failure.message, "a prefill leg failed");
            let mut stats = context.stats.lock();
            match failure.phase {
                Phase::Bootstrap => stats.bootstrap_failed += 1,
                Phase::Transfer => stats.transfer_failed += 1,
            }
            drop(stats);
            // Set once, here.
            let _ = task.failure.set(failure);
            drop((turns, task));
            return context.engine.wake();
        }
    };
    // The request may have ended meanwhile.
    let _ = turns.send(turn).await;
    context.engine.wake();
}

struct Shipping<'a> {
    context: &'a Context,
    name: &'a LegName,
    task: &'a mut OutboundTask,
}

impl Shipping<'_> {
    /// True when decode has everything, false when the request ended here.
    async fn carry(mut self, prompt: &Prompt, mut guest: Guest) -> Result<bool, Failure> {
        let begun = Instant::now();
        let handshake = self.context.config.handshake;
        let met = tokio::select! {
            met = timeout(handshake, guest.partner()) => met,
            () = self.task.turns.closed() => return Ok(false),
        };
        let late = TransferError::Deadline { what: "decode leg in this room", after: handshake };
        let met = met.unwrap_or(Err(late)).map_err(|error| self.name.failed(Phase::Bootstrap, &error))?;
        self.context.stats.lock().met(begun.elapsed());
        let Caller { mut link, prompt_tokens, prompt: theirs } = met;
        let mut phase = Phase::Bootstrap;
        let result = match self.fits(&link, prompt, prompt_tokens, &theirs) {
            Ok(()) => self.ship(&mut link, prompt, &mut phase).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            // It may be what is gone.
            let _ = link.sender.abort(&error.to_string()).await;
        }
        result.map_err(|error| self.name.failed(phase, &error))
    }

    fn fits(&self, link: &Link, prompt: &Prompt, tokens: usize, theirs: &str) -> Result<(), TransferError> {
        self.context.terms.identity.check(&link.peer)?;
        if prompt.tokens != tokens || prompt.name() != theirs {
            return Err(TransferError::Unexpected("prompt: the two legs of this room are different requests"));
        }
        Ok(())
    }

    async fn ship(&mut self, link: &mut Link, prompt: &Prompt, phase: &mut Phase) -> Result<bool, TransferError> {
        let Link { sender, receiver, .. } = link;
        sender.note(&Note::Paired.encode()).await?;
        let paired = Instant::now();
        let mut beat = self.context.beat();
        let cut = self.context.faults.next_transfer();
        let (mut sent, mut first_page, mut ended) = (0, None, false);
        loop {
            tokio::select! {
                shipment = self.task.shipments.recv() => match shipment {
                    None => {
                        // It may have gone already.
                        let _ = sender.abort(CANCELLED).await;
                        return Ok(false);
                    }
                    Some(Shipment::Pages(mut pages)) => {
                        first_page.get_or_insert_with(Instant::now);
                        if let Some(after) = cut.filter(|after| sent + pages.len() as u64 > *after) {
                            sender.tear(&mut pages, (after - sent) as usize).await;
                            return Err(cut_by_fault());
                        }
                        sent += pages.len() as u64;
                        sender.pages(&mut pages).await?;
                        drop(pages);
                        // There is a buffer for the next.
                        self.context.engine.wake();
                    }
                    Some(Shipment::End { .. }) if cut.is_some() => return Err(cut_by_fault()),
                    Some(Shipment::End { pages, first }) => {
                        sender.note(&Note::First(first).encode()).await?;
                        sender.end(pages).await?;
                        ended = true;
                    }
                },
                incoming = receiver.next() => match incoming? {
                    Incoming::Beat => {}
                    Incoming::Note(note) => match Note::decode(&note)? {
                        Note::Ready { have_pages } if *phase == Phase::Bootstrap && have_pages <= prompt.digests.len() => {
                            *phase = Phase::Transfer;
                            self.context.stats.lock().allocated(paired.elapsed());
                            // The request may have ended; the shipments will say so.
                            let _ = self.task.turns.send(Turn::Ready { have_pages }).await;
                            self.context.engine.wake();
                        }
                        Note::Landed if ended => {
                            let took = first_page.map(|first| first.elapsed()).unwrap_or_default();
                            let bytes = sent * self.context.terms.pool.page_bytes() as u64;
                            self.context.stats.lock().landed(bytes, took);
                            return Ok(true);
                        }
                        _ => return Err(TransferError::Unexpected("note from decode")),
                    },
                    Incoming::Pages(_) | Incoming::End { .. } => return Err(TransferError::Unexpected("pages from decode")),
                },
                _ = beat.tick() => {
                    self.context.faults.responsive().await;
                    sender.beat().await?;
                }
            }
        }
    }
}

fn cut_by_fault() -> TransferError {
    TransferError::Io { what: "transfer_error", error: "a fault that was switched on".to_owned() }
}
