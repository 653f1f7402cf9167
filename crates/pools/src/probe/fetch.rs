//! Questions of one probe: a shared deadline, and answers sorted by what they mean.

use super::ProbeError;
use crate::http::{CallAnswer, CallError, Endpoint, Key};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use std::time::{Duration, Instant};

/// `/openapi.json` of vLLM is about 400 kB, its `/metrics` with many models some MB.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// One silent question may use this share of the probe's time: the others are still to be asked.
const SHARE: u32 = 6;

/// What came back for one path.
#[derive(Debug)]
pub(crate) enum Answer {
    Json(Value),
    /// 2xx that is not JSON.
    Text(bytes::Bytes),
    /// Any other status.
    Status(StatusCode),
    /// 2xx, and larger than any answer of an engine.
    TooLarge,
    /// No answer within this question's share of the time.
    Silent,
    /// What came is no HTTP.
    Broken(String),
}

impl Answer {
    pub(crate) fn json(self) -> Option<Value> {
        match self {
            Answer::Json(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn as_json(&self) -> Option<&Value> {
        match self {
            Answer::Json(value) => Some(value),
            _ => None,
        }
    }

    /// The text of an answer that is not JSON and is UTF-8.
    pub(crate) fn text(self) -> Option<String> {
        match self {
            Answer::Text(bytes) => String::from_utf8(bytes.to_vec()).ok(),
            _ => None,
        }
    }

    /// How the answer looked, as the end of a sentence.
    pub(crate) fn describe(&self) -> String {
        match self {
            Answer::Json(_) => "answered JSON that lists nothing".to_owned(),
            Answer::Text(bytes) => match bytes.trim_ascii_start().first() {
                None => "answered nothing".to_owned(),
                Some(b'<') => "answered HTML".to_owned(),
                Some(_) => "answered something that is not JSON".to_owned(),
            },
            Answer::Status(status) => format!("answered {}", status.as_u16()),
            Answer::TooLarge => format!("answered more than {} MiB", MAX_ANSWER_BYTES >> 20),
            Answer::Silent => "did not answer in time".to_owned(),
            Answer::Broken(why) => format!("gave a {why}"),
        }
    }
}

/// A value noted while asking. Not a `Cell`, since probes run on any thread.
struct Note<T>(Mutex<T>);

impl<T: Copy> Note<T> {
    fn new(value: T) -> Self {
        Note(Mutex::new(value))
    }

    fn get(&self) -> T {
        *self.0.lock()
    }

    fn set(&self, value: T) {
        *self.0.lock() = value;
    }
}

/// Asks one engine, until the deadline of the whole probe.
pub(crate) struct Asker<'a> {
    pub(crate) endpoint: &'a Endpoint,
    end: Instant,
    share: Duration,
    /// Any answer at all was seen.
    heard: Note<bool>,
    failures: Note<u32>,
    /// A 2xx, or a 4xx that is no refusal of the key, was seen.
    answered: Note<bool>,
    denied: Note<Option<(&'static str, u16)>>,
    failing: Note<Option<(&'static str, u16)>>,
    /// Some question is open: silence, a broken answer, or a server error.
    open: Note<bool>,
}

impl<'a> Asker<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, deadline: Duration) -> Self {
        Asker {
            endpoint,
            end: Instant::now() + deadline,
            share: deadline / SHARE,
            heard: Note::new(false),
            failures: Note::new(0),
            answered: Note::new(false),
            denied: Note::new(None),
            failing: Note::new(None),
            open: Note::new(false),
        }
    }

    /// One GET. An optional question that stays unanswered is an [`Answer`] too: each may use a share of the time. An error means that the probe is over: no connection, or two questions and not one answer.
    pub(crate) async fn get(&self, path: &'static str) -> Result<Answer, ProbeError> {
        self.ask(Method::GET, path, None, Key::Inference).await
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &'static str,
        body: Option<&'static str>,
        key: Key,
    ) -> Result<Answer, ProbeError> {
        let left = self.end.saturating_duration_since(Instant::now());
        let body = body.map(|b| bytes::Bytes::from_static(b.as_bytes()));
        let error = match self.endpoint.call(method, path, body, key, left.min(self.share), MAX_ANSWER_BYTES).await {
            Ok(answer) => return Ok(self.sort(path, &answer)),
            Err(CallError::TooLarge(_)) => {
                self.heard.set(true);
                return Ok(Answer::TooLarge);
            }
            Err(error @ CallError::Connect(_)) => return Err(ProbeError::Unreachable(error)),
            Err(error) => error,
        };
        self.open.set(true);
        self.failures.set(self.failures.get() + 1);
        let give_up = !self.heard.get() && self.failures.get() > 1;
        match error {
            CallError::Timeout if give_up => Err(ProbeError::Timeout { path }),
            CallError::Timeout => Ok(Answer::Silent),
            other if give_up => Err(ProbeError::Unreachable(other)),
            other => Ok(Answer::Broken(other.to_string())),
        }
    }

    fn sort(&self, path: &'static str, answer: &CallAnswer) -> Answer {
        self.heard.set(true);
        let status = answer.status;
        let seen = Some((path, status.as_u16()));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.denied.set(self.denied.get().or(seen)),
            s if s.is_server_error() => {
                self.failing.set(self.failing.get().or(seen));
                // 501 is how llama.cpp says that a path is switched off.
                self.open.set(self.open.get() || s != StatusCode::NOT_IMPLEMENTED);
            }
            _ => self.answered.set(true),
        }
        if !status.is_success() {
            return Answer::Status(status);
        }
        match serde_json::from_slice(&answer.body) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Answer::Json(value),
            _ => Answer::Text(answer.body.clone()),
        }
    }

    /// Every question so far has been answered.
    pub(crate) fn complete(&self) -> bool {
        !self.open.get()
    }

    /// Why nothing that answered looks like an engine.
    pub(crate) fn no_engine(&self, models: &Answer) -> ProbeError {
        if let Some((path, status)) = self.denied.get() {
            return ProbeError::Denied { path, status };
        }
        if let (false, Some((path, status))) = (self.answered.get(), self.failing.get()) {
            return ProbeError::NotReady { path, status };
        }
        // llama.cpp and engines behind a starting sidecar fail some paths only.
        if let (Answer::Status(status), Some((path, _))) = (models, self.failing.get())
            && status.is_server_error()
        {
            return ProbeError::NotReady { path, status: status.as_u16() };
        }
        ProbeError::NotAnEngine(format!("GET /v1/models {}: check that the url is the engine's own", models.describe()))
    }
}
