//! One end of the measurement, in a process of its own: a KV store, a thread in the place of the step loop, a link.

use super::Measured;
use anyhow::Context;
use plimsoll_engine::model::{KvStore, ModelConfig};
use plimsoll_engine::transfer::{Expected, Identity, Incoming, Link, Pages, Pool, Terms};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    port: u16,
    #[arg(long, value_parser = Shape::parse)]
    shape: Shape,
    #[arg(long)]
    seconds: u64,
    /// Take pages in place of sending them.
    #[arg(long)]
    receive: bool,
}

/// Whose pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The engine's own model: 512 bytes of KV a token.
    Tiny,
    /// About 100M parameters: 12 layers of 4 KV heads of 64.
    Medium,
}

const PAGE_TOKENS: usize = 16;
/// Far more than any cache holds: a page is read from memory, as in an engine.
const STORE_BYTES: usize = 256 << 20;
/// Between the two threads; the pool has room for these and what each holds.
const QUEUED: usize = 4;

impl Shape {
    pub const ALL: [Shape; 2] = [Shape::Tiny, Shape::Medium];

    pub fn key(self) -> &'static str {
        match self {
            Shape::Tiny => "tiny",
            Shape::Medium => "medium",
        }
    }

    fn parse(text: &str) -> Result<Shape, String> {
        Shape::ALL.into_iter().find(|shape| shape.key() == text).ok_or_else(|| "use tiny or medium".to_owned())
    }

    pub fn name(self) -> String {
        let store = KvStore::new(&self.model(), 1, PAGE_TOKENS);
        format!("KV transfer, pages of {} KiB ({})", store.page_bytes() / 1024, self.key())
    }

    fn model(self) -> ModelConfig {
        match self {
            Shape::Tiny => ModelConfig::default(),
            Shape::Medium => ModelConfig { layers: 12, kv_heads: 4, head_dim: 64, ..ModelConfig::default() },
        }
    }

    fn store(self) -> KvStore {
        let model = self.model();
        let page_bytes = KvStore::new(&model, 1, PAGE_TOKENS).page_bytes();
        KvStore::new(&model, STORE_BYTES / page_bytes, PAGE_TOKENS)
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    crate::supervise::die_with_parent()?;
    let store = args.shape.store();
    let terms = Terms {
        identity: Identity { model: [0; 32], page_tokens: PAGE_TOKENS as u32, page_bytes: store.page_bytes() as u32 },
        secret: None,
        deadline: Duration::from_secs(30),
        pool: Pool::new(store.page_bytes(), QUEUED + 3),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        if args.receive { receive(args, &terms, store).await } else { send(args, &terms, store).await }
    })?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// What page `index` is called; any rule that both ends know will do.
fn digest(index: usize) -> [u8; 32] {
    let mut digest = [7; 32];
    digest[..8].copy_from_slice(&(index as u64).to_le_bytes());
    digest
}

enum Sent {
    Pages(Pages),
    /// All pages of the store have been sent once.
    End(u32),
}

async fn send(args: &Args, terms: &Terms, mut store: KvStore) -> anyhow::Result<Measured> {
    let mut link = connect(args.port, terms).await?;
    let (outbox, mut sent) = mpsc::channel(QUEUED);
    let pool = terms.pool.clone();
    let pages = store.pages();
    // No page like another, and none of zeros that were never written.
    let mut bytes = vec![0; store.page_bytes()];
    for page in 0..pages as u32 {
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u32 ^ page.wrapping_mul(0x9e37)) as u8);
        store.write_page(page, &bytes)?;
    }
    let (begun, cpu) = (Instant::now(), cpu_s()?);
    let until = begun + Duration::from_secs(args.seconds);
    let stepping = std::thread::spawn(move || {
        while Instant::now() < until {
            let mut next = 0;
            while next < pages {
                // There is one: what is queued and what is being sent leave a buffer over.
                let Some(mut buffer) = pool.try_take() else { continue };
                while next < pages {
                    let copy = |bytes: &mut [u8]| assert_eq!(store.copy_page(next as u32, bytes), Ok(()));
                    if !buffer.push(next as u32, &digest(next), copy) {
                        break;
                    }
                    next += 1;
                }
                if outbox.blocking_send(Sent::Pages(buffer)).is_err() {
                    return;
                }
            }
            if outbox.blocking_send(Sent::End(pages as u32)).is_err() {
                return;
            }
        }
    });
    let mut bytes = 0;
    while let Some(sent) = sent.recv().await {
        match sent {
            Sent::Pages(mut pages) => {
                bytes += (pages.len() * terms.pool.page_bytes()) as u64;
                link.sender.pages(&mut pages).await?;
            }
            Sent::End(pages) => link.sender.end(pages).await?,
        }
    }
    link.sender.note(b"over").await?;
    let measured = Measured { bytes, seconds: begun.elapsed().as_secs_f64(), cpu_s: [cpu_s()? - cpu, 0.0] };
    stepping.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))?;
    // The other end closes.
    let _ = link.receiver.next().await;
    Ok(measured)
}

async fn receive(args: &Args, terms: &Terms, mut store: KvStore) -> anyhow::Result<Measured> {
    let listener = TcpListener::bind(("127.0.0.1", args.port)).await?;
    let digests: Vec<[u8; 32]> = (0..store.pages()).map(digest).collect();
    let (stream, _) = listener.accept().await?;
    let mut link = Link::accept(stream, terms).await?;
    let (inbox, mut received) = mpsc::channel::<Pages>(QUEUED);
    let stepping = std::thread::spawn(move || {
        while let Some(pages) = received.blocking_recv() {
            for page in pages.iter() {
                assert_eq!(store.write_page(page.index, page.bytes), Ok(()));
            }
        }
    });
    let (mut begun, cpu, mut bytes) = (None, cpu_s()?, 0);
    let mut due = Expected::new(digests.clone(), 0);
    loop {
        match link.receiver.next().await? {
            Incoming::Pages(pages) => {
                begun.get_or_insert_with(Instant::now);
                pages.iter().try_for_each(|page| due.take(&page))?;
                bytes += (pages.len() * terms.pool.page_bytes()) as u64;
                inbox.send(pages).await?;
            }
            Incoming::End { pages } => {
                due.finish(pages)?;
                due = Expected::new(digests.clone(), 0);
            }
            Incoming::Note(_) => break,
            Incoming::Beat => {}
        }
    }
    // All of it is in the store.
    drop(inbox);
    stepping.join().map_err(|_| anyhow::anyhow!("the receiving thread panicked"))?;
    let seconds = begun.context("nothing came")?.elapsed().as_secs_f64();
    Ok(Measured { bytes, seconds, cpu_s: [cpu_s()? - cpu, 0.0] })
}

/// The other process may not listen yet.
async fn connect(port: u16, terms: &Terms) -> anyhow::Result<Link> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match Link::connect("127.0.0.1", port, terms).await {
            Ok(link) => return Ok(link),
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// User and system time of this process so far, all threads.
fn cpu_s() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, after_name) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
