//! `plimsoll top`: what a running gateway does, as a screen that renews itself.
//!
//! Made from `/metrics` and `/admin/engines` alone, so it shows nothing that a dashboard could not, and works from any machine that
//! reaches the operators' address. A gateway that goes away is said to be away, with the last figures below; when it is back, the screen
//! goes on. `--once` prints the same tables as text, for scripts.

mod sample;
mod screen;
mod source;
mod view;

use crate::commands::demo::signals::Signals;
use crate::{Failure, output, runtime};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use sample::Sample;
use screen::Screen;
use source::Source;
use std::time::{Duration, Instant};

/// How often keys are looked at, and the screen is drawn.
const TICK: Duration = Duration::from_millis(100);
/// `--once` looks twice, so that rates are rates of now.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1_000);

#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Operators' address of the gateway to look at
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub admin: String,
    /// Bearer token of its admin API; the environment keeps it out of the process list
    #[arg(long, visible_alias = "token", value_name = "TOKEN", env = "PLIMSOLL_ADMIN__TOKEN", hide_env_values = true)]
    pub admin_token: Option<String>,
    /// Print the tables once, as text, and end
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub interval_s: u64,
}

/// Shows the screen until a key ends it, or prints it once.
///
/// # Errors
/// With `--once`, a gateway that does not answer; else a terminal that cannot be used.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let source = Source::new(&args.admin, args.admin_token.clone())?;
    let runtime = runtime::multi_thread()?;
    if args.once {
        return runtime.block_on(once(&source));
    }
    let mut terminal = ratatui::try_init().map_err(|error| {
        Failure::failed(format!("this is no terminal that can be drawn on: {error}")).hint("use `--once`")
    })?;
    let shown = runtime.block_on(async {
        // A signal that ended the process by itself would leave the terminal as it is drawn on.
        let mut signals = Signals::listen()?;
        tokio::select! {
            shown = watch(&source, Duration::from_secs(args.interval_s), &mut terminal) => shown,
            () = signals.recv() => Err(Failure::interrupted()),
        }
    });
    ratatui::restore();
    shown
}

async fn once(source: &Source) -> Result<(), Failure> {
    let before = source.look().await?;
    tokio::time::sleep(BETWEEN_LOOKS).await;
    let now = source.look().await?;
    output::data(&output::tame(&view::text(&view::tables(Some(&before), &now))))
}

async fn watch(source: &Source, interval: Duration, terminal: &mut ratatui::DefaultTerminal) -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure::failed(format!("the terminal failed: {error}"));
    let mut screen = Screen::new(source.url());
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            due = Instant::now() + interval;
            match source.look().await {
                Ok(sample) => screen.seen(sample),
                Err(failure) => screen.lost(failure.message, Instant::now()),
            }
        }
        terminal.draw(|frame| screen.draw(frame, Instant::now())).map_err(broken)?;
        while event::poll(Duration::ZERO).map_err(broken)? {
            if is_end(&event::read().map_err(broken)?) {
                return Ok(());
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

/// `q`, Escape and Ctrl-C.
fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
