//! One publisher's stream over the network: connect, listen, connect again, and fetch what was missed.
//!
//! A subscription that was lost and comes back has missed messages and cannot know how many; it does not try to. Everything it hears goes
//! on with its number, and whoever reads it sees the hole and asks for a replay. Queues are bounded: a reader that is slow makes
//! the publisher drop, which shows as a hole too.

use super::decode_batch;
use bytes::Bytes;
use plimsoll_core::KvBatch;
use plimsoll_zmtp::{Client, Endpoint, Frames, Limits, ProtocolError, Role};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Largest message that is read: a million blocks in one event are possible, not usual.
const MESSAGE_BYTES: usize = 256 << 20;
/// Waits between attempts to connect grow from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Longest silence inside a replay.
const REPLAY_SILENCE: Duration = Duration::from_secs(2);
/// Number of the message that ends a replay.
const END: u64 = u64::MAX;
/// Messages that wait for the reader.
const QUEUE: usize = 1_024;

/// What a subscription tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// From the live socket.
    Live { seq: u64, batch: KvBatch },
    /// Sent again.
    Replayed { seq: u64, batch: KvBatch },
    /// The replay is over, or there is none to be had.
    ReplayEnded,
    /// Connected; messages may have been missed.
    Connected,
    /// Not connected (any more); tried again after a pause.
    Lost(String),
    /// Nobody listens there: the publisher's process has ended. Once, until there is a connection again.
    Gone,
    /// A message that is none.
    Undecodable(String),
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `tcp://host:port` of the live socket.
    pub live: String,
    /// Of the replay socket.
    pub replay: Option<String>,
    pub topic: String,
}

/// A running subscription. Dropping it ends it.
#[derive(Debug)]
pub struct Subscription {
    pub heard: mpsc::Receiver<Heard>,
    replays: mpsc::Sender<u64>,
    tasks: tokio::task::JoinSet<()>,
}

impl Subscription {
    /// Starts listening on the current runtime.
    ///
    /// # Errors
    /// An address that is none.
    pub fn start(source: Source) -> Result<Subscription, String> {
        let live: Endpoint = source.live.parse().map_err(|error| format!("`{}`: {error}", source.live))?;
        let replay = match &source.replay {
            Some(text) => Some(text.parse::<Endpoint>().map_err(|error| format!("`{text}`: {error}"))?),
            None => None,
        };
        let (sender, heard) = mpsc::channel(QUEUE);
        let (replays, asked) = mpsc::channel(1);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(listen(live, source.topic, sender.clone()));
        tasks.spawn(answer(replay, asked, sender));
        Ok(Subscription { heard, replays, tasks })
    }

    /// Asks for messages from this number on. One replay runs at a time; a second request while one waits is dropped, since the
    /// first one will bring as much.
    pub fn replay(&self, from: u64) {
        let _ = self.replays.try_send(from);
    }

    /// Tasks that still run; for tests.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tasks.len()
    }
}

fn limits() -> Limits {
    Limits { incoming_bytes: MESSAGE_BYTES, handshake: Duration::from_secs(3), ..Limits::default() }
}

async fn listen(endpoint: Endpoint, topic: String, out: mpsc::Sender<Heard>) {
    let mut pause = FIRST_PAUSE;
    let mut gone = false;
    loop {
        let lost = match connected(&endpoint, &topic).await {
            Err(error) => {
                if is_refused(&error) && !std::mem::replace(&mut gone, true) && out.send(Heard::Gone).await.is_err() {
                    return;
                }
                error.to_string()
            }
            Ok(mut client) => {
                (pause, gone) = (FIRST_PAUSE, false);
                if out.send(Heard::Connected).await.is_err() {
                    return;
                }
                loop {
                    match client.recv().await {
                        Ok(frames) => {
                            let heard = match numbered(&frames) {
                                Ok((seq, payload)) => match decode_batch(&payload) {
                                    Ok(batch) => Heard::Live { seq, batch },
                                    Err(error) => Heard::Undecodable(error.to_string()),
                                },
                                Err(why) => Heard::Undecodable(why.to_owned()),
                            };
                            if out.send(heard).await.is_err() {
                                return;
                            }
                        }
                        Err(error) => break error.to_string(),
                    }
                }
            }
        };
        if out.send(Heard::Lost(lost)).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

async fn connected(endpoint: &Endpoint, topic: &str) -> Result<Client, ProtocolError> {
    let mut client = Client::connect(endpoint, Role::Sub, &limits()).await?;
    client.subscribe(topic.as_bytes()).await?;
    Ok(client)
}

fn is_refused(error: &ProtocolError) -> bool {
    matches!(error, ProtocolError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

async fn answer(endpoint: Option<Endpoint>, mut asked: mpsc::Receiver<u64>, out: mpsc::Sender<Heard>) {
    while let Some(from) = asked.recv().await {
        if let Some(endpoint) = &endpoint
            && let Err(why) = replay(endpoint, from, &out).await
        {
            tracing::debug!(why, from, "a replay of KV events broke off");
        }
        if out.send(Heard::ReplayEnded).await.is_err() {
            return;
        }
    }
}

async fn replay(endpoint: &Endpoint, from: u64, out: &mpsc::Sender<Heard>) -> Result<(), String> {
    let mut client = Client::connect(endpoint, Role::Dealer, &limits()).await.map_err(|error| error.to_string())?;
    // An empty frame first, as REQ sends it: the repliers of both engines expect it.
    client.send(&[&[][..], &from.to_be_bytes()[..]]).await.map_err(|error| error.to_string())?;
    loop {
        let frames = match timeout(REPLAY_SILENCE, client.recv()).await {
            Ok(frames) => frames.map_err(|error| error.to_string())?,
            Err(_) => return Err("silence".to_owned()),
        };
        let (seq, payload) = numbered(&frames)?;
        if seq == END {
            return Ok(());
        }
        let batch = decode_batch(&payload).map_err(|error| error.to_string())?;
        out.send(Heard::Replayed { seq, batch }).await.map_err(|_| "nobody listens".to_owned())?;
    }
}

/// Number and payload of a message: the last two frames, with or without a topic before them.
fn numbered(frames: &Frames) -> Result<(u64, Bytes), &'static str> {
    let [.., seq, payload] = frames.as_slice() else { return Err("a message of fewer than two frames") };
    let seq: [u8; 8] = seq.as_ref().try_into().map_err(|_| "a number that has not 8 bytes")?;
    Ok((u64::from_be_bytes(seq), payload.clone()))
}
