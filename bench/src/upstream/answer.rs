//! The bytes of an answer, made once per setting: one JSON body, or a list of SSE events, each of them a chunk of
//! its own that is written by a system call of its own, as an engine does that streams token by token.

use std::time::Duration;

/// Events that are really different; longer streams repeat them (280 MB need not lie in memory).
const DISTINCT_EVENTS: u32 = 1024;

/// What to answer.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Knobs {
    pub stream: bool,
    /// Tokens of the answer; a stream has one event for each and `[DONE]` after them.
    pub tokens: u32,
    /// Padding in each event, in bytes.
    pub pad_bytes: usize,
    /// Silence before the first token, in microseconds.
    pub ttft_us: u64,
    /// Time from one token to the next, in microseconds; 0 writes them back to back.
    pub itl_us: u64,
}

impl Default for Knobs {
    fn default() -> Self {
        Knobs { stream: false, tokens: 32, pad_bytes: 0, ttft_us: 0, itl_us: 0 }
    }
}

impl Knobs {
    /// Query string of `POST /_ctl`.
    pub fn to_query(self) -> String {
        let Knobs { stream, tokens, pad_bytes, ttft_us, itl_us } = self;
        format!("stream={stream}&tokens={tokens}&pad_bytes={pad_bytes}&ttft_us={ttft_us}&itl_us={itl_us}")
    }

    pub fn from_query(query: &str) -> anyhow::Result<Knobs> {
        let mut knobs = Knobs::default();
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("stream", v)) => knobs.stream = v.parse()?,
                Some(("tokens", v)) => knobs.tokens = v.parse::<u32>()?.max(1),
                Some(("pad_bytes", v)) => knobs.pad_bytes = v.parse()?,
                Some(("ttft_us", v)) => knobs.ttft_us = v.parse()?,
                Some(("itl_us", v)) => knobs.itl_us = v.parse()?,
                _ => anyhow::bail!("unknown knob {pair:?}"),
            }
        }
        Ok(knobs)
    }
}

pub struct Answer {
    pub knobs: Knobs,
    /// Whole response where nothing is streamed; only the head of it otherwise.
    pub head: Vec<u8>,
    events: Vec<Vec<u8>>,
    last: Vec<u8>,
    pub done: Vec<u8>,
}

impl Answer {
    pub fn new(knobs: Knobs) -> Answer {
        if !knobs.stream {
            return Answer { knobs, head: whole(knobs.tokens), events: vec![], last: vec![], done: vec![] };
        }
        let pad = "x".repeat(knobs.pad_bytes);
        Answer {
            knobs,
            head: b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
                    transfer-encoding: chunked\r\n\r\n"
                .to_vec(),
            events: (0..knobs.tokens.min(DISTINCT_EVENTS)).map(|k| chunk(&event(k, &pad, "null"))).collect(),
            last: chunk(&event(knobs.tokens - 1, &pad, "\"stop\"")),
            // The end of the body travels with its last event, as uvicorn's does.
            done: [chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat(),
        }
    }

    /// Bytes of token `k`, counted from 0.
    pub fn event(&self, k: u32) -> &[u8] {
        if k + 1 == self.knobs.tokens { &self.last } else { &self.events[(k % DISTINCT_EVENTS) as usize] }
    }

    /// When token `k` is due, counted from the arrival of the request.
    pub fn due(&self, k: u32) -> Duration {
        Duration::from_micros(self.knobs.ttft_us + self.knobs.itl_us * u64::from(k))
    }
}

/// Word that stands for token `k`; the load client checks that they arrive complete and in order.
pub fn word(k: u32) -> String {
    format!(" tok{k}")
}

fn event(k: u32, pad: &str, finish: &str) -> String {
    let word = word(k);
    format!(
        "data: {{\"id\":\"chatcmpl-6f1d2c3b4a5968778695a4b3c2d1e0f0\",\"object\":\"chat.completion.chunk\",\
         \"created\":1790000000,\"model\":\"bench\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\
         \"{word}{pad}\"}},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
    )
}

fn whole(tokens: u32) -> Vec<u8> {
    let text: String = (0..tokens).map(word).collect();
    json(&format!(
        "{{\"id\":\"chatcmpl-6f1d2c3b4a5968778695a4b3c2d1e0f0\",\"object\":\"chat.completion\",\"created\":1790000000,\
         \"model\":\"bench\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\
         \"logprobs\":null,\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":250,\"total_tokens\":{},\
         \"completion_tokens\":{tokens}}}}}",
        250 + tokens
    ))
}

/// A 200 response with a JSON body.
pub fn json(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

#[cfg(test)]
mod tests;
