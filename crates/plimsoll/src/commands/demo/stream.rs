//! Reads one streamed OpenAI answer and takes its times.
//!
//! An answer counts as complete only with a finish reason and `[DONE]`; a stream that just ends is `truncated`, since a
//! client that took it for an answer would act on half a tool call.

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Limited};
use hyper::Response;
use hyper::body::Body;
use serde::Deserialize;
use std::time::{Duration, Instant};

/// Longest silence inside an answer, and before it.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(120);
const LINE_LIMIT_BYTES: usize = 1 << 20;
const ERROR_BODY_BYTES: usize = 64 << 10;

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) engine: Option<String>,
    /// First token after the request was sent.
    pub(crate) ttft: Duration,
    /// Gaps between the events that carry text.
    pub(crate) gaps: Vec<Duration>,
    /// What the engine counted; `None` where it did not say.
    pub(crate) usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    #[serde(default)]
    pub(crate) completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    pub(crate) fn cached_tokens(&self) -> Option<u64> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

/// An answer that is an error, in words for the count by code.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) engine: Option<String>,
    /// Set where the server asks for a repeat after this time.
    pub(crate) retry_after: Option<Duration>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct ErrorObject {
    message: Option<String>,
    code: Option<serde_json::Value>,
}

impl ErrorObject {
    fn code(&self) -> Option<String> {
        self.code.as_ref().map(|code| code.as_str().map_or_else(|| code.to_string(), str::to_owned))
    }
}

/// Reads `response` to its end.
pub(crate) async fn read<B: Source>(response: Response<B>, sent: Instant) -> Result<Answer, Refusal> {
    let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let engine = header("x-plimsoll-engine");
    let status = response.status();
    if !status.is_success() {
        let retry_after = header("retry-after").and_then(|s| s.trim().parse().ok()).map(Duration::from_secs);
        let mut refusal =
            error_body(response).await.unwrap_or_else(|| refusal(format!("http_{}", status.as_u16()), ""));
        refusal.retry_after = retry_after.filter(|_| matches!(status.as_u16(), 429 | 503));
        return Err(Refusal { engine, ..refusal });
    }
    let mut reader = Reader { body: response.into_body(), buffer: BytesMut::new() };
    let mut answer = Answer { text: String::new(), engine, ttft: Duration::ZERO, gaps: Vec::new(), usage: None };
    match events(&mut reader, &mut answer, sent).await {
        Ok(()) => Ok(answer),
        Err(refusal) => Err(Refusal { engine: answer.engine, ..refusal }),
    }
}

async fn events<B: Source>(reader: &mut Reader<B>, answer: &mut Answer, sent: Instant) -> Result<(), Refusal> {
    let (mut last, mut finished): (Option<Instant>, bool) = (None, false);
    while let Some(line) = reader.line().await? {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
        if data == b"[DONE]" {
            if !finished {
                break;
            }
            // The rest of the body is its end; reading it makes the connection usable again.
            while reader.line().await?.is_some() {}
            return Ok(());
        }
        let event: Event = serde_json::from_slice(data).map_err(|error| refusal("broken_event", error))?;
        if let Some(error) = event.error {
            let code = error.code().unwrap_or_else(|| "stream_error".to_owned());
            return Err(refusal(code, error.message.unwrap_or_default()));
        }
        answer.usage = event.usage.or(answer.usage);
        for choice in event.choices {
            finished |= choice.finish_reason.is_some();
            let text = choice.text.or_else(|| choice.delta.and_then(|delta| delta.content)).unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            let now = Instant::now();
            match last.replace(now) {
                None => answer.ttft = now - sent,
                Some(before) => answer.gaps.push(now - before),
            }
            answer.text.push_str(&text);
        }
        if last.is_none() && finished {
            // An answer without text (its one token was a special one): its end is its first sign of life.
            answer.ttft = sent.elapsed();
        }
    }
    Err(refusal("truncated", "the stream ended without finish reason and [DONE]"))
}

async fn error_body<B: Source>(response: Response<B>) -> Option<Refusal> {
    #[derive(Deserialize)]
    struct Body {
        error: ErrorObject,
    }
    let body = Limited::new(response.into_body(), ERROR_BODY_BYTES);
    let body = tokio::time::timeout(SILENCE_LIMIT, body.collect()).await.ok()?.ok()?.to_bytes();
    let error = serde_json::from_slice::<Body>(&body).ok()?.error;
    Some(refusal(error.code()?, error.message.unwrap_or_default()))
}

pub(crate) fn refusal(code: impl Into<String>, message: impl std::fmt::Display) -> Refusal {
    Refusal { code: code.into(), message: message.to_string(), engine: None, retry_after: None }
}

/// A body of bytes: hyper's, or one made up in a test.
pub(crate) trait Source: Body<Data = Bytes, Error: Into<BoxError>> + Unpin {}
impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Source for B {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct Reader<B> {
    body: B,
    buffer: BytesMut,
}

impl<B: Source> Reader<B> {
    /// The next line without its end; `None` at the end of the body.
    async fn line(&mut self) -> Result<Option<Bytes>, Refusal> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.buffer.split_to(searched + at).freeze();
                self.buffer.advance(1);
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if searched > LINE_LIMIT_BYTES {
                return Err(refusal("broken_event", "an event of more than 1 MiB"));
            }
            let frame = tokio::time::timeout(SILENCE_LIMIT, self.body.frame()).await;
            match frame.map_err(|_| refusal("client_timeout", "the stream was silent for too long"))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(refusal("truncated", error.into())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
