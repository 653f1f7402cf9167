//! The screen: the tables, and whether the gateway is there.

use super::sample::Sample;
use super::view::{Table, tables, widths};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Row, Table as Grid};
use std::time::Instant;

pub(super) struct Screen {
    url: String,
    before: Option<Sample>,
    now: Option<Sample>,
    /// Since when the gateway does not answer, and how it says so.
    lost: Option<(Instant, String)>,
}

impl Screen {
    pub(super) fn new(url: &str) -> Self {
        Screen { url: url.to_owned(), before: None, now: None, lost: None }
    }

    pub(super) fn seen(&mut self, sample: Sample) {
        // What was before an absence says nothing about the rates of now.
        let back = self.lost.take().is_some();
        self.before = self.now.replace(sample).filter(|_| !back);
    }

    pub(super) fn lost(&mut self, why: String, at: Instant) {
        let since = self.lost.as_ref().map_or(at, |(since, _)| *since);
        self.lost = Some((since, why));
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>, at: Instant) {
        let shown = self.now.as_ref().map_or_else(Vec::new, |now| tables(self.before.as_ref(), now));
        let lines = usize::from(frame.area().height.saturating_sub(1));
        let rows = share(&shown.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), lines);
        let shown: Vec<Table> = shown.into_iter().zip(rows).map(|(table, rows)| cut(table, rows)).collect();
        // Title line, then each table with its frame and head.
        let heights = shown.iter().map(|table| Constraint::Length(table.rows.len() as u16 + HEAD as u16));
        let areas = Layout::vertical([Constraint::Length(1)].into_iter().chain(heights)).split(frame.area());
        frame.render_widget(self.title(at), areas[0]);
        for (table, area) in shown.iter().zip(areas.iter().skip(1)) {
            grid(frame, table, *area);
        }
    }

    fn title(&self, at: Instant) -> Line<'_> {
        let mut spans =
            vec![Span::styled("plimsoll top ", Style::new().add_modifier(Modifier::BOLD)), Span::raw(&*self.url)];
        match &self.lost {
            Some((since, why)) => {
                let seconds = at.saturating_duration_since(*since).as_secs();
                let text = format!("  away for {seconds} s: {why}");
                spans.push(Span::styled(text, Style::new().fg(Color::Red)));
            }
            None if self.now.is_none() => spans.push(Span::raw("  asking")),
            None => spans.push(Span::styled("  q ends", Style::new().fg(Color::DarkGray))),
        }
        Line::from(spans)
    }
}

/// Lines of a table beside its rows: its title and its head.
const HEAD: usize = 2;

/// How many rows of each table are shown where there are so many lines: one more of each in turn, so that a long table takes no other's last ones.
fn share(rows: &[usize], lines: usize) -> Vec<usize> {
    let mut shown = vec![0; rows.len()];
    let mut left = lines.saturating_sub(rows.len() * HEAD);
    while left > 0 {
        let mut gave = false;
        for (shown, rows) in shown.iter_mut().zip(rows) {
            if *shown < *rows && left > 0 {
                (*shown, left, gave) = (*shown + 1, left - 1, true);
            }
        }
        if !gave {
            break;
        }
    }
    shown
}

/// The first rows of a table; the last of them says how many there are besides.
fn cut(mut table: Table, rows: usize) -> Table {
    let all = table.rows.len();
    if rows < all {
        table.rows.truncate(rows.saturating_sub(1));
        if rows > 0 {
            table.rows.push(vec![format!("+ {} more", all - table.rows.len())]);
        }
    }
    table
}

fn grid(frame: &mut Frame<'_>, table: &Table, area: Rect) {
    let columns = widths(table).into_iter().map(|width| Constraint::Length(width as u16));
    let rows = table.rows.iter().map(|row| Row::new(row.iter().map(String::as_str)).style(style(row)));
    let head = Row::new(table.head.iter().copied()).style(Style::new().fg(Color::Cyan));
    let frame_of = Block::new().borders(Borders::TOP).title(table.title);
    frame.render_widget(Grid::new(rows, columns).header(head).column_spacing(2).block(frame_of), area);
}

/// An engine that is out is red.
fn style(row: &[String]) -> Style {
    let out = row.iter().any(|cell| matches!(cell.as_str(), "ejected" | "half_open"));
    if out { Style::new().fg(Color::Red) } else { Style::new() }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::looked_at;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn drawn(screen: &Screen, at: Instant) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 40)).unwrap();
        terminal.draw(|frame| screen.draw(frame, at)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn a_gateway_that_goes_away_is_said_to_be_away_and_comes_back() {
        let start = Instant::now();
        let mut screen = Screen::new("http://g:9090");
        assert!(drawn(&screen, start).contains("asking"));
        screen.seen(looked_at(0, start));
        screen.seen(looked_at(2, start));
        let text = drawn(&screen, start);
        for part in ["q ends", "engines", "12.3k", "water levels", "87.5%", "quota_class", "20.0"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        screen.lost("refused".into(), start + Duration::from_secs(3));
        screen.lost("refused".into(), start + Duration::from_secs(8));
        let text = drawn(&screen, start + Duration::from_secs(10));
        assert!(text.contains("away for 7 s: refused") && text.contains("12.3k"), "{text}");
        screen.seen(looked_at(20, start));
        let text = drawn(&screen, start);
        assert!(text.contains("q ends") && !text.contains("20.0"), "no rate over an absence:\n{text}");
    }

    /// Seen on 24 lines: the class that is refused first was not on the screen, nor the code that most were refused with.
    #[test]
    fn what_does_not_fit_is_counted_and_no_table_takes_anothers_lines() {
        assert_eq!(share(&[2, 3, 1], 30), [2, 3, 1]);
        assert_eq!(share(&[100, 3, 1, 1, 10], 23), [4, 3, 1, 1, 4]);
        assert_eq!(share(&[100, 3, 1, 1, 10], 4), [0; 5]);
        let row = |n: usize| vec![n.to_string()];
        let table = || Table { title: "engines", head: &["id"], rows: (0..100).map(row).collect() };
        assert_eq!(cut(table(), 4).rows.concat(), ["0", "1", "2", "+ 97 more"]);
        assert_eq!(cut(table(), 100).rows.len(), 100);
        assert_eq!(cut(table(), 0).rows.len(), 0);
    }

    #[test]
    fn a_small_terminal_is_no_reason_to_panic() {
        let start = Instant::now();
        let mut screen = Screen::new("http://g:9090");
        screen.seen(looked_at(0, start));
        for (width, height) in [(1, 1), (3, 2), (200, 5), (10, 60)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| screen.draw(frame, start)).unwrap();
        }
    }
}
