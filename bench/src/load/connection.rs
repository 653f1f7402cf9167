//! One connection of the load client.

use super::answer::{Answer, Progress};
use super::ask::Ask;
use super::{Args, MAX_ERRORS_IN_A_ROW, Tally};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const READ_BYTES: usize = 64 * 1024;

pub(super) async fn drive(index: u32, args: Args, begin: Instant, tally: Rc<RefCell<Tally>>) {
    let to = args.to[index as usize % args.to.len()];
    let mut ask = Ask::new(to, args.body_bytes, args.stream, args.tokens);
    let mut answer = Answer::new(args.stream, args.tokens);
    let mut buffer = vec![0u8; READ_BYTES];
    let mut connection = None;
    let mut pauses = Pauses::new(index, args.spread_ms);
    let end = begin + Duration::from_millis(args.for_ms);
    let mut errors_in_a_row = 0;
    if args.spread_ms > 0 {
        tokio::time::sleep(Duration::from_micros(args.spread_ms * 1_000 / u64::from(args.concurrency)) * index).await;
    }
    while Instant::now() < end && errors_in_a_row < MAX_ERRORS_IN_A_ROW {
        let number = tally.borrow().started;
        if number >= args.requests {
            break;
        }
        tally.borrow_mut().started += 1;
        match exchange(&mut connection, to, ask.numbered(number), &mut answer, &mut buffer).await {
            Ok(times) => {
                errors_in_a_row = 0;
                let mut tally = tally.borrow_mut();
                tally.answered += 1;
                tally.latency.saturating_record(nanos(times.complete));
                tally.ttft.saturating_record(nanos(times.first));
                if answer.closes {
                    tally.reconnects += 1;
                    connection = None;
                }
            }
            Err(error) => {
                errors_in_a_row += 1;
                let mut tally = tally.borrow_mut();
                tally.errors += 1;
                tally.first_error.get_or_insert_with(|| format!("{error:#}"));
                connection = None;
            }
        }
        answer.reset();
        pauses.pause().await;
    }
}

struct Times {
    first: Duration,
    complete: Duration,
}

async fn exchange(
    connection: &mut Option<TcpStream>,
    to: SocketAddr,
    ask: &[u8],
    answer: &mut Answer,
    buffer: &mut [u8],
) -> anyhow::Result<Times> {
    if connection.is_none() {
        let fresh = TcpStream::connect(to).await?;
        fresh.set_nodelay(true)?;
        *connection = Some(fresh);
    }
    let Some(stream) = connection else { anyhow::bail!("no connection") };
    let begin = Instant::now();
    stream.write_all(ask).await?;
    let mut first = None;
    loop {
        let n = stream.read(buffer).await?;
        let now = begin.elapsed();
        if n == 0 {
            answer.closed()?;
            answer.closes = true;
            return Ok(Times { first: first.unwrap_or(now), complete: now });
        }
        match answer.feed(&buffer[..n])? {
            Progress::Silent => {}
            Progress::Begun => {
                first.get_or_insert(now);
            }
            Progress::Complete => return Ok(Times { first: first.unwrap_or(now), complete: now }),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Pauses between requests, drawn from a generator seeded by the connection's index (a linear congruential one,
/// with the constants of Knuth's MMIX, is random enough for this).
struct Pauses {
    state: u64,
    most_us: u64,
}

impl Pauses {
    fn new(index: u32, spread_ms: u64) -> Pauses {
        Pauses { state: u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15), most_us: spread_ms * 100 }
    }

    async fn pause(&mut self) {
        if self.most_us == 0 {
            return;
        }
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_micros((self.state >> 33) % self.most_us)).await;
    }
}
