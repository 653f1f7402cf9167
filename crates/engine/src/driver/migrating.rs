//! The way of migrations to the step loop.

use super::{Command, EngineHandle};
use crate::migration::desk::{Heard, Reply, Verb};
use crate::migration::notes::Head;
use crate::migration::report::VerbError;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

/// How long the step loop may take to obey: longer than any step.
const ANSWER: Duration = Duration::from_secs(30);

impl EngineHandle {
    /// Has a verb obeyed between two steps. One that must wait for the other engine waits for `wait`, and is then answered
    /// as things are.
    pub(crate) async fn migrate(&self, id: &str, verb: Verb, wait: Duration) -> Result<Reply, VerbError> {
        if !wait.is_zero() {
            let answered = self.ask(id, verb.clone(), true, wait).await;
            if let Ok(answer) = answered {
                return answer;
            }
        }
        self.ask(id, verb, false, ANSWER).await.unwrap_or(Err(VerbError::NoAnswer))
    }

    async fn ask(&self, id: &str, verb: Verb, wait: bool, limit: Duration) -> Result<Result<Reply, VerbError>, ()> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Migrate { id: id.to_owned(), verb, wait, answer });
        match timeout(limit, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(()),
        }
    }

    /// A source has connected: whether it is waited for.
    pub(crate) async fn link_migration(&self, head: Head) -> bool {
        let (expected, answer) = oneshot::channel();
        self.send(Command::Link { head: Box::new(head), expected });
        matches!(timeout(ANSWER, answer).await, Ok(Ok(true)))
    }

    /// Hands over what came on a connection. Not bounded by the inbox: `place` bounds it.
    pub(crate) fn hear_migration(
        &self,
        id: String,
        at_source: bool,
        heard: Heard,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let mut inbox = self.0.inbox.lock();
        if !inbox.stop {
            inbox.parcel(Command::Heard { id, at_source, heard, place });
        }
        drop(inbox);
        self.0.bell.notify_all();
    }
}
