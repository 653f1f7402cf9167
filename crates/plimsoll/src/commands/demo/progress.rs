//! What is going on, live on stderr: bars on a terminal, a line every few seconds elsewhere.

use super::source::thousands;
use super::tally::{Counts, Tally};
use crate::output;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

const REDRAW: Duration = Duration::from_millis(200);
const LOG_LINE: Duration = Duration::from_secs(5);

pub(super) struct Progress {
    tally: Arc<Tally>,
    bars: Option<Bars>,
}

struct Bars {
    all: MultiProgress,
    requests: ProgressBar,
    figures: ProgressBar,
    engines: BTreeMap<String, ProgressBar>,
}

impl Progress {
    pub(super) fn start(tally: Arc<Tally>) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| Bars::new(&tally.snapshot()));
        Progress { tally, bars }
    }

    /// Keeps the display up to date; never completes.
    pub(super) async fn run(&mut self) -> Infallible {
        let mut ticks = tokio::time::interval(if self.bars.is_some() { REDRAW } else { LOG_LINE });
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let counts = self.tally.snapshot();
            match &mut self.bars {
                Some(bars) => bars.draw(&counts),
                None => output::note(&format!("plimsoll demo: {}", line(&counts))),
            }
        }
    }

    /// Leaves the last state on the screen.
    pub(super) fn finish(&mut self) {
        let counts = self.tally.snapshot();
        match &mut self.bars {
            Some(bars) => {
                bars.draw(&counts);
                bars.requests.abandon();
                bars.figures.abandon();
                bars.engines.values().for_each(ProgressBar::abandon);
            }
            None => output::note(&format!("plimsoll demo: {}", line(&counts))),
        }
    }
}

impl Bars {
    fn new(counts: &Counts) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let requests = all.add(ProgressBar::new(counts.total));
        requests.set_style(style("  requests  {bar:40.cyan/blue} {human_pos}/{human_len}  {msg}"));
        let figures = all.add(ProgressBar::new(1));
        figures.set_style(style("            {msg:.dim}"));
        let mut bars = Bars { all, requests, figures, engines: BTreeMap::new() };
        bars.draw(counts);
        bars
    }

    fn draw(&mut self, counts: &Counts) {
        self.requests.set_position(counts.done());
        self.requests.set_message(format!("{} running, {} errors", counts.running, counts.failed()));
        self.figures.set_message(figures(counts));
        for (id, engine) in &counts.engines {
            let bar = self.engines.entry(id.clone()).or_insert_with(|| {
                let bar = self.all.add(ProgressBar::new(1));
                bar.set_style(style("  {prefix:9} {bar:40.green/black} {msg}"));
                bar.set_prefix(format!("engine {id}"));
                bar
            });
            bar.set_length(counts.done().max(1));
            bar.set_position(engine.requests);
            let hit = percent(engine.hit_rate());
            bar.set_message(format!("{} requests, hit {hit}", thousands(engine.requests)));
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates stand above; a broken one shows as the plain bar.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌░")
}

fn figures(counts: &Counts) -> String {
    let ttft = if counts.completed == 0 {
        "–".to_owned()
    } else {
        format!("{:.0} ms", counts.ttft_us.value_at_quantile(0.5) as f64 / 1e3)
    };
    format!(
        "{:.0} tok/s out   prefix hit {}   TTFT p50 {ttft}   {:.0} s",
        counts.output_tokens_per_s(),
        percent(counts.hit_rate()),
        counts.begun.elapsed().as_secs_f64()
    )
}

fn line(counts: &Counts) -> String {
    let shares: Vec<String> =
        counts.engines.iter().map(|(id, engine)| format!("{id}: {}", thousands(engine.requests))).collect();
    format!(
        "{}/{} requests, {} running, {} errors, {} [engines {}]",
        thousands(counts.done()),
        thousands(counts.total),
        counts.running,
        counts.failed(),
        figures(counts).replace("   ", ", "),
        shares.join(", ")
    )
}

/// A share as `91.3 %`; unknown as a dash.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}
