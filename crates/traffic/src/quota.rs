//! Which share of the pool's capacity a class may use at a water level: a curve and not a step, so that the lower classes
//! give way little by little (`design/traffic.md`, Quota).
//!
//! | level | 0.70 | 0.85 | 0.95 | 1.00 |
//! |---|---|---|---|---|
//! | high | 1 | 1 | 1 | 0.9 |
//! | medium | 1 | 1 | 0.6 | 0.2 |
//! | low | 1 | 0.7 | 0.25 | 0.02 |
//!
//! Straight between the points, flat outside. A share falls with the level, never rises, and a higher class never has less
//! than a lower one: checked when the curves are made.

use plimsoll_core::Class;
use serde::Serialize;

#[cfg(test)]
mod tests;

/// Points of one curve at most.
const MOST_POINTS: usize = 64;

/// Shares by level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve(Vec<(f64, f64)>);

/// Why points are no curve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CurveError {
    #[error("the quota of class {class} needs 1 to {MOST_POINTS} points [level, share]")]
    Points { class: Class },
    #[error("the quota of class {class}: levels and shares are numbers from 0 to 1")]
    Range { class: Class },
    #[error("the quota of class {class}: levels must rise from point to point")]
    Order { class: Class },
    #[error("the quota of class {class}: the share must not rise with the level")]
    Rising { class: Class },
    #[error("the quota of class {lower} is above that of class {higher} at some level")]
    Classes { higher: Class, lower: Class },
}

impl Curve {
    fn new(class: Class, points: Vec<(f64, f64)>) -> Result<Self, CurveError> {
        if points.is_empty() || points.len() > MOST_POINTS {
            return Err(CurveError::Points { class });
        }
        // NaN is in no range.
        if !points.iter().all(|(level, share)| (0.0..=1.0).contains(level) && (0.0..=1.0).contains(share)) {
            return Err(CurveError::Range { class });
        }
        let pairs = || points.iter().zip(&points[1..]);
        if pairs().any(|(one, next)| one.0 >= next.0) {
            return Err(CurveError::Order { class });
        }
        if pairs().any(|(one, next)| one.1 < next.1) {
            return Err(CurveError::Rising { class });
        }
        Ok(Curve(points))
    }

    /// The share at a level; a level beyond the ends has that of the end.
    #[must_use]
    pub fn share(&self, level: f64) -> f64 {
        let points = &self.0;
        let after = points.partition_point(|(at, _)| *at < level);
        match (after.checked_sub(1).map(|before| points[before]), points.get(after)) {
            (Some(before), Some(after)) => between(before, *after, level),
            (None, Some(first)) => first.1,
            (Some(last), None) => last.1,
            (None, None) => 1.0,
        }
    }

    /// The two points between which a level lies; an end twice for one beyond it.
    #[must_use]
    pub(crate) fn around(&self, level: f64) -> [(f64, f64); 2] {
        let last = self.0.len().saturating_sub(1);
        let after = self.0.partition_point(|(at, _)| *at < level);
        let at = |index: usize| self.0.get(index.min(last)).copied().unwrap_or((1.0, 1.0));
        [at(after.saturating_sub(1)), at(after)]
    }
}

/// The share at a level, straight between two points; beyond an end that stands twice, the end's.
pub(crate) fn between(before: (f64, f64), after: (f64, f64), level: f64) -> f64 {
    if before.0 >= after.0 {
        return after.1;
    }
    let part = (level - before.0) / (after.0 - before.0);
    // Between the two, whatever rounding does.
    (before.1 + (after.1 - before.1) * part).clamp(after.1, before.1)
}

/// The curves of the three classes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quotas {
    high: Curve,
    medium: Curve,
    low: Curve,
}

impl Default for Quotas {
    fn default() -> Self {
        let curve = |shares: [f64; 4]| Curve([0.70, 0.85, 0.95, 1.00].into_iter().zip(shares).collect());
        Quotas {
            high: curve([1.0, 1.0, 1.0, 0.9]),
            medium: curve([1.0, 1.0, 0.6, 0.2]),
            low: curve([1.0, 0.7, 0.25, 0.02]),
        }
    }
}

impl Quotas {
    /// Takes points `(level, share)`.
    ///
    /// # Errors
    /// When they are no curves, or a lower class would have more than a higher one.
    pub fn new(high: Vec<(f64, f64)>, medium: Vec<(f64, f64)>, low: Vec<(f64, f64)>) -> Result<Self, CurveError> {
        let quotas = Quotas {
            high: Curve::new(Class::High, high)?,
            medium: Curve::new(Class::Medium, medium)?,
            low: Curve::new(Class::Low, low)?,
        };
        for (higher, lower) in [(Class::High, Class::Medium), (Class::Medium, Class::Low)] {
            let (above, below) = (quotas.curve(higher), quotas.curve(lower));
            // Both are straight between these levels.
            let mut levels = above.0.iter().chain(&below.0).map(|(level, _)| *level);
            if levels.any(|level| below.share(level) > above.share(level) + 1e-9) {
                return Err(CurveError::Classes { higher, lower });
            }
        }
        Ok(quotas)
    }

    #[must_use]
    pub fn curve(&self, class: Class) -> &Curve {
        match class {
            Class::High => &self.high,
            Class::Medium => &self.medium,
            Class::Low => &self.low,
        }
    }

    /// The share of a class. Where no level is known nothing speaks for refusing anybody: everything.
    #[must_use]
    pub fn share(&self, class: Class, level: Option<f64>) -> f64 {
        level.map_or(1.0, |level| self.curve(class).share(level))
    }
}
