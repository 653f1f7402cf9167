//! May it go now? The step between knowing a request and choosing an engine for it.
//!
//! With room and nobody waiting it passes at once. Else it waits for its turn, is refused with the rule and the numbers that refused it, or
//! leaves when its client does.

use crate::api_error::ApiError;
use crate::flow::{Failure, Flow};
use crate::metrics::ModelClassWhy;
use crate::record::TrafficRecord;
use crate::traffic::lane::{Arrived, Asked, Lane};
use crate::traffic::permit::Permit;
use plimsoll_core::{ErrorCode, Outcome};
use plimsoll_protocol::request::Api;
use plimsoll_traffic::admission::{Arrival, Decision, Go, Refusal, Rule, Verdict};
use std::time::Duration;

/// Past its deadline a waiter is answered by admission; this much later it answers itself, whatever has become of that.
const LAST_RESORT: Duration = Duration::from_secs(1);

/// Lets a request go, after its wait if there is one.
///
/// # Errors
/// When it is refused.
pub(crate) async fn admit(flow: &mut Flow) -> Result<(), Failure> {
    let Some(lane) = flow.shared.traffic.lane(&flow.shared, flow.model.as_deref()) else { return Ok(()) };
    // From here on it is in the lane's books, unless it is refused.
    let permit = Permit::new(&flow.shared, &lane, flow.id);
    let shared = flow.shared.clone();
    let told = match lane.arrive(&shared, &shared.traffic, asked(flow)) {
        Arrived::Verdict(Verdict::Go(go)) => Ok(go),
        Arrived::Verdict(Verdict::Refuse(refusal)) => Err(refusal),
        Arrived::Verdict(Verdict::Wait) => return Err(lost()),
        Arrived::Waits(told) => match tokio::time::timeout_at(flow.deadline + LAST_RESORT, told).await {
            Ok(Ok(Some(Decision::Go { go, .. }))) => Ok(go),
            Ok(Ok(Some(Decision::Refuse { refusal, .. }))) => Err(refusal),
            // Turned off while it waited.
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(_)) | Err(_) => return Err(lost()),
        },
    };
    match told {
        Ok(go) => {
            lane.count(go.class, go.waited, go.cost_tokens);
            let Go { class, waited, why, level, share, .. } = go;
            let queue_wait_ms = waited.as_millis_f64();
            flow.record.lock().traffic = Some(TrafficRecord {
                why: why.as_str(),
                class,
                queue_wait_ms,
                level,
                share,
                predicted_ms: None,
                allowed_ms: None,
                basis: None,
            });
            // What could not keep its promise goes on as low, at the engine too.
            flow.class = class;
            flow.permit = Some(permit);
            Ok(())
        }
        Err(refusal) => {
            lane.count(refusal.class, refusal.waited, 0);
            let Refusal { rule, class, waited, level, share, predicted, allowed, ref basis, .. } = refusal;
            let queue_wait_ms = waited.as_millis_f64();
            flow.record.lock().traffic = Some(TrafficRecord {
                why: rule.as_str(),
                class,
                queue_wait_ms,
                level,
                share,
                predicted_ms: predicted.map(|time| time.as_millis_f64()),
                allowed_ms: allowed.map(|time| time.as_millis_f64()),
                basis: Some(basis.clone()),
            });
            Err(refused(flow, &lane, &refusal))
        }
    }
}

fn asked(flow: &Flow) -> Asked {
    let now = flow.shared.now();
    let arrived = now - crate::clock::nanos(flow.started.elapsed());
    let left = flow.deadline.saturating_duration_since(tokio::time::Instant::now());
    let hit_tokens = flow.cache.as_ref().map_or(0, |plan| plan.best_tokens(&flow.shared, &flow.settings.policy));
    let prompt_tokens = flow.charge.uncached_prefill_tokens;
    let no_output = flow.route.api == Api::Embeddings;
    let arrival = Arrival {
        key: flow.id,
        tenant: flow.tenant.clone(),
        class: flow.class,
        prompt_tokens,
        prefill_tokens: prompt_tokens.saturating_sub(hit_tokens),
        decode_tokens: 0,
        bytes: flow.body.len() as u64,
        service: None,
        first_token_by: flow.wishes.first_token_within().map(|within| arrived + within),
        answer_by: now + crate::clock::nanos(left),
        retry: flow.repeats,
    };
    let most = flow.facts.max_output_tokens.map(|tokens| tokens.saturating_mul(flow.facts.sequences));
    Asked { arrival, most_output_tokens: if no_output { Some(0) } else { most }, sequences: flow.facts.sequences }
}

fn refused(flow: &Flow, lane: &Lane, refusal: &Refusal) -> Failure {
    let (class, why) = (refusal.class.as_str(), refusal.rule.as_str());
    let labels = ModelClassWhy { model: lane.model.clone(), class, why };
    flow.shared.metrics.traffic_refused.get_or_create(&labels).inc();
    let seconds = refusal.retry_after.as_secs_f64().ceil() as u64;
    let error = ApiError::new(refusal.rule.code(), refusal.to_string()).retry_after(seconds);
    let outcome = if refusal.rule == Rule::Deadline { Outcome::DeadlineExceeded } else { Outcome::Refused };
    Failure { outcome, error }
}

/// Nobody gave it a turn: never left without an answer all the same.
fn lost() -> Failure {
    let error =
        ApiError::new(ErrorCode::DeadlineExceeded, "the request's deadline passed while it waited for an engine");
    Failure { outcome: Outcome::DeadlineExceeded, error }
}
