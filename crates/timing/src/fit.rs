//! Constants of the closed form from measured steps of one engine.
//!
//! The cost of a step is linear in constants that cannot be negative: work takes time. What differs between machines is
//! what they are, so whole steps of an engine, as its own log tells them (`plimsoll engine --step-log`), are enough to find
//! all at once: a curve for new tokens, attention by cached tokens of decoding requests and by pairs of a prompt's, rows of
//! the head. The fit minimises squared *relative* errors, so that short steps count as much as long ones, and looks away
//! from steps that took far longer than their like: a machine interrupts.

use crate::curve::Curve;
use crate::profile::{Kernel, Profile};
use crate::shape::StepShape;
use serde::Serialize;
use squares::not_negative;

mod squares;
#[cfg(test)]
mod tests;

/// A step that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub shape: StepShape,
    pub us: f64,
}

/// How well a profile says what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    pub steps: u64,
    /// Of them, those taken for interrupted and left out of the fit.
    pub left_out: u64,
    /// Of the others: error of a step relative to what it took, and what all would take over what they took.
    pub median_error: f64,
    pub p90_error: f64,
    pub total_ratio: f64,
}

/// Why there is no profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} steps were measured, at least {FEWEST_STEPS} are needed, some with prefill and some without")]
pub struct TooFewSteps {
    pub found: usize,
}

/// Fewer say nothing about a dozen constants.
const FEWEST_STEPS: usize = 40;
/// Steps that a piece of the curve needs to have a slope of its own.
const STEPS_A_KNOT: usize = 4;
/// A step so far above the fit was interrupted, at least, and by as many times the median error.
const FAR: f64 = 0.15;
const FAR_IN_ERRORS: f64 = 6.0;
/// Rounds of fitting and leaving out.
const ROUNDS: usize = 4;
/// No attention at all cannot be said by a bandwidth.
const LEAST_US: f64 = 1e-9;
/// Rows up to which the head's curve is drawn; it goes on straight.
const HEAD_ROWS: f64 = 64.0;

/// `base` with the constants that say best what the steps took; its shape of the model and its sizes are kept.
///
/// # Errors
/// When there are too few steps, or all of one kind.
pub fn fit(samples: &[Sample], base: &Profile) -> Result<(Profile, Quality), TooFewSteps> {
    let too_few = TooFewSteps { found: samples.len() };
    let mixed = |with: bool| samples.iter().any(|one| one.shape.chunks().is_empty() == with);
    if samples.len() < FEWEST_STEPS || !mixed(true) || !mixed(false) {
        return Err(too_few);
    }
    let knots = knots(samples);
    let mut kept: Vec<&Sample> = samples.iter().filter(|one| one.us > 0.0).collect();
    let mut profile = solve(&kept, &knots, base);
    for _ in 1..ROUNDS {
        let far = (FAR_IN_ERRORS * median(&errors(&profile, &kept))).max(FAR);
        let before = kept.len();
        kept.retain(|one| one.us <= profile.cost(&one.shape).total_us() * (1.0 + far));
        if kept.len() == before {
            break;
        }
        if kept.len() < FEWEST_STEPS {
            return Err(too_few);
        }
        profile = solve(&kept, &knots, base);
    }
    let quality = Quality { left_out: (samples.len() - kept.len()) as u64, ..quality(&profile, &kept) };
    Ok((profile, Quality { steps: samples.len() as u64, ..quality }))
}

/// How far `profile` is from steps that it was perhaps not made from.
#[must_use]
pub fn judge(profile: &Profile, samples: &[Sample]) -> Quality {
    quality(profile, &samples.iter().collect::<Vec<_>>())
}

fn quality(profile: &Profile, samples: &[&Sample]) -> Quality {
    let errors = errors(profile, samples);
    let measured: f64 = samples.iter().map(|one| one.us).sum();
    let said: f64 = samples.iter().map(|one| profile.cost(&one.shape).total_us()).sum();
    Quality {
        steps: samples.len() as u64,
        left_out: 0,
        median_error: median(&errors),
        p90_error: errors.get(errors.len() * 9 / 10).copied().unwrap_or_default(),
        total_ratio: if measured > 0.0 { said / measured } else { 0.0 },
    }
}

