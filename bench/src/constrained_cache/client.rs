//! The stream of requests: open loop, so that a slow answer holds nobody back; seeded, so that every policy meets the same.

use super::{OUTPUT_TOKENS, PREFIX_TOKENS, SUFFIX_TOKENS};
use anyhow::{Context, ensure};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Clone, Copy)]
pub struct Load {
    pub to: SocketAddr,
    pub requests: usize,
    /// Per second.
    pub rate: f64,
    pub prefixes: usize,
    pub seed: u64,
    /// Prompts are sent as text and not as ids.
    pub as_text: bool,
}

/// What the engine said, and when it began to.
#[derive(Clone, Copy)]
pub struct Answered {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub ttft: Duration,
}

/// Longest that one answer may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Words of the tiny model.
const WORDS: std::ops::Range<u64> = 300..1_000;

/// xorshift64*: seeded, and as good as is needed to draw arrivals.
struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Self {
        Draws(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn tokens(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| WORDS.start + self.next() % (WORDS.end - WORDS.start)).collect()
    }
}

/// Answers in the order of their requests.
pub async fn run(load: Load) -> anyhow::Result<Vec<Answered>> {
    let prefixes: Vec<Vec<u64>> =
        (0..load.prefixes).map(|nth| Draws::new(1_000_000 + nth as u64).tokens(PREFIX_TOKENS)).collect();
    let mut draws = Draws::new(load.seed);
    let began = Instant::now();
    let mut at_s = 0.0;
    let mut running = Vec::new();
    for _ in 0..load.requests {
        at_s -= (1.0 - draws.share()).ln() / load.rate;
        let mut prompt = prefixes[(draws.share() * load.prefixes as f64) as usize].clone();
        prompt.extend(draws.tokens(SUFFIX_TOKENS));
        tokio::time::sleep_until((began + Duration::from_secs_f64(at_s)).into()).await;
        let prompt = if load.as_text { json!(text(&prompt)) } else { json!(prompt) };
        running.push(tokio::spawn(async move { tokio::time::timeout(PATIENCE, ask(load.to, prompt)).await }));
    }
    let mut answered = Vec::with_capacity(running.len());
    for one in running {
        answered.push(one.await?.context("an answer took too long")??);
    }
    Ok(answered)
}

/// What the tiny model's tokenizer makes these ids of.
fn text(ids: &[u64]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| plimsoll_engine::tokenizer::bytes(*id as u32).0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn ask(to: SocketAddr, prompt: serde_json::Value) -> anyhow::Result<Answered> {
    let body = json!({
        "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    })
    .to_string();
    let length = body.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n"
    );
    let began = Instant::now();
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let (mut all, mut buffer, mut first) = (Vec::new(), vec![0; 16 * 1024], None);
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..read]);
        if first.is_none() && memchr::memmem::find(&all, b"data:").is_some() {
            first = Some(began.elapsed());
        }
    }
    let text = String::from_utf8_lossy(&all);
    ensure!(text.starts_with("HTTP/1.1 200"), "answered {:?}", text.lines().next().unwrap_or_default());
    ensure!(text.contains("data: [DONE]"), "an answer ends early");
    let prompt_tokens = number(&text, "\"prompt_tokens\":").context("no prompt_tokens in the usage")?;
    let cached_tokens = number(&text, "\"cached_tokens\":").unwrap_or(0);
    Ok(Answered { prompt_tokens, cached_tokens, ttft: first.context("no output")? })
}

/// The number behind the last mention of a field.
fn number(text: &str, field: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(field)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Draws, number};

    #[test]
    fn the_last_number_of_a_field_is_read() {
        let text = "{\"cached_tokens\":12}\n{\"cached_tokens\":3456,\"x\":1}";
        assert_eq!(number(text, "\"cached_tokens\":"), Some(3_456));
        assert_eq!(number("{\"cached_tokens\":null}", "\"cached_tokens\":"), None);
    }

    #[test]
    fn a_seed_names_its_draws() {
        let of = |seed| Draws::new(seed).tokens(50);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
