//! Events of a stream as a client sees them.

use serde_json::Value;

/// One block of an event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `data:`
    Data(String),
    /// A line that starts with a colon.
    Comment(String),
}

impl Event {
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Event::Data(data) if data == "[DONE]")
    }

    /// The data as JSON.
    #[must_use]
    pub fn json(&self) -> Option<Value> {
        match self {
            Event::Data(data) => serde_json::from_str(data).ok(),
            Event::Comment(_) => None,
        }
    }

    /// `error.code` of an error event.
    #[must_use]
    pub fn error_code(&self) -> Option<String> {
        self.json()?["error"]["code"].as_str().map(str::to_owned)
    }
}

/// Splits off the first whole event.
#[must_use]
pub fn first(bytes: &[u8]) -> Option<(Event, usize)> {
    let end = bytes.windows(2).position(|two| two == b"\n\n")?;
    let text = String::from_utf8_lossy(&bytes[..end]);
    let event = match text.strip_prefix(':') {
        Some(comment) => Event::Comment(comment.trim().to_owned()),
        None => {
            let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
            Event::Data(lines.join("\n").trim_start().to_owned())
        }
    };
    Some((event, end + 2))
}

/// All whole events.
#[must_use]
pub fn all(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((event, used)) = first(bytes) {
        events.push(event);
        bytes = &bytes[used..];
    }
    events
}

/// The text that chat, completion or `/generate` chunks add up to.
#[must_use]
pub fn text(events: &[Event]) -> String {
    let mut text = String::new();
    for chunk in events.iter().filter_map(Event::json) {
        if let Some(cumulative) = chunk["text"].as_str() {
            text = cumulative.to_owned();
        }
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default());
    }
    text
}