/// Relative and absolute, rising.
fn errors(profile: &Profile, samples: &[&Sample]) -> Vec<f64> {
    let error = |one: &&Sample| (profile.cost(&one.shape).total_us() / one.us - 1.0).abs();
    let mut errors: Vec<f64> = samples.iter().map(error).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Numbers of new tokens between which the curve is straight: powers of two and those half-way, as far as steps say anything there.
fn knots(samples: &[Sample]) -> Vec<f64> {
    let mut tokens: Vec<u64> = samples.iter().map(|one| one.shape.new_tokens()).collect();
    tokens.sort_unstable();
    let most = tokens.last().copied().unwrap_or(1).max(2);
    let candidates = (0..63).flat_map(|power| [1u64 << power, (1u64 << power) / 2 * 3]).filter(|knot| *knot > 1);
    let mut knots = vec![1];
    for knot in candidates.take_while(|knot| *knot < most) {
        let last = knots.last().copied().unwrap_or(1);
        let between =
            tokens.partition_point(|tokens| *tokens <= knot) - tokens.partition_point(|tokens| *tokens <= last);
        if between >= STEPS_A_KNOT && knot > last {
            knots.push(knot);
        }
    }
    knots.push(most);
    knots.dedup();
    knots.into_iter().map(|knot| knot as f64).collect()
}

/// What comes before the pieces of the curve among the unknowns.
const BEFORE: usize = 6;

/// Of one step, in the order of the unknowns: any step, cached tokens of decoding, prefill, its pairs, a head, its further
/// rows; then new tokens by piece of the curve.
fn features(shape: &StepShape, knots: &[f64]) -> Vec<f64> {
    let one = |is: bool| f64::from(u8::from(is));
    let pair = |new: u64, cached: u64| new as f64 * (cached as f64 + new as f64 / 2.0);
    let outputs = shape.outputs();
    let mut all = vec![
        1.0,
        shape.decode_tokens() as f64,
        one(!shape.chunks().is_empty()),
        shape.chunks().iter().map(|chunk| pair(chunk.new_tokens, chunk.cached_tokens)).sum(),
        one(outputs > 0),
        outputs.saturating_sub(1) as f64,
    ];
    debug_assert_eq!(all.len(), BEFORE);
    let new = shape.new_tokens() as f64;
    all.extend(knots.windows(2).map(|piece| (new.min(piece[1]) - piece[0]).max(0.0)));
    all
}

fn solve(samples: &[&Sample], knots: &[f64], base: &Profile) -> Profile {
    let rows: Vec<(Vec<f64>, f64)> = samples.iter().map(|one| (features(&one.shape, knots), one.us)).collect();
    let found = not_negative(&rows);
    let (fixed, slopes) = found.split_at(BEFORE);
    let layers = f64::from(base.model.layers);
    let mut profile = base.clone();
    let mut height = fixed[0];
    let mut curve = Curve { at: vec![knots[0]], us: vec![height / layers] };
    for (piece, slope) in knots.windows(2).zip(slopes) {
        height += slope * (piece[1] - piece[0]);
        curve.at.push(piece[1]);
        curve.us.push(height / layers);
    }
    profile.dense = curve;
    (profile.step.host_us, profile.step.layer_us) = (0.0, 0.0);
    profile.head = Curve { at: vec![1.0, HEAD_ROWS], us: vec![fixed[4], fixed[4] + fixed[5] * (HEAD_ROWS - 1.0)] };
    // Whole steps do not tell the head's rows from a request's own share of attention.
    (profile.decode.c0_us, profile.decode.c1_us, profile.decode.efficiency) = (0.0, 0.0, 1.0);
    let token_us = (fixed[1] / layers).max(LEAST_US);
    profile.machine.bandwidth_gb_s = profile.model.kv_bytes_token_layer / token_us / 1e3;
    profile.prefill.c0_us = fixed[2] / layers;
    let pair_us = (fixed[3] / layers).max(LEAST_US);
    profile.prefill.tflops = 4.0 * profile.model.head_dim * profile.model.heads / pair_us / 1e6;
    (profile.prefill.diagonal_tokens, profile.prefill.tile_rows) = (0.0, 0.0);
    profile.kernel = Kernel::K0 { skew: 0.0 };
    profile
}
