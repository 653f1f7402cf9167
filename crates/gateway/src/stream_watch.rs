//! Reading a stream while it passes: how much output, is it complete, has the engine failed inside it?

use crate::flow::Output;
use crate::owned::shape::Shaper;
use bytes::{Bytes, BytesMut};
use plimsoll_pools::chunk::{ChunkFacts, ChunkKind, FinishCounter, StreamDialect, Usage};
use plimsoll_protocol::request::RequestFacts;
use plimsoll_protocol::sse::{SseSplitter, for_each_data};
use std::collections::BTreeMap;
use std::time::Instant;

const DONE: &[u8] = b"data: [DONE]\n\n";

/// State of one stream.
pub struct StreamWatch {
    dialect: StreamDialect,
    splitter: SseSplitter,
    finishes: FinishCounter,
    done: bool,
    has_output: bool,
    /// Native batches report usage per index.
    usage_by_index: BTreeMap<u32, Usage>,
    many: bool,
    /// Makes the client's events of the engine's; else they are passed on.
    shaper: Option<Box<Shaper>>,
}

/// What a frame brought.
pub struct Fed {
    /// Whole events to pass on. With a bad verdict: those before the bad one.
    pub events: Bytes,
    pub verdict: Verdict,
}

/// Is the stream still good?
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// The engine put an error object into the stream.
    Error {
        status: Option<u16>,
        message: String,
    },
    /// The engine gave the request up.
    Abort {
        status: Option<u16>,
        message: String,
    },
    /// What came is no event stream.
    Garbage(String),
}

impl StreamWatch {
    #[must_use]
    pub fn new(dialect: StreamDialect, facts: &RequestFacts, event_bytes: usize) -> Self {
        StreamWatch {
            dialect,
            splitter: SseSplitter::new(event_bytes),
            finishes: FinishCounter::new(u32::try_from(facts.sequences).unwrap_or(u32::MAX)),
            done: false,
            has_output: false,
            usage_by_index: BTreeMap::new(),
            many: facts.sequences > 1,
            shaper: None,
        }
    }

    /// The engine's events are not the client's: `shaper` makes these of those.
    pub(crate) fn shape_with(&mut self, shaper: Option<Box<Shaper>>) {
        self.shaper = shaper;
    }

    /// What the client is sent when the engine has left out the end of a complete stream.
    #[must_use]
    pub fn last_words(&mut self) -> Bytes {
        self.shaper.as_mut().map_or(Bytes::from_static(DONE), |shaper| shaper.last_words())
    }

