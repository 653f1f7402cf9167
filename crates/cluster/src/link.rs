//! The connection to NATS: one subject, said on and listened to.

use crate::wire::{Ignored, decode, encode};
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, ServerAddr, Subscriber};
use futures_util::StreamExt as _;
use plimsoll_core::GatewayReport;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Reports that were received and not read yet; further ones are lost, as on a bad network.
const HELD: usize = 256;
/// What may be on its way to the socket.
const SENDING: usize = 16;
/// Longest wait for a connection with all its greetings.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest wait for a report to be taken: by the next one it is old.
const SAY: Duration = Duration::from_millis(500);
/// A server that answers nothing is noticed after a few of these, though its socket is open.
const PING: Duration = Duration::from_secs(2);
/// Longest pause between two tries to connect. Far shorter than a lease, or those that come back first would give up the others.
const RECONNECT: Duration = Duration::from_secs(1);
/// Most of an error's text that is kept.
const MOST_WORDS: usize = 200;

/// How a gateway proves itself to NATS.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    None,
    Token(String),
    Password { user: String, password: String },
}

/// Says what kind it is and nothing of it.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::None => "none",
            Login::Token(_) => "token",
            Login::Password { .. } => "password",
        })
    }
}

/// Where and as whom.
#[derive(Clone, Debug)]
pub struct Config {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`, any of which will do.
    pub servers: Vec<String>,
    /// Fleets of different names do not hear each other. One word of a subject: no space, dot, `*` or `>`.
    pub fleet: String,
    pub login: Login,
    /// PEM file of the authority that signed the servers' certificates; the system's where left out.
    pub ca_file: Option<PathBuf>,
}

/// Why something could not be said or begun.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("`{0}` is no address of a NATS server")]
    Address(String),
    #[error("there is no connection to NATS")]
    Disconnected,
    #[error("NATS did not take it within {} ms", SAY.as_millis())]
    Slow,
    #[error("{0}")]
    Client(String),
}

/// A connection that makes itself again for as long as this lives.
pub struct Link {
    client: Client,
    messages: Subscriber,
    subject: String,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// Begins to connect, and does not wait for it.
    ///
    /// # Errors
    /// An address that is none.
    pub async fn open(config: &Config) -> Result<Link, LinkError> {
        let address = |text: &String| text.parse::<ServerAddr>().map_err(|_| LinkError::Address(text.clone()));
        let servers = config.servers.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        let trouble = Arc::new(Mutex::new(None));
        let noted = trouble.clone();
        let mut options = ConnectOptions::new()
            .name("plimsoll")
            .retry_on_initial_connect()
            .connection_timeout(CONNECT)
            .ping_interval(PING)
            .subscription_capacity(HELD)
            .client_capacity(SENDING)
            .reconnect_delay_callback(delay)
            .event_callback(move |event| {
                note(&noted, &event);
                std::future::ready(())
            });
        options = match &config.login {
            Login::None => options,
            Login::Token(token) => options.token(token.clone()),
            Login::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
        };
        if let Some(file) = &config.ca_file {
            options = options.add_root_certificates(file.clone());
        }
        let subject = format!("plimsoll.{}.demand", config.fleet);
        let client = options.connect(servers).await.map_err(|error| LinkError::Client(error.to_string()))?;
        let messages = tokio::time::timeout(SAY, client.subscribe(subject.clone())).await;
        let messages = messages.map_err(|_| LinkError::Slow)?.map_err(|error| LinkError::Client(error.to_string()))?;
        Ok(Link { client, messages, subject, trouble })
    }

    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Why there is no connection, as far as that was said.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells everybody, oneself among them. Without a connection nothing is kept for later: it would be old.
    ///
    /// # Errors
    /// Without a connection, or when it is not taken in time.
    pub async fn say(&self, report: &GatewayReport) -> Result<(), LinkError> {
        if !self.is_connected() {
            return Err(LinkError::Disconnected);
        }
        let said = self.client.publish(self.subject.clone(), encode(report).into());
        let said = tokio::time::timeout(SAY, said).await.map_err(|_| LinkError::Slow)?;
        said.map_err(|error| LinkError::Client(error.to_string()))
    }

    /// As [`Link::say`], and waits until it has left this process: for a last word.
    ///
    /// # Errors
    /// As there.
    pub async fn say_last(&self, report: &GatewayReport) -> Result<(), LinkError> {
        self.say(report).await?;
        let sent = tokio::time::timeout(SAY, self.client.flush()).await.map_err(|_| LinkError::Slow)?;
        sent.map_err(|error| LinkError::Client(error.to_string()))
    }

    /// The next that comes on the subject; for ever without a connection. `None`: the link has ended and is to be opened anew. Can be dropped and called again.
    pub async fn next(&mut self) -> Option<Result<GatewayReport, Ignored>> {
        let message = self.messages.next().await?;
        Some(decode(&message.payload))
    }
}

/// At once, then twice as long each time.
fn delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(2)).unwrap_or(u32::MAX).min(10);
    if attempts <= 1 { Duration::ZERO } else { (Duration::from_millis(50) * 2_u32.pow(doublings)).min(RECONNECT) }
}

fn note(trouble: &Mutex<Option<String>>, event: &Event) {
    let words = match event {
        Event::Connected => None,
        Event::Disconnected => Some("the connection ended".to_owned()),
        Event::ServerError(error) => Some(error.to_string()),
        Event::ClientError(error) => Some(error.to_string()),
        _ => return,
    };
    *trouble.lock().unwrap_or_else(PoisonError::into_inner) =
        words.map(|words| words.chars().take(MOST_WORDS).collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_do_not_show() {
        let login = Login::Password { user: "gate".into(), password: "s3cret".into() };
        let config = Config { servers: vec!["nats://h:1".into()], fleet: "f".into(), login, ca_file: None };
        let shown = format!("{config:?} {:?}", Login::Token("s3cret".into()));
        assert!(!shown.contains("s3cret") && !shown.contains("gate"), "{shown}");
    }

    #[test]
    fn tries_get_rarer_and_never_rarer_than_a_second() {
        let all: Vec<u128> = (0..12).map(|attempts| delay(attempts).as_millis()).collect();
        assert_eq!(all[..8], [0, 0, 50, 100, 200, 400, 800, 1_000]);
        assert!(all[8..].iter().all(|ms| *ms == 1_000));
        assert_eq!(delay(usize::MAX), RECONNECT);
    }

    /// The listener that never answers is as good as none, and nothing waits for it.
    #[tokio::test]
    async fn without_a_server_nothing_is_said_and_nothing_waits() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let servers = vec![format!("nats://{}", silent.local_addr().unwrap())];
        let config = Config { servers, fleet: "f".into(), login: Login::None, ca_file: None };
        let link = Link::open(&config).await.unwrap();
        let report = GatewayReport {
            gateway: plimsoll_core::GatewayId(1),
            sequence: 1,
            leaving: false,
            models: Default::default(),
        };
        assert!(matches!(link.say(&report).await, Err(LinkError::Disconnected)));
        assert!(!link.is_connected());
        let none = Config { servers: vec!["ftp://h:1".into()], ..config };
        assert!(matches!(Link::open(&none).await, Err(LinkError::Address(_))));
    }
}
