//! What a client is told when there is no engine for its request: 404 for what is not served, 400 for what it left open, 503 with `Retry-After`
//! for what may be served in a moment.

use crate::api_error::ApiError;
use crate::flow::{Failure, Flow};
use plimsoll_core::{ErrorCode, InstanceId, Outcome};
use plimsoll_load::PlaceError;

/// Why nobody was chosen, as the client is told.
pub(crate) fn refuse(flow: &Flow, error: &PlaceError) -> Failure {
    let code = match error {
        PlaceError::UnknownModel => ErrorCode::ModelNotFound,
        PlaceError::ModelRequired => ErrorCode::InvalidRequest,
        PlaceError::NoCandidate { .. } | PlaceError::AlreadyCharged => ErrorCode::NoCapacity,
    };
    let served = || flow.shared.served_models().iter().take(20).cloned().collect::<Vec<_>>().join(", ");
    let message = match error {
        PlaceError::UnknownModel => {
            let asked = flow.model.as_deref().unwrap_or("");
            // A client's own string comes back to that client only; bounded all the same.
            format!("model `{}` is not served here; served: {}", asked.chars().take(200).collect::<String>(), served())
        }
        PlaceError::ModelRequired => {
            format!("several models are served, name one in `model` or `x-plimsoll-model`: {}", served())
        }
        PlaceError::NoCandidate { reasons } if nobody_offers(reasons) => {
            let message = format!("no engine of this model offers {}", flow.route.path);
            return Failure { outcome: Outcome::Refused, error: ApiError::new(ErrorCode::NotFound, message) };
        }
        PlaceError::NoCandidate { reasons } => {
            let reasons: Vec<String> = reasons.iter().take(8).map(|(id, why)| format!("engine {id}: {why}")).collect();
            return no_capacity(flow, &format!("no engine can take the request now ({})", reasons.join("; ")));
        }
        PlaceError::AlreadyCharged => return no_capacity(flow, "internal: this attempt is already charged"),
    };
    Failure { outcome: Outcome::Refused, error: ApiError::new(code, message) }
}

/// Waiting would not help: what is missing is the endpoint, not room.
fn nobody_offers(reasons: &[(InstanceId, &'static str)]) -> bool {
    !reasons.is_empty()
        && reasons.iter().all(|(_, why)| {
            *why == "does not offer this route" || *why == "its engine family does not serve this endpoint"
        })
}

/// 503, to be repeated.
pub(crate) fn no_capacity(flow: &Flow, message: &str) -> Failure {
    let error = ApiError::new(ErrorCode::NoCapacity, message).retry_after(flow.settings.retry.retry_after_s);
    Failure { outcome: Outcome::Refused, error }
}
