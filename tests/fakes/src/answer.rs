//! Writing one answer: in one piece or as a stream, and every way in which a fault spoils it.

use crate::Dialect;
use crate::ask::{Ask, Route};
use crate::fault::Fault;
use crate::frames::{Finish, Frames, error_body};
use crate::generate::After;
use crate::outbound::{Outbound, Reply, head};
use crate::slot::{Aborted, Slot};
use crate::state::Behaviour;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWrite;

/// Endless faults end after this much.
const ENDLESS_BYTES: usize = 64 << 20;
/// Nobody asks a fake for more.
const MAX_TOKENS: u64 = 10_000_000;

/// Why writing an answer ended early.
pub(crate) enum Stop {
    Aborted,
    /// Writing failed: the client is gone.
    Lost,
}

impl From<Aborted> for Stop {
    fn from(Aborted: Aborted) -> Stop {
        Stop::Aborted
    }
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        Stop::Lost
    }
}

/// One answer and all that shapes it.
pub(crate) struct Answer<'a> {
    pub(crate) ask: &'a Ask,
    pub(crate) frames: &'a Frames,
    pub(crate) behaviour: &'a Behaviour,
    pub(crate) fault: &'a Fault,
}

impl Answer<'_> {
    /// Writes it, good or broken.
    pub(crate) async fn write<W: AsyncWrite + Unpin>(
        &mut self,
        out: &mut Outbound<W>,
        slot: &mut Slot,
    ) -> Result<After, Stop> {
        if let Some(after) = self.broken(out, slot).await? {
            return Ok(after);
        }
        if self.ask.stream { self.stream(out, slot).await } else { self.whole(out, slot).await }
    }

    fn wanted(&self) -> (u64, Finish) {
        match self.ask.max_tokens {
            Some(tokens) => (tokens.clamp(1, MAX_TOKENS), Finish::Length),
            None => (self.behaviour.tokens, Finish::Stop),
        }
    }

    /// Faults that replace the whole answer.
    async fn broken<W: AsyncWrite + Unpin>(
        &self,
        out: &mut Outbound<W>,
        slot: &mut Slot,
    ) -> Result<Option<After>, Stop> {
        match self.fault {
            Fault::HangBeforeHeaders => {
                slot.aborted().await;
                return Err(Stop::Aborted);
            }
            Fault::CloseBeforeHeaders => {}
            Fault::Garbage => {
                out.raw(&(0..2_048_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>());
                out.flush().await?;
            }
            Fault::Html => {
                let page = "<!DOCTYPE html><html><body><h1>Welcome to nginx!</h1></body></html>";
                out.reply(&Reply::text(200, "text/html", page)).await?;
                return Ok(Some(After::Keep));
            }
            Fault::BadJson => {
                out.reply(&Reply::text(200, "application/json", &b"{\"id\":\"x\",\"choices\":[{"[..])).await?;
                return Ok(Some(After::Keep));
            }
            Fault::EndlessHeaders => {
                out.raw(b"HTTP/1.1 200 OK\r\n");
                for i in 0..ENDLESS_BYTES / 64 {
                    out.raw(format!("x-junk-{i:08}: {}\r\n", "y".repeat(44)).as_bytes());
                    if i % 256 == 0 {
                        out.flush().await?;
                        slot.sleep(Duration::ZERO).await?;
                    }
                }
                out.flush().await?;
            }
            _ => return Ok(None),
        }
        Ok(Some(After::Close))
    }

    async fn whole<W: AsyncWrite + Unpin>(&self, out: &mut Outbound<W>, slot: &mut Slot) -> Result<After, Stop> {
        let (tokens, finish) = self.wanted();
        slot.run().await?;
        if *self.fault == Fault::HangAfterHeaders {
            out.raw(head(200, "application/json", &[], Some(4_096)).as_bytes());
            out.flush().await?;
            slot.aborted().await;
            return Err(Stop::Aborted);
        }
        let steps = if self.ask.route == Route::Embeddings { 0 } else { tokens.saturating_sub(1) };
        slot.sleep(Duration::from_millis(self.behaviour.ttft_ms + self.behaviour.itl_ms * steps)).await?;
        let body = self.frames.whole(tokens, &finish).to_string();
        let length = match self.fault {
            Fault::LengthShort => body.len() / 2,
            Fault::LengthLong | Fault::CutAfter { .. } | Fault::StallAfter { .. } => body.len() + 1_024,
            _ => body.len(),
        };
        let body = match self.fault {
            Fault::AbortAfter { events, status_code, .. } => {
                let message = "aborted by the scheduler";
                let finish = Finish::Abort { status: *status_code, message };
                if let Some(status) = status_code {
                    out.reply(&Reply::json(*status, &error_body(Dialect::Sglang, *status, message, false))).await?;
                    return Ok(After::Keep);
                }
                self.frames.whole(*events, &finish).to_string()
            }
            Fault::ErrorEventAfter { .. } => {
                out.reply(&Reply::json(500, &error_body(Dialect::Vllm, 500, "asked to fail", false))).await?;
                return Ok(After::Keep);
            }
            _ => body,
        };
        let length = if matches!(self.fault, Fault::AbortAfter { .. }) { body.len() } else { length };
        out.raw(head(200, "application/json", &[], Some(length)).as_bytes());
        out.raw(body.as_bytes());
        out.flush().await?;
        if matches!(self.fault, Fault::StallAfter { .. }) {
            slot.aborted().await;
            return Err(Stop::Aborted);
        }
        Ok(if length == body.len() { After::Keep } else { After::Close })
    }

    async fn stream<W: AsyncWrite + Unpin>(&self, out: &mut Outbound<W>, slot: &mut Slot) -> Result<After, Stop> {
        let (tokens, finish) = self.wanted();
        let now = self.behaviour.itl_ms > 0;
        let length = match self.fault {
            Fault::LengthShort => Some(64),
            Fault::LengthLong => Some(10 << 20),
            _ => None,
        };
        let early = self.behaviour.early_headers || *self.fault == Fault::HangAfterHeaders;
        if early {
            out.stream_head(&[], length).await?;
        }
        if *self.fault == Fault::HangAfterHeaders {
            slot.aborted().await;
            return Err(Stop::Aborted);
        }
        slot.run().await?;
        slot.sleep(Duration::from_millis(self.behaviour.ttft_ms)).await?;
        if !early {
            out.stream_head(&[], length).await?;
        }
        if let Some(opening) = self.frames.opening() {
            out.piece(opening.as_bytes(), now).await?;
        }
        let mut next = tokio::time::Instant::now();
        let (mut sent, mut events) = (0, 0);
        loop {
            if let Some(after) = self.mid_stream(out, slot, events, sent).await? {
                return Ok(after);
            }
            if sent == tokens {
                break;
            }
            let pair = self.frames_pair(events);
            let to = (sent + pair).min(tokens);
            let event = self.frames.tokens(sent, to, (to == tokens).then_some(&finish));
            out.piece(event.as_bytes(), now).await?;
            (sent, events) = (to, events + 1);
            if sent < tokens {
                next += Duration::from_millis(self.behaviour.itl_ms);
                slot.sleep(next.saturating_duration_since(tokio::time::Instant::now())).await?;
            }
        }
        if self.ask.include_usage
            && let Some(usage) = self.frames.usage_frame(sent)
        {
            out.piece(usage.as_bytes(), now).await?;
        }
        out.piece(b"data: [DONE]\n\n", now).await?;
        out.stream_end().await?;
        Ok(if length.is_none() { After::Keep } else { After::Close })
    }

    /// Tokens in this chunk: SGLang now and then puts two into one.
    fn frames_pair(&self, events: u64) -> u64 {
        if self.frames.is_sglang() && events % 5 == 4 { 2 } else { 1 }
    }

    /// Faults that strike after so many events.
    async fn mid_stream<W: AsyncWrite + Unpin>(
        &self,
        out: &mut Outbound<W>,
        slot: &mut Slot,
        events: u64,
        sent: u64,
    ) -> Result<Option<After>, Stop> {
        let last: Vec<String> = match self.fault {
            Fault::CutAfter { events: at } if *at == events => {
                out.flush().await?;
                return Ok(Some(After::Close));
            }
            Fault::EndAfter { events: at } if *at == events => Vec::new(),
            Fault::StallAfter { events: at } if *at == events => {
                out.flush().await?;
                slot.aborted().await;
                return Err(Stop::Aborted);
            }
            Fault::ErrorEventAfter { events: at } if *at == events => {
                vec![self.frames.error_frame(500, "asked to fail"), "data: [DONE]\n\n".into()]
            }
            Fault::BadJsonAfter { events: at } if *at == events => vec!["data: {\"id\": oops\n\n".into()],
            Fault::AbortAfter { events: at, status_code, as_error } if *at == events => {
                let message = "aborted by the scheduler";
                let event = if *as_error {
                    self.frames.error_frame(status_code.unwrap_or(500), message)
                } else {
                    self.frames.abort_frame(sent, &Finish::Abort { status: *status_code, message })
                };
                vec![event, "data: [DONE]\n\n".into()]
            }
            Fault::HugeEvent { bytes } if events == 1 => {
                out.piece(b"data: {\"huge\":\"", true).await?;
                let block = vec![b'z'; 64 << 10];
                let mut left = (*bytes).min(1 << 30);
                while left > 0 {
                    let size = left.min(block.len());
                    out.piece(&block[..size], true).await?;
                    left -= size;
                }
                out.piece(b"\"}\n\n", true).await?;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        for event in last {
            out.piece(event.as_bytes(), true).await?;
        }
        out.stream_end().await?;
        Ok(Some(After::Keep))
    }

    /// What the engine still writes to a request that was aborted by its rid: 200, finish reason `abort`.
    pub(crate) async fn write_abort<W: AsyncWrite + Unpin>(&self, out: &mut Outbound<W>) -> io::Result<After> {
        let finish = Finish::Abort { status: None, message: "Abort in waiting queue" };
        let hangs = matches!(self.fault, Fault::HangBeforeHeaders | Fault::HangAfterHeaders | Fault::StallAfter { .. });
        if hangs || self.ask.stream && !self.behaviour.early_headers {
            return Ok(After::Close);
        }
        if !self.ask.stream {
            out.reply(&Reply::json(200, &self.frames.whole(0, &finish))).await?;
            return Ok(After::Keep);
        }
        out.piece(self.frames.abort_frame(0, &finish).as_bytes(), true).await?;
        out.piece(b"data: [DONE]\n\n", true).await?;
        out.stream_end().await?;
        Ok(After::Keep)
    }
}
