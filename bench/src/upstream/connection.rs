//! One connection: read a request, throw its body away, answer.

use super::Shared;
use super::answer::{Answer, Knobs, json};
use super::pace::Pace;
use crate::wire;
use std::rc::Rc;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Large enough to take a 300 KB body in two reads.
const READ_BYTES: usize = 256 * 1024;

const MODELS: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":1790000000,\
     \"owned_by\":\"vllm\",\"root\":\"bench\",\"parent\":null,\"max_model_len\":131072}]}";
const METRICS: &str = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"bench\"} 0.0\n\
     # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"bench\"} 0.0\n\
     # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"bench\"} 0.0\n";

pub(super) async fn serve(mut stream: TcpStream, shared: &Shared) -> anyhow::Result<()> {
    let mut buffer = vec![0u8; READ_BYTES];
    let mut filled = 0;
    let mut pace = None;
    loop {
        let Some(head_end) = read_head(&mut stream, &mut buffer, &mut filled).await? else { return Ok(()) };
        let arrived = Instant::now();
        let action = action(&buffer[..head_end], shared)?;
        let body = wire::framing(&buffer[..head_end])?;
        filled = skip_body(&mut stream, &mut buffer, head_end..filled, body).await?;
        match action {
            Action::Reply(bytes) => stream.write_all(&bytes).await?,
            Action::Infer(answer) => infer(&mut stream, &answer, arrived, &mut pace).await?,
        }
    }
}

enum Action {
    Reply(Vec<u8>),
    Infer(Rc<Answer>),
}

/// Reads until a complete head stands at the front of `buffer`; `None` when the peer has closed.
async fn read_head(stream: &mut TcpStream, buffer: &mut [u8], filled: &mut usize) -> anyhow::Result<Option<usize>> {
    loop {
        if let Some(end) = wire::head_end(&buffer[..*filled])? {
            return Ok(Some(end));
        }
        match stream.read(&mut buffer[*filled..]).await? {
            0 => return Ok(None),
            n => *filled += n,
        }
    }
}

/// Takes the body off the connection; what follows it moves to the front. Returns how much that is, in bytes.
async fn skip_body(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    rest: std::ops::Range<usize>,
    body: Option<wire::Body>,
) -> anyhow::Result<usize> {
    let (mut from, mut to) = (rest.start, rest.end);
    if let Some(mut body) = body {
        loop {
            let (taken, done) = body.feed(&buffer[from..to], |_| {})?;
            from += taken;
            if done {
                break;
            }
            from = 0;
            to = stream.read(buffer).await?;
            anyhow::ensure!(to > 0, "closed within a body");
        }
    }
    buffer.copy_within(from..to, 0);
    Ok(to - from)
}

fn action(head: &[u8], shared: &Shared) -> anyhow::Result<Action> {
    let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line)?.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut counts = shared.counts.borrow_mut();
    Ok(match (method, path) {
        ("POST", "/v1/chat/completions" | "/v1/completions" | "/generate") => {
            counts.inference += 1;
            Action::Infer(Rc::clone(&shared.answer.borrow()))
        }
        ("POST", "/_ctl") => {
            *shared.answer.borrow_mut() = Rc::new(Answer::new(Knobs::from_query(query)?));
            Action::Reply(json("{}"))
        }
        ("GET", "/_counts") => Action::Reply(json(&serde_json::to_string(&*counts)?)),
        (_, other) => {
            counts.other += 1;
            Action::Reply(match other {
                "/health" | "/ping" | "/abort_request" => json(""),
                "/version" => json("{\"version\":\"0.11.0\"}"),
                "/v1/models" => json(MODELS),
                "/metrics" => text(METRICS),
                _ => b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n\
                       {\"detail\":\"Not Found\"}"
                    .to_vec(),
            })
        }
    })
}

fn text(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

async fn infer(
    stream: &mut TcpStream,
    answer: &Answer,
    arrived: Instant,
    pace: &mut Option<Pace>,
) -> anyhow::Result<()> {
    let knobs = answer.knobs;
    let paced = knobs.ttft_us > 0 || knobs.itl_us > 0;
    if paced && pace.is_none() {
        *pace = Some(Pace::new()?);
    }
    if !knobs.stream {
        if let (true, Some(pace)) = (paced, &pace) {
            pace.until(arrived + answer.due(knobs.tokens - 1)).await?;
        }
        return Ok(stream.write_all(&answer.head).await?);
    }
    stream.write_all(&answer.head).await?;
    for k in 0..knobs.tokens {
        if let (true, Some(pace)) = (paced, &pace) {
            pace.until(arrived + answer.due(k)).await?;
        }
        stream.write_all(answer.event(k)).await?;
    }
    Ok(stream.write_all(&answer.done).await?)
}
