//! The floor: accept, connect, `copy_bidirectional`. It reads no byte of what it moves, so no HTTP proxy on the
//! same runtime can cost less; what a gateway costs above this line is its own doing.

use anyhow::Context;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    listen: SocketAddr,
    /// Targets, taken in turn, one per client connection.
    #[arg(long = "to", required = true)]
    to: Vec<SocketAddr>,
}

/// Two threads, as the gateways have on the machine of reference.
pub fn run(args: Args) -> anyhow::Result<()> {
    crate::supervise::die_with_parent()?;
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    for turn in 0.. {
        let (mut client, _) = listener.accept().await?;
        let target = args.to[turn % args.to.len()];
        tokio::spawn(async move {
            client.set_nodelay(true)?;
            let mut server = TcpStream::connect(target).await?;
            server.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
    Ok(())
}