    /// Output has been seen.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.has_output
    }

    /// `[DONE]`, or a finish reason for every choice: an end from now on is a proper one.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.done || self.finishes.is_complete()
    }

    /// The client has been sent the stream's end mark.
    #[must_use]
    pub fn saw_done(&self) -> bool {
        self.done
    }

    /// Takes a frame from the engine.
    pub fn feed(&mut self, frame: &Bytes, output: &mut Output) -> Fed {
        let events = match self.splitter.feed(frame) {
            Ok(events) => events,
            Err(error) => return Fed { events: Bytes::new(), verdict: Verdict::Garbage(error.to_string()) },
        };
        let mut verdict = Verdict::Fine;
        for_each_data(&events, |data| {
            if verdict == Verdict::Fine {
                verdict = self.event(&data, output);
            }
        });
        let events = if verdict == Verdict::Fine { events } else { self.events_before_the_bad_one(&events) };
        let Some(shaper) = &mut self.shaper else { return Fed { events, verdict } };
        match shaper.events(&events) {
            Ok(shaped) => {
                self.has_output |= !shaped.is_empty();
                Fed { events: shaped, verdict }
            }
            Err(why) if verdict == Verdict::Fine => Fed { events: Bytes::new(), verdict: Verdict::Garbage(why) },
            Err(_) => Fed { events: Bytes::new(), verdict },
        }
    }

    fn event(&mut self, data: &[u8], output: &mut Output) -> Verdict {
        if self.done {
            // Whatever follows the last word is nobody's business.
            return Verdict::Fine;
        }
        let facts = self.dialect.inspect(data);
        match facts.kind {
            ChunkKind::Done => {
                self.done = true;
                return Verdict::Fine;
            }
            ChunkKind::Garbage => return Verdict::Garbage("the engine's event is not JSON".into()),
            ChunkKind::Event => {}
        }
        if let Some(error) = facts.error {
            return Verdict::Error { status: error.status, message: error.message };
        }
        if let Some(abort) = facts.abort {
            return Verdict::Abort { status: abort.status_code, message: abort.message };
        }
        if facts.tokens {
            // Half a character is no output that a client could be sent.
            self.has_output |= self.shaper.is_none();
            output.piece(Instant::now());
        }
        self.finishes.observe(&facts);
        self.usage(&facts, output);
        Verdict::Fine
    }

    fn usage(&mut self, facts: &ChunkFacts, output: &mut Output) {
        let Some(usage) = facts.usage else { return };
        if self.dialect == StreamDialect::Openai || !self.many {
            output.usage = Some(usage);
            return;
        }
        if self.usage_by_index.len() < 4096 {
            self.usage_by_index.insert(facts.index, usage);
        }
        output.usage = self.usage_by_index.values().copied().reduce(Usage::plus);
    }

    /// Rare path: the good events of a frame that also holds a bad one, each looked at alone.
    fn events_before_the_bad_one(&self, events: &Bytes) -> Bytes {
        let mut good = BytesMut::new();
        let mut single = SseSplitter::new(usize::MAX);
        for line in events.split_inclusive(|b| *b == b'\n') {
            let Ok(event) = single.feed(&Bytes::copy_from_slice(line)) else { break };
            let mut bad = false;
            for_each_data(&event, |data| {
                let facts = self.dialect.inspect(&data);
                bad |= facts.error.is_some() || facts.abort.is_some() || facts.kind == ChunkKind::Garbage;
            });
            if bad {
                break;
            }
            good.extend_from_slice(&event);
        }
        good.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_protocol::request::{Api, scan};

    fn watch(dialect: StreamDialect) -> StreamWatch {
        let facts = scan(Api::Chat, &Bytes::from_static(b"{\"messages\":[],\"stream\":true}")).unwrap();
        StreamWatch::new(dialect, &facts, 1 << 20)
    }

    #[test]
    fn a_plain_stream_is_complete_with_its_finish() {
        let mut watch = watch(StreamDialect::Openai);
        let mut output = Output::default();
        let role = Bytes::from_static(
            b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}]}\n\n",
        );
        let fed = watch.feed(&role, &mut output);
        assert_eq!((fed.events, watch.has_output(), watch.is_complete()), (role, false, false));
        watch.feed(
            &Bytes::from_static(
                b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n",
            ),
            &mut output,
        );
        assert!(watch.has_output() && !watch.is_complete());
        watch.feed(
            &Bytes::from_static(b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"),
            &mut output,
        );
        assert!(watch.is_complete() && !watch.saw_done());
        watch.feed(&Bytes::from_static(b"data: [DONE]\n\n"), &mut output);
        assert!(watch.saw_done());
        assert_eq!(output.pieces, 1);
    }

    #[test]
    fn good_events_before_a_bad_one_are_kept() {
        let mut watch = watch(StreamDialect::Openai);
        let good = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
        let frame = Bytes::from(format!("{good}data: {{\"error\":{{\"message\":\"boom\",\"code\":500}}}}\n\n"));
        let fed = watch.feed(&frame, &mut Output::default());
        assert_eq!(fed.events, good);
        assert!(matches!(fed.verdict, Verdict::Error { status: Some(500), .. }), "{:?}", fed.verdict);
    }
}
