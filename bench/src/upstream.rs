//! Fake engine: answers chat requests at once or at a set pace, and costs so little that the router in front of it
//! is what the measurement sees. What it answers is set for the whole process (`POST /_ctl?...`), not read from
//! the request: routers rewrite bodies and drop headers, and searching 300 KB for `"stream":true` is not free.
//!
//! To a router it looks like a small vLLM: `/health`, `/version`, `/v1/models`, `/metrics`; 404 for the rest.

mod answer;
mod connection;
mod pace;

pub use answer::{Knobs, word};

use answer::Answer;
use anyhow::Context;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    listen: SocketAddr,
}

/// What the connections of one process share.
struct Shared {
    answer: RefCell<Rc<Answer>>,
    counts: RefCell<Counts>,
}

/// Requests received since the start; a router that asks the engine more than once per request shows here.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Counts {
    inference: u64,
    other: u64,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let shared =
        Rc::new(Shared { answer: RefCell::new(Rc::new(Answer::new(Knobs::default()))), counts: RefCell::default() });
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let shared = Rc::clone(&shared);
                // A connection that breaks (the client went away) concerns nobody but itself.
                tokio::task::spawn_local(async move {
                    let _gone = connection::serve(stream, &shared).await;
                });
            }
        })
        .await
}
