//! The fewest points of a measured curve that say it well enough.

/// Relative deviation that straight lines between knots may have at any measured point.
pub(super) const TOLERANCE: f64 = 0.015;

/// A subset of the points, sorted by x: greedy, each piece as long as it stays within [`TOLERANCE`].
pub(super) fn choose(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut knots: Vec<(f64, f64)> = points.first().copied().into_iter().collect();
    let mut from = 0;
    while from + 1 < points.len() {
        let mut to = from + 1;
        while to + 1 < points.len() && fits(&points[from..=to + 1]) {
            to += 1;
        }
        knots.push(points[to]);
        from = to;
    }
    knots
}

fn fits(points: &[(f64, f64)]) -> bool {
    let (Some((x0, y0)), Some((x1, y1))) = (points.first(), points.last()) else { return true };
    points.iter().all(|(x, y)| (y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y).abs() <= TOLERANCE * y)
}
