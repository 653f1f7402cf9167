//! The runtime's half of prefill and decode: one task per leg, and the prefill engine's port.

use super::config::{DisaggConfig, Role};
use super::decode;
use super::failure::LegName;
use super::leg::{Inbound, Leg, Outbound};
use super::prefill;
use super::rooms::Rooms;
use super::stats::TransferStats;
use super::{Bootstrap, bootstrap};
use crate::config::EngineError;
use crate::driver::EngineHandle;
use crate::faults::FaultSwitch;
use crate::request::Request;
use crate::transfer::{Identity, Pool, Terms, with_tail};
use parking_lot::Mutex;
use plimsoll_cache::{Chain, Digest};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// What all tasks of an engine share.
pub(crate) struct Context {
    pub(crate) config: DisaggConfig,
    pub(crate) terms: Terms,
    pub(crate) rooms: Rooms,
    pub(crate) engine: EngineHandle,
    pub(crate) faults: FaultSwitch,
    pub(crate) stats: Mutex<TransferStats>,
    pub(crate) ranks: usize,
    /// Of the engine's HTTP interface.
    pub(crate) http_port: u16,
}

/// Makes legs for requests. Dropping it closes the bootstrap port.
pub(crate) struct Service {
    context: Arc<Context>,
    accepting: Option<AbortHandle>,
    /// Of the bootstrap port, where there is one.
    pub(crate) bootstrap_port: Option<u16>,
}

/// Why a request cannot have a leg.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LegError {
    /// SGLang's own words.
    #[error("Invalid request: Disaggregated request received without bootstrap room id. req.rid='{0}'")]
    NoRoom(String),
    #[error("bootstrap_host: name the prefill engine of bootstrap_room {0}")]
    NoHost(u64),
    #[error("bootstrap_room: {0} belongs to another request, use a fresh random number")]
    RoomTaken(u64),
}

/// A prompt as both legs know it.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: usize,
    pub(crate) digests: Vec<Digest>,
}

impl Prompt {
    fn of(request: &Request, page_tokens: usize) -> Self {
        let seed = request.owner.namespace.seed();
        let mut chain = Chain::new(page_tokens, seed);
        chain.extend(&request.prompt);
        let digests = with_tail(&chain, &request.prompt, seed.as_ref());
        Prompt { tokens: request.prompt.len(), digests }
    }

    /// Stands for the whole prompt.
    pub(crate) fn name(&self) -> String {
        self.digests.last().map(|digest| digest.iter().map(|byte| format!("{byte:02x}")).collect()).unwrap_or_default()
    }
}

impl Service {
    /// Opens the bootstrap port of a prefill engine.
    ///
    /// # Errors
    /// When the port is taken.
    pub(crate) fn start(
        mut config: DisaggConfig,
        identity: Identity,
        engine: EngineHandle,
        faults: FaultSwitch,
        ranks: usize,
        http_port: u16,
    ) -> Result<Self, EngineError> {
        let terms = Terms {
            identity,
            secret: config.secret.clone(),
            deadline: config.deadline,
            pool: Pool::new(identity.page_bytes as usize, config.buffers),
        };
        let port = config.bootstrap_port;
        let failed = |error| EngineError::Bootstrap { port, error };
        let listener = (config.role == Role::Prefill).then(|| config.listener()).transpose().map_err(failed)?;
        let context = Arc::new(Context {
            config,
            terms,
            rooms: Rooms::default(),
            engine,
            faults,
            stats: Mutex::default(),
            ranks,
            http_port,
        });
        let Some(listener) = listener else {
            return Ok(Service { context, accepting: None, bootstrap_port: None });
        };
        let port = listener.local_addr().map_err(failed)?.port();
        let accepting = tokio::spawn(bootstrap::accept(listener, Arc::clone(&context))).abort_handle();
        Ok(Service { context, accepting: Some(accepting), bootstrap_port: Some(port) })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Starts the task of a request's leg. The leg belongs to the request's sequence, and the task ends with it. A prefill
    /// request that names no rank gets that of its room, as SGLang has it.
    ///
    /// # Errors
    /// When the request names no room or one that is taken.
    pub(crate) fn leg(&self, request: &mut Request) -> Result<Leg, LegError> {
        let Some(Bootstrap { host, port, room }) = request.bootstrap.take() else {
            return Err(LegError::NoRoom(request.rid.clone()));
        };
        let role = self.context.config.role;
        if role == Role::Prefill && request.rank.is_none() {
            request.rank = Some((room % self.context.ranks as u64) as usize);
        }
        let name = LegName { role, rid: request.rid.clone(), room, rank: request.rank.unwrap_or(0) };
        let prompt = Prompt::of(request, self.context.terms.identity.page_tokens as usize);
        let context = Arc::clone(&self.context);
        if role == Role::Prefill {
            let guest = self.context.rooms.enter(room).ok_or(LegError::RoomTaken(room))?;
            let (leg, task) = Outbound::new(prompt.digests.clone(), self.context.terms.pool.clone());
            tokio::spawn(prefill::run(context, name, prompt, guest, task));
            return Ok(Leg::Prefill(leg));
        }
        if host.is_empty() {
            return Err(LegError::NoHost(room));
        }
        let (leg, task) = Inbound::new();
        tokio::spawn(decode::run(context, name, prompt, host, port, task));
        Ok(Leg::Decode(leg))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(accepting) = &self.accepting {
            accepting.abort();
        }
    }
}

impl Context {
    /// When a side with nothing to say gives a sign of life.
    pub(crate) fn beat(&self) -> Interval {
        let mut beat = interval((self.terms.deadline / 5).max(Duration::from_millis(1)));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beat
    }
}
