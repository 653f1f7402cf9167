//! Least squares of relative errors with unknowns that are not negative.

/// Rounds through all unknowns: far more than a dozen of them need.
const ROUNDS: usize = 20_000;
/// Relative change at which it is done.
const STILL: f64 = 1e-12;

/// The unknowns that minimise the sum over `rows` of `((features x unknowns) / measured - 1)^2`; measured above 0.
///
/// Coordinate descent on the normal equations, which are convex: one unknown after another goes to its best value that is
/// not negative, until none moves. No step size, no randomness: the same rows give the same bits.
pub(super) fn not_negative(rows: &[(Vec<f64>, f64)]) -> Vec<f64> {
    let size = rows.first().map_or(0, |(features, _)| features.len());
    let (mut gram, mut right) = (vec![vec![0.0; size]; size], vec![0.0; size]);
    for (features, measured) in rows {
        for (i, a) in features.iter().enumerate() {
            let a = a / measured;
            right[i] += a;
            for (cell, b) in gram[i].iter_mut().zip(features) {
                *cell += a * (b / measured);
            }
        }
    }
    // To the same size, so that tokens and tokens squared can be told by one threshold.
    let scale: Vec<f64> = (0..size).map(|i| gram[i][i].sqrt()).collect();
    let known = |i: usize| scale[i] > 0.0;
    for i in 0..size {
        for j in 0..size {
            gram[i][j] /= if known(i) && known(j) { scale[i] * scale[j] } else { 1.0 };
        }
        right[i] /= if known(i) { scale[i] } else { 1.0 };
    }
    let mut found = vec![0.0; size];
    for _ in 0..ROUNDS {
        let mut moved = 0.0_f64;
        for i in (0..size).filter(|i| known(*i)) {
            let others: f64 = (0..size).filter(|j| *j != i).map(|j| gram[i][j] * found[j]).sum();
            let best = (right[i] - others).max(0.0);
            moved = moved.max((best - found[i]).abs());
            found[i] = best;
        }
        if moved <= STILL * found.iter().copied().fold(0.0, f64::max) {
            break;
        }
    }
    (0..size).map(|i| if known(i) { found[i] / scale[i] } else { 0.0 }).collect()
}
