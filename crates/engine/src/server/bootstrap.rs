//! The fields that bring the two legs of a request together, as SGLang reads them: one value for all requests of a body,
//! or a list with one each. A single room for several requests means that one and those after it.

use super::State;
use super::errors::ApiError;
use super::fields::Fields;
use crate::disagg::{Bootstrap, FAKE_HOST, Leg, Role, Service};
use crate::mailbox::Ticket;
use crate::request::{Request, Task};
use crate::sampling::limits::MAX_LOGPROBS;
use serde_json::Value;

impl State {
    /// All or none: when one of them is refused, those already taken are cancelled with their tickets. Requests that name
    /// a goal are taken when the scheduler has looked at them, so that a refusal is a proper status of a stream, too.
    ///
    /// # Errors
    /// When the engine does not take one, or a prefill or decode engine lacks what brings the legs together.
    pub(crate) async fn submit_all(
        &self,
        fields: &Fields,
        mut requests: Vec<Request>,
    ) -> Result<Vec<Ticket>, ApiError> {
        check_logprobs(&requests)?;
        if self.disagg.is_some() {
            attach(fields, &mut requests, self.config.disagg.bootstrap_port)?;
        }
        let submit = |mut request: Request| {
            let leg = self.disagg.as_ref().map(|service| leg(service, &mut request)).transpose()?.flatten();
            Ok(self.engine.handle().submit_with(request, leg)?)
        };
        // A leg is looked at only when the other one is there.
        let goal = self.disagg.is_none() && requests.iter().any(|request| request.urgency.has_goal());
        let tickets: Vec<Ticket> = requests.into_iter().map(submit).collect::<Result<_, ApiError>>()?;
        if goal {
            for ticket in &tickets {
                ticket.accepted().await?;
            }
        }
        Ok(tickets)
    }
}

/// All answers to a body are held until they are sent: what each may report is bounded, and so is the sum.
fn check_logprobs(requests: &[Request]) -> Result<(), ApiError> {
    let most = |request: &Request| match &request.task {
        Task::Generate(params) => params.most_logprobs(request.prompt.len()),
        Task::Embed => 0,
    };
    let sum = requests.iter().map(most).fold(0, usize::saturating_add);
    if sum > MAX_LOGPROBS {
        let message = format!(
            "up to {sum} log-probabilities are asked for (ids per position, times positions, times answers), this \
             engine reports {MAX_LOGPROBS} per request: ask for fewer ids, fewer positions or fewer answers"
        );
        return Err(ApiError::new(400, "invalid_request", message));
    }
    Ok(())
}

/// `None` for what a prefill or decode engine does alone.
fn leg(service: &Service, request: &mut Request) -> Result<Option<Leg>, ApiError> {
    let alone = request.bootstrap.as_ref().is_some_and(|bootstrap| bootstrap.host == FAKE_HOST);
    if alone || matches!(request.task, Task::Embed) {
        return Ok(None);
    }
    service.leg(request).map(Some).map_err(|error| ApiError {
        param: Some("bootstrap_room".to_owned()),
        ..ApiError::new(400, "invalid_request", error.to_string())
    })
}

fn attach(fields: &Fields, requests: &mut [Request], default_port: u16) -> Result<(), ApiError> {
    let count = requests.len();
    let rooms =
        per_request(fields, "bootstrap_room", count, "expected an integer from 0 to 9223372036854775807", |value| {
            value.as_i64().and_then(|room| u64::try_from(room).ok())
        })?;
    let hosts = per_request(fields, "bootstrap_host", count, "expected a host name", |value| {
        value.as_str().filter(|host| !host.is_empty()).map(str::to_owned)
    })?;
    let ports = per_request(fields, "bootstrap_port", count, "expected a port", |value| {
        value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
    })?;
    let one_room = !matches!(fields.get("bootstrap_room"), Some(Value::Array(_)));
    for (index, request) in requests.iter_mut().enumerate() {
        let Some(room) = rooms[index] else { continue };
        request.bootstrap = Some(Bootstrap {
            host: hosts[index].clone().unwrap_or_default(),
            port: ports[index].unwrap_or(default_port),
            room: if one_room { (room + index as u64) & i64::MAX as u64 } else { room },
        });
    }
    Ok(())
}

fn per_request<T: Clone>(
    fields: &Fields,
    name: &str,
    count: usize,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<Option<T>>, ApiError> {
    let one = |value: &Value| match value {
        Value::Null => Ok(None),
        value => read(value).map(Some).ok_or_else(|| ApiError::field(name, expected)),
    };
    match fields.get(name) {
        Some(Value::Array(list)) if list.len() == count => list.iter().map(one).collect(),
        Some(Value::Array(list)) => Err(ApiError::field(name, format!("{} values for {count} requests", list.len()))),
        value => Ok(vec![one(value.unwrap_or(&Value::Null))?; count]),
    }
}

/// What `/v1/loads` and `/server_info` call the role.
pub(crate) fn mode(state: &State) -> &'static str {
    state.config.disagg.role.mode()
}

pub(crate) fn role(state: &State) -> Role {
    state.config.disagg.role
}
