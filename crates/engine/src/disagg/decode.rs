//! The task of a decode leg: calls prefill, checks what comes, hands it to the step loop.

use super::failure::{Failure, LegName, Phase};
use super::leg::{InboundTask, News, Reply};
use super::notes::{First, Note};
use super::service::{Context, Prompt};
use crate::transfer::{Expected, Incoming, Link, TransferError};
use std::sync::Arc;
use tokio::time::{Instant, timeout};

/// What the peer reads when our side ends first.
const CANCELLED: &str = "the decode leg was cancelled";

pub(crate) async fn run(
    context: Arc<Context>,
    name: LegName,
    prompt: Prompt,
    host: String,
    port: u16,
    mut task: InboundTask,
) {
    let news = task.news.clone();
    if let Err(failure) =
        (Landing { context: &context, name: &name, task: &mut task }).carry(&prompt, &host, port).await
    {
        tracing::warn!(message = %failure.message, "a decode leg failed");
        {
            let mut stats = context.stats.lock();
            match failure.phase {
                Phase::Bootstrap => stats.bootstrap_failed += 1,
                Phase::Transfer => stats.transfer_failed += 1,
            }
        }
        // The request may have ended meanwhile.
        let _ = news.send(News::Failed(failure)).await;
        context.engine.wake();
    }
}

struct Landing<'a> {
    context: &'a Context,
    name: &'a LegName,
    task: &'a mut InboundTask,
}

impl Landing<'_> {
    /// Returns when the request runs here or has ended here.
    async fn carry(mut self, prompt: &Prompt, host: &str, port: u16) -> Result<(), Failure> {
        let begun = Instant::now();
        let handshake = self.context.config.handshake;
        let news = self.task.news.clone();
        let met = tokio::select! {
            met = timeout(handshake, self.meet(prompt, host, port)) => met,
            () = news.closed() => return Ok(()),
        };
        let late = TransferError::Deadline { what: "prefill leg in this room", after: handshake };
        let mut link = met.unwrap_or(Err(late)).map_err(|error| self.name.failed(Phase::Bootstrap, &error))?;
        self.context.stats.lock().met(begun.elapsed());
        let mut phase = Phase::Bootstrap;
        let result = self.land(&mut link, prompt, &mut phase).await;
        if let Err(error) = &result {
            // It may be what is gone.
            let _ = link.sender.abort(&error.to_string()).await;
        }
        result.map_err(|error| self.name.failed(phase, &error))
    }

    /// Calls the prefill engine and waits until its leg is there.
    async fn meet(&self, prompt: &Prompt, host: &str, port: u16) -> Result<Link, TransferError> {
        let mut link = Link::connect_any(host, port, &self.context.terms).await?;
        let open = Note::Open { room: self.name.room, prompt_tokens: prompt.tokens, prompt: prompt.name() };
        link.sender.note(&open.encode()).await?;
        // Only now, so that the leg over there learns of it too.
        self.context.terms.identity.check(&link.peer)?;
        let mut beat = self.context.beat();
        loop {
            tokio::select! {
                incoming = link.receiver.next() => match incoming? {
                    Incoming::Beat => {}
                    Incoming::Note(note) if Note::decode(&note)? == Note::Paired => return Ok(link),
                    _ => return Err(TransferError::Unexpected("frame before the prefill leg was there")),
                },
                _ = beat.tick() => link.sender.beat().await?,
            }
        }
    }

    async fn land(&mut self, link: &mut Link, prompt: &Prompt, phase: &mut Phase) -> Result<(), TransferError> {
        let Link { sender, receiver, .. } = link;
        let mut beat = self.context.beat();
        let paired = Instant::now();
        let mut due: Option<Expected> = None;
        let mut first: Option<First> = None;
        let mut first_page = None;
        let mut bytes = 0;
        // What the step loop is to be told next; nothing is read before it has room for it.
        let mut pending = Some(News::Paired);
        loop {
            tokio::select! {
                permit = self.task.news.reserve(), if pending.is_some() => match permit {
                    Ok(permit) => {
                        if let Some(news) = pending.take() {
                            permit.send(news);
                        }
                        self.context.engine.wake();
                    }
                    Err(_) => {
                        // It may have gone already.
                        let _ = sender.abort(CANCELLED).await;
                        return Ok(());
                    }
                },
                reply = self.task.replies.recv() => match reply {
                    Some(Reply::Ready { have_pages }) => {
                        *phase = Phase::Transfer;
                        self.context.stats.lock().allocated(paired.elapsed());
                        due = Some(Expected::new(prompt.digests.clone(), have_pages));
                        sender.note(&Note::Ready { have_pages }.encode()).await?;
                    }
                    Some(Reply::Landed) => {
                        let took = first_page.map(|first: Instant| first.elapsed()).unwrap_or_default();
                        self.context.stats.lock().landed(bytes, took);
                        // Whether prefill still hears it changes nothing here: the request runs.
                        let _ = sender.note(&Note::Landed.encode()).await;
                        return Ok(());
                    }
                    None => {
                        let _ = sender.abort(CANCELLED).await;
                        return Ok(());
                    }
                },
                incoming = receiver.next(), if pending.is_none() => match incoming? {
                    Incoming::Beat => {}
                    Incoming::Pages(pages) => {
                        first_page.get_or_insert_with(Instant::now);
                        let due = due.as_mut().ok_or(TransferError::Unexpected("pages before there was room"))?;
                        pages.iter().try_for_each(|page| due.take(&page))?;
                        bytes += (pages.len() * self.context.terms.pool.page_bytes()) as u64;
                        pending = Some(News::Pages(pages));
                    }
                    Incoming::Note(note) => match Note::decode(&note)? {
                        Note::First(token) if first.is_none() => first = Some(token),
                        _ => return Err(TransferError::Unexpected("note from prefill")),
                    },
                    Incoming::End { pages } => {
                        let due = due.as_ref().ok_or(TransferError::Unexpected("end before there was room"))?;
                        due.finish(pages)?;
                        let first = first.take().ok_or(TransferError::Unexpected("end without a first token"))?;
                        pending = Some(News::Landed(first));
                    }
                },
                _ = beat.tick() => {
                    self.context.faults.responsive().await;
                    sender.beat().await?;
                }
            }
        }
    }
}
