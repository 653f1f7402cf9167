//! This gateway's part of the quotas, where several stand before the same engines: what it hears of the others, and the task that tells them
//! of itself.
//!
//! The deciding is in [`plimsoll_traffic::lease`], the connection in `plimsoll_cluster`. Requests never wait for either: each lane holds its part, and the task
//! changes it when something was heard.

pub(crate) mod show;

use crate::metrics::EngineOnlyWord;
use crate::state::Shared;
use parking_lot::Mutex;
use plimsoll_cluster::{Config, Link, Login};
use plimsoll_core::{GatewayId, GatewayReport};
use plimsoll_settings::{Cluster, Settings};
use plimsoll_traffic::lease::{Heard, Lease, LeaseRules, Leases, Standing};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// Between two reports.
const EVERY: Duration = Duration::from_secs(1);
/// What was heard is added up once for all that comes within so long: of a thousand gateways somebody speaks every millisecond.
const TOGETHER: Duration = Duration::from_millis(50);
/// Before a link that could not be opened, or has ended, is opened anew.
const REOPEN: Duration = Duration::from_secs(1);
/// Longest wait for the last word to be on its way, at the end.
const GOODBYE: Duration = Duration::from_secs(1);

/// What this gateway knows of the others. Without a NATS server in the settings it is off, and everything is this gateway's own.
pub struct LeaseBoard {
    on: Option<On>,
    leave: Notify,
}

struct On {
    own: GatewayId,
    fleet: String,
    state: Mutex<State>,
}

struct State {
    leases: Leases,
    /// Why there is no connection.
    trouble: Option<String>,
}

impl LeaseBoard {
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let cluster = &settings.cluster;
        let on = (!cluster.nats.is_empty()).then(|| {
            // Drawn anew at each start: what the process before this one had is not this one's.
            let own = GatewayId(uuid::Uuid::new_v4().as_u64_pair().1);
            let leases = Leases::new(own, rules(cluster));
            On { own, fleet: cluster.fleet.clone(), state: Mutex::new(State { leases, trouble: None }) }
        });
        LeaseBoard { on, leave: Notify::new() }
    }

    /// This gateway's part of a model's quotas; `None`: all.
    #[must_use]
    pub(crate) fn lease(&self, shared: &Shared, model: &str) -> Option<Lease> {
        self.on.as_ref().map(|on| on.state.lock().leases.lease(model, shared.now()))
    }
}

fn rules(cluster: &Cluster) -> LeaseRules {
    let lease = plimsoll_core::Nanos::from_millis(cluster.lease_ms);
    LeaseRules { lease, assumed_gateways: cluster.assumed_gateways }
}

fn config(cluster: &Cluster) -> Config {
    let login = match (&cluster.token, &cluster.user, &cluster.password) {
        (Some(token), ..) => Login::Token(token.0.clone()),
        (None, Some(user), Some(password)) => Login::Password { user: user.clone(), password: password.0.clone() },
        _ => Login::None,
    };
    Config { servers: cluster.nats.clone(), fleet: cluster.fleet.clone(), login, ca_file: cluster.ca_file.clone() }
}

/// The task, where there is one.
pub(crate) struct Running(Option<JoinHandle<()>>);

impl Running {
    pub(crate) fn start(shared: &Arc<Shared>) -> Running {
        Running(shared.leases.on.is_some().then(|| tokio::spawn(run(shared.clone()))))
    }

    /// Tells the others that this gateway admits nothing any more, so that they need not wait for its lease to run out.
    pub(crate) async fn leave(self, shared: &Shared) {
        let Some(task) = self.0 else { return };
        shared.leases.leave.notify_one();
        let aborts = task.abort_handle();
        if tokio::time::timeout(GOODBYE, task).await.is_err() {
            aborts.abort();
        }
    }
}

