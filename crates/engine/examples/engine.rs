//! Runs the engine for driving it by hand: `cargo run -p plimsoll-engine --example engine -- 127.0.0.1:30000`

use plimsoll_engine::{EngineConfig, serve};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    eprintln!("plimsoll engine: listening on http://{}", listener.local_addr()?);
    let config = EngineConfig { faults: true, ..EngineConfig::default() };
    serve(config, listener, async {
        // Without a signal handler the engine runs until it is killed.
        let _ = tokio::signal::ctrl_c().await;
    })
    .await?;
    Ok(())
}
