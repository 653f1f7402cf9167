//! Ends a child process when the process that started it has gone, however it went.
//!
//! A demo that is killed with SIGKILL cannot stop what it started. But the kernel closes its end of the pipe that is
//! the child's stdin; a child run with the hidden flag `--exit-with-stdin` takes end of file there as "stop".

use std::io::Read as _;
use tokio::sync::oneshot;

/// Hidden flag of `serve` and `engine`.
pub const FLAG: &str = "--exit-with-stdin";

/// Completes when stdin reaches its end or fails. A thread of its own reads, since a read of stdin cannot be
/// cancelled and would hold up the end of the async runtime.
pub async fn closed() {
    let (sender, receiver) = oneshot::channel::<()>();
    let reader = std::thread::Builder::new().name("stdin-guard".into()).spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut byte = [0u8; 64];
        while matches!(stdin.read(&mut byte), Ok(1..)) {}
        drop(sender);
    });
    if reader.is_err() {
        // Without a thread there is no guard; the child then lives as any other process.
        std::future::pending::<()>().await;
    }
    let _ = receiver.await;
}
