//! A trace whose traffic rises and falls: what was recorded at an even rate is replayed as over a day.
//!
//! The curve says how fast the trace runs at each moment of the simulation, in steps; a start in the trace lies where the area under the
//! curve has reached its time. So nothing is left out, and what was simultaneous stays so.

use plimsoll_core::Nanos;
use std::fmt;

/// Rates by the time of the simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Warp {
    /// From this second on, times as fast as recorded.
    steps: Vec<(f64, f64)>,
    /// The curve begins again after so many seconds.
    period_s: Option<f64>,
}

impl fmt::Display for Warp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (at, times)) in self.steps.iter().enumerate() {
            write!(f, "{}{at}:{times}", if nth > 0 { "," } else { "" })?;
        }
        self.period_s.map_or(Ok(()), |period| write!(f, ",{period}:again"))
    }
}

impl Warp {
    /// Reads `SECOND:TIMES,...`, the first at 0; `SECOND:again` at the end begins it anew.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn parse(text: &str) -> Result<Warp, String> {
        let wrong =
            || format!("{text:?}: expected SECOND:TIMES,... from 0 on, rising, perhaps with SECOND:again at the end");
        let (mut steps, mut period_s) = (Vec::new(), None);
        for step in text.split(',') {
            let (at, times) = step.split_once(':').ok_or_else(wrong)?;
            let at: f64 = at.trim().parse().map_err(|_| wrong())?;
            let after = steps.last().is_none_or(|(before, _)| at > *before);
            if period_s.is_some() || !at.is_finite() || !after || (steps.is_empty() && at != 0.0) {
                return Err(wrong());
            }
            if times.trim() == "again" && !steps.is_empty() {
                period_s = Some(at);
                continue;
            }
            let times: f64 = times.trim().parse().map_err(|_| wrong())?;
            if !(times.is_finite() && times >= 0.0) {
                return Err(wrong());
            }
            steps.push((at, times));
        }
        let moves = steps.iter().any(|(_, times)| *times > 0.0);
        let ends = period_s.is_some() || steps.last().is_some_and(|(_, times)| *times > 0.0);
        if moves && ends {
            return Ok(Warp { steps, period_s });
        }
        Err(format!("{text:?}: the trace would stand still for ever; the last rate must be above 0"))
    }

    /// When a start of the trace is simulated.
    #[must_use]
    pub fn at(&self, recorded: Nanos) -> Nanos {
        let mut left_s = recorded.as_secs_f64();
        let mut begun_s = 0.0;
        if let Some(period_s) = self.period_s {
            let whole = self.area(period_s);
            let times = (left_s / whole).floor();
            left_s -= times * whole;
            begun_s = times * period_s;
        }
        for (nth, (at, times)) in self.steps.iter().enumerate() {
            let until = self.steps.get(nth + 1).map_or(f64::INFINITY, |(next, _)| *next);
            let area = if *times > 0.0 { (until - at) * times } else { 0.0 };
            if *times > 0.0 && left_s <= area {
                return Nanos::from_secs_f64(begun_s + at + left_s / times);
            }
            left_s -= area;
        }
        // What a rounding has left over belongs to the end.
        Nanos::from_secs_f64(begun_s + self.period_s.unwrap_or(0.0))
    }

    fn area(&self, until_s: f64) -> f64 {
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([until_s]);
        self.steps.iter().zip(ends).map(|((at, times), end)| (end - at) * times).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, seconds: f64) -> f64 {
        Warp::parse(text).unwrap().at(Nanos::from_secs_f64(seconds)).as_secs_f64()
    }

    #[test]
    fn a_start_lies_where_the_area_has_reached_its_time() {
        assert_eq!(at("0:1", 17.0), 17.0);
        assert_eq!(at("0:0.5,100:2", 25.0), 50.0);
        assert_eq!(at("0:0.5,100:2", 50.0), 100.0);
        assert_eq!(at("0:0.5,100:2", 60.0), 105.0);
        // A silent minute.
        assert_eq!(at("0:1,60:0,120:1", 60.0), 60.0);
        assert_eq!(at("0:1,60:0,120:1", 61.0), 121.0);
        // Ten seconds at 1, ten at 3: forty in twenty.
        assert_eq!(at("0:1,10:3,20:again", 85.0), 45.0);
        assert_eq!(at("0:1,10:3,20:again", 93.0), 51.0);
    }

    #[test]
    fn order_stays() {
        let warp = Warp::parse("0:0.1,7:0,9:4,11.5:1,40:again").unwrap();
        let times: Vec<Nanos> = (0..2_000).map(|tenth| warp.at(Nanos::from_millis(tenth * 100))).collect();
        assert!(times.is_sorted());
    }

    #[test]
    fn what_is_no_curve_is_said() {
        for text in ["", "1", "1:1", "0:x", "0:1,0:2", "0:1,5:-1", "0:1,5:again,6:1", "0:again", "0:nan", "inf:1"] {
            assert!(Warp::parse(text).unwrap_err().contains("expected SECOND:TIMES"), "{text}");
        }
        for text in ["0:0", "0:1,5:0", "0:0,5:again"] {
            assert!(Warp::parse(text).unwrap_err().contains("stand still"), "{text}");
        }
    }
}