/// Runs until this gateway leaves.
async fn run(shared: Arc<Shared>) {
    let Some(on) = &shared.leases.on else { return };
    let config = config(&shared.settings.load().cluster);
    let mut sequence = 0;
    let mut said = Said::default();
    loop {
        match Link::open(&config).await {
            Ok(link) => {
                if talk(&shared, on, link, &mut sequence, &mut said).await {
                    return;
                }
            }
            Err(error) => on.state.lock().trouble = Some(error.to_string()),
        }
        share_out(&shared);
        said.changes(&shared, on);
        tokio::select! {
            () = shared.leases.leave.notified() => return,
            () = tokio::time::sleep(REOPEN) => {}
        }
    }
}

/// Until the link ends; true when this gateway leaves.
async fn talk(shared: &Arc<Shared>, on: &On, mut link: Link, sequence: &mut u64, said: &mut Said) -> bool {
    let mut every = tokio::time::interval_at(Instant::now(), EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due: Option<Instant> = None;
    loop {
        let when_due = async move {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.leases.leave.notified() => {
                *sequence += 1;
                on.state.lock().leases.saying(*sequence);
                if let Err(error) = link.say_last(&report(shared, on.own, *sequence, true)).await {
                    tracing::debug!(%error, "the other gateways could not be told that this one leaves");
                }
                return true;
            }
            _ = every.tick() => {
                *sequence += 1;
                on.state.lock().leases.saying(*sequence);
                let result = link.say(&report(shared, on.own, *sequence, false)).await;
                on.state.lock().trouble = result.err().map(|error| link.trouble().unwrap_or_else(|| error.to_string()));
                share_out(shared);
                said.changes(shared, on);
            }
            () = when_due => {
                due = None;
                share_out(shared);
            }
            heard = link.next() => {
                let Some(heard) = heard else { return false };
                let word = match heard {
                    Ok(report) => match on.state.lock().leases.hear(shared.now(), report) {
                        Heard::Own => "own",
                        Heard::Peer => "peer",
                        Heard::Late => "late",
                        Heard::TooMany => "too_many",
                        Heard::NotMine => "not_mine",
                    },
                    Err(why) => why.as_str(),
                };
                shared.metrics.cluster_reports.get_or_create(&EngineOnlyWord { result: word }).inc();
                due.get_or_insert_with(|| Instant::now() + TOGETHER);
            }
        }
    }
}

fn report(shared: &Shared, gateway: GatewayId, sequence: u64, leaving: bool) -> GatewayReport {
    let now = shared.now();
    let lanes = shared.traffic.lanes();
    let models = if leaving {
        Default::default()
    } else {
        lanes.iter().map(|(model, lane)| (model.clone(), lane.demand(now))).collect()
    };
    GatewayReport { gateway, sequence, leaving, models }
}

/// Gives each lane its part.
fn share_out(shared: &Shared) {
    for lane in shared.traffic.lanes().values() {
        lane.set_lease(shared.leases.lease(shared, &lane.model));
    }
}

/// What the log has been told.
#[derive(Default)]
struct Said {
    kept: Option<bool>,
    gateways: usize,
}

impl Said {
    /// A line when contact is lost or there, and when gateways come or go.
    fn changes(&mut self, shared: &Shared, on: &On) {
        let (standing, gateways, trouble) = {
            let state = on.state.lock();
            (state.leases.standing(shared.now()), state.leases.gateways(), state.trouble.clone())
        };
        let kept = match standing {
            Standing::Held | Standing::Joining => false,
            Standing::Kept { .. } => true,
            // It has only just begun.
            Standing::Unknown if shared.clock.now() < plimsoll_core::Nanos::from_secs(3) => return,
            Standing::Unknown => true,
        };
        if self.kept.replace(kept) != Some(kept) {
            if kept {
                let why = trouble.unwrap_or_else(|| "own reports do not come back".to_owned());
                tracing::warn!(
                    fleet = on.fleet,
                    why,
                    "no contact with the other gateways: the part of the quotas stays as it is"
                );
            } else {
                tracing::info!(fleet = on.fleet, gateway = %on.own, "contact with NATS: quotas are shared with the other gateways");
            }
        }
        if std::mem::replace(&mut self.gateways, gateways) != gateways && !kept {
            tracing::info!(fleet = on.fleet, gateways, "gateways that share the quotas");
        }
    }
}
