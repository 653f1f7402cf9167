//! Curves and bars as SVG.

use super::escape;
use std::fmt::Write as _;

pub(super) const WIDTH: f64 = 520.0;
pub(super) const HEIGHT: f64 = 190.0;
pub(super) const LEFT: f64 = 52.0;
pub(super) const BOTTOM: f64 = 24.0;
pub(super) const TOP: f64 = 8.0;

/// One curve: minutes and values.
pub(super) struct Line {
    pub colour: &'static str,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

pub(super) struct Chart<'a> {
    title: &'a str,
    pub lines: Vec<Line>,
}

impl<'a> Chart<'a> {
    pub(super) fn new(title: &'a str) -> Self {
        Chart { title, lines: Vec::new() }
    }

    pub(super) fn write(&self, html: &mut String) {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let most_x = all().map(|(x, _)| *x).fold(0.0, f64::max).max(1e-9);
        let most_y = round_up(all().map(|(_, y)| *y).fold(0.0, f64::max));
        begin(html, self.title, most_y);
        for step in 0..=4 {
            let share = f64::from(step) / 4.0;
            let x = LEFT + share * (WIDTH - LEFT - 4.0);
            let minutes = number(most_x * share);
            let _ =
                write!(html, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{minutes}</text>", HEIGHT - 6.0);
        }
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let dash = if line.dashed { " stroke-dasharray=\"4 3\"" } else { "" };
            let _ =
                write!(html, "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{dash} points=\"", line.colour);
            for (x, y) in &line.points {
                let x = LEFT + x / most_x * (WIDTH - LEFT - 4.0);
                let _ = write!(html, "{x:.1},{:.1} ", height(y / most_y));
            }
            html.push_str("\"/>");
        }
        html.push_str("</svg><span class=\"dim\">minutes</span></figure>");
    }
}

/// One bar for each value.
pub(super) fn bars(html: &mut String, title: &str, colour: &str, values: &[f64]) {
    let most = round_up(values.iter().copied().fold(0.0, f64::max));
    begin(html, title, most);
    let width = (WIDTH - LEFT - 4.0) / values.len().max(1) as f64;
    for (nth, value) in values.iter().enumerate() {
        let (x, y) = (LEFT + nth as f64 * width, height(value / most));
        let (wide, high) = ((width * 0.8).max(0.5), HEIGHT - BOTTOM - y);
        let _ = write!(
            html,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" fill=\"{colour}\"/>"
        );
    }
    html.push_str("</svg></figure>");
}

/// Bars of shares in per cent, from 0 to 100, with a name below and the value on top of each.
pub(super) fn named_bars(html: &mut String, title: &str, colour: &str, values: &[(&str, f64)]) {
    begin(html, title, 100.0);
    let width = (WIDTH - LEFT - 4.0) / values.len().max(1) as f64;
    for (nth, (name, value)) in values.iter().enumerate() {
        let (x, y) = (LEFT + (nth as f64 + 0.15) * width, height(value / 100.0));
        let (wide, high, middle) = (width * 0.7, HEIGHT - BOTTOM - y, LEFT + (nth as f64 + 0.5) * width);
        let _ = write!(
            html,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" fill=\"{colour}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.1}</text>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (y - 3.0).max(TOP + 8.0),
            HEIGHT - 6.0,
            escape(name)
        );
    }
    html.push_str("</svg></figure>");
}

/// Caption, and lines at quarters of the height.
fn begin(html: &mut String, title: &str, most: f64) {
    let _ = write!(
        html,
        "<figure><figcaption>{0}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">",
        escape(title)
    );
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let y = height(share);
        let _ = write!(
            html,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            LEFT - 4.0,
            y + 4.0,
            number(most * share)
        );
    }
}

fn height(share: f64) -> f64 {
    HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
}

/// The next of 1, 2, 2.5, 5, 8 times a power of ten; 1 for nothing.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let mut power = 1.0;
    while power * 10.0 <= value {
        power *= 10.0;
    }
    while power > value {
        power /= 10.0;
    }
    let nice = [1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0].into_iter().find(|step| step * power >= value);
    nice.unwrap_or(10.0) * power
}

/// Short, for an axis.
pub(super) fn number(value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value {
        v if v >= 1e9 => format!("{}G", short(v / 1e9)),
        v if v >= 1e6 => format!("{}M", short(v / 1e6)),
        v if v >= 1e4 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}
