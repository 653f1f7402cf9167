//! Maps of instances over time, in colours.

use super::chart::{BOTTOM, HEIGHT, LEFT, TOP, WIDTH, number};
use super::escape;
use crate::report::Report;
use std::fmt::Write as _;

/// From few to many: told apart by lightness alone, and by people who see colours differently (matplotlib's viridis, every eighth).
const SCALE: [[f64; 3]; 9] = [
    [68.0, 1.0, 84.0],
    [71.0, 44.0, 122.0],
    [59.0, 81.0, 139.0],
    [44.0, 113.0, 142.0],
    [33.0, 144.0, 141.0],
    [39.0, 173.0, 129.0],
    [92.0, 200.0, 99.0],
    [170.0, 220.0, 50.0],
    [253.0, 231.0, 37.0],
];
/// Colours on a map; neighbours of one colour are one rectangle.
const STEPS: f64 = 32.0;

/// What the colours of all maps of a page mean: the least and the most, on a scale of powers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    least: f64,
    most: f64,
}

impl Range {
    /// `None` where nothing was seen.
    pub(super) fn of(reports: &[Report]) -> Option<Range> {
        let all = || reports.iter().flat_map(|one| one.bucket_map.median_context_tokens.iter().flatten().flatten());
        let least = all().copied().fold(f64::INFINITY, f64::min).max(1.0);
        all().next()?;
        Some(Range { least, most: all().copied().fold(0.0, f64::max).max(least * 1.01) })
    }

    /// From 0 to [`STEPS`].
    fn step(self, value: f64) -> u32 {
        let share = (value.max(self.least) / self.least).ln() / (self.most / self.least).ln();
        (share.clamp(0.0, 1.0) * STEPS).round() as u32
    }

    fn value(self, share: f64) -> f64 {
        self.least * (self.most / self.least).powf(share)
    }
}

fn colour(step: u32) -> String {
    let at = f64::from(step) / STEPS * (SCALE.len() - 1) as f64;
    let below = (at as usize).min(SCALE.len() - 2);
    let share = at - below as f64;
    let part = |of: usize| (SCALE[below][of] * (1.0 - share) + SCALE[below + 1][of] * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", part(0), part(1), part(2))
}

/// The map of one run.
pub(super) fn map(html: &mut String, title: &str, report: &Report, range: Range) {
    let map = &report.bucket_map;
    let rows = &map.median_context_tokens;
    let windows = rows.iter().map(Vec::len).max().unwrap_or(0);
    if windows == 0 {
        return;
    }
    let together = match map.instances_a_row {
        1 => String::new(),
        many => format!(", {many} instances a row"),
    };
    let _ = write!(
        html,
        "<figure><figcaption>{0}{together}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\" \
         shape-rendering=\"crispEdges\">",
        escape(title)
    );
    let (wide, high) = ((WIDTH - LEFT - 4.0) / windows as f64, (HEIGHT - BOTTOM - TOP) / rows.len() as f64);
    for (row, cells) in rows.iter().enumerate() {
        let y = TOP + row as f64 * high;
        let steps: Vec<Option<u32>> = cells.iter().map(|cell| cell.map(|value| range.step(value))).collect();
        let mut from = 0;
        for same in steps.chunk_by(|one, next| one == next) {
            if let Some(step) = same[0] {
                let (x, across) = (LEFT + from as f64 * wide, same.len() as f64 * wide);
                let fill = colour(step);
                let _ = write!(
                    html,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{across:.1}\" height=\"{high:.1}\" fill=\"{fill}\"/>"
                );
            }
            from += same.len();
        }
    }
    let last = rows.len().saturating_sub(1);
    for row in [0, last] {
        let (y, instance) = (TOP + (row as f64 + 0.5) * high + 4.0, row as u32 * map.instances_a_row);
        let _ = write!(html, "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{instance}</text>", LEFT - 4.0);
        if last == 0 {
            break;
        }
    }
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let (x, y) = (LEFT + share * (WIDTH - LEFT - 4.0), HEIGHT - 6.0);
        let minutes = number(share * windows as f64 * map.window_s / 60.0);
        let _ = write!(html, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{minutes}</text>");
    }
    html.push_str("</svg><span class=\"dim\">minutes</span></figure>");
}

/// What the colours mean, in tokens.
pub(super) fn legend(html: &mut String, range: Range) {
    html.push_str("<p class=\"dim\">tokens: ");
    for step in 0..=8 {
        let share = f64::from(step) / 8.0;
        let (fill, value) = (colour((share * STEPS) as u32), number(range.value(share).round()));
        let _ = write!(html, "<span class=\"key\" style=\"background:{fill}\"></span>{value} &nbsp; ");
    }
    html.push_str("</p>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: Vec<Vec<Option<f64>>>) -> Report {
        let mut report = Report::empty();
        (report.bucket_map.window_s, report.bucket_map.instances_a_row) = (30.0, 1);
        report.bucket_map.median_context_tokens = rows;
        report
    }

    #[test]
    fn bands_have_colours_of_their_own_and_equal_neighbours_are_one() {
        let bands = report(vec![
            vec![Some(1_000.0), Some(1_000.0), None, Some(1_010.0)],
            vec![Some(64_000.0), Some(64_000.0), Some(64_000.0), Some(8_000.0)],
        ]);
        let range = Range::of(&[bands.clone(), report(Vec::new())]).unwrap();
        assert_eq!((range.least, range.most), (1_000.0, 64_000.0));
        let mut html = String::new();
        map(&mut html, "a <b>", &bands, range);
        // Dark for few, light for many, half-way for the middle of the powers.
        let (few, many, between) = (colour(0), colour(32), colour(16));
        assert_eq!((few.as_str(), many.as_str(), between.as_str()), ("#440154", "#fde725", "#21908d"));
        let count = |fill: &str| html.matches(&format!("fill=\"{fill}\"")).count();
        assert_eq!((html.matches("<rect").count(), count(&few), count(&many), count(&between)), (4, 2, 1, 1), "{html}");
        assert!(html.contains("a &lt;b&gt;") && !html.contains("<b>"), "{html}");
        // Half a minute, four times.
        assert!(html.contains(">2</text>"), "{html}");
        let mut html = String::new();
        legend(&mut html, range);
        assert!(html.contains("1000 ") && html.contains("8000 ") && html.contains("64k "), "{html}");
    }

    #[test]
    fn a_run_that_nobody_looked_at_has_no_map() {
        assert_eq!(Range::of(&[report(vec![vec![None], Vec::new()])]), None);
        let mut html = String::new();
        map(&mut html, "a", &report(Vec::new()), Range { least: 1.0, most: 2.0 });
        assert!(html.is_empty());
        let one = report(vec![vec![Some(500.0)]]);
        map(&mut html, "a", &one, Range::of(std::slice::from_ref(&one)).unwrap());
        assert_eq!(html.matches("<rect").count(), 1);
        assert!(!html.contains("NaN"));
    }
}
