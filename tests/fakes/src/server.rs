//! Listening, and the face that tests hold.

use crate::behaviour::{Control, Options};
use crate::connection;
use crate::snapshot::Snapshot;
use crate::state::State;
use anyhow::Context as _;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Connections at once; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: u64 = 8_192;

/// A fake engine that serves until it is dropped.
pub struct FakeEngine {
    addr: SocketAddr,
    tls: bool,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl FakeEngine {
    /// Binds and serves on the current tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound or the TLS files cannot be read.
    pub async fn start(options: Options) -> anyhow::Result<FakeEngine> {
        let tls = acceptor(&options)?;
        let listener = TcpListener::bind(options.listen).await.context("bind the fake engine's address")?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State::new(options));
        let has_tls = tls.is_some();
        let task = tokio::spawn(listen(state.clone(), listener, state.refuse_ms.subscribe(), tls));
        Ok(FakeEngine { addr, tls: has_tls, state, task })
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:PORT`, or `https://localhost:PORT` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        if self.tls { format!("https://localhost:{}", self.addr.port()) } else { format!("http://{}", self.addr) }
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.state.snapshot()
    }

    pub fn control(&self, control: Control) {
        self.state.control(control);
    }

    /// Serves until the process ends.
    pub async fn serve(mut self) {
        let _ = (&mut self.task).await;
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(state: Arc<State>, listener: TcpListener, mut refuse: watch::Receiver<u64>, tls: Option<TlsAcceptor>) {
    let Ok(addr) = listener.local_addr() else { return };
    let mut open = state.open_connections.subscribe();
    let mut connections = tokio::task::JoinSet::new();
    let mut listener = Some(listener);
    loop {
        let Some(current) = listener.as_ref() else {
            let away_ms = *refuse.borrow_and_update();
            tokio::time::sleep(Duration::from_millis(away_ms)).await;
            listener = TcpListener::bind(addr).await.ok();
            continue;
        };
        tokio::select! {
            accepted = current.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(state.clone(), stream, tls.clone()));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            _ = refuse.changed() => listener = None,
            Some(_) = connections.join_next() => {}
        }
        let _ = open.wait_for(|count| *count < MAX_CONNECTIONS).await;
    }
}

async fn serve(state: Arc<State>, stream: TcpStream, tls: Option<TlsAcceptor>) {
    struct Open(Arc<State>);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.open_connections.send_modify(|count| *count -= 1);
        }
    }
    state.open_connections.send_modify(|count| *count += 1);
    state.count(|counters| counters.connections += 1);
    let _open = Open(state.clone());
    let _ = stream.set_nodelay(true);
    let _ = match tls {
        None => {
            let (reader, writer) = stream.into_split();
            connection::serve(state, reader, writer).await
        }
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                connection::serve(state, reader, writer).await
            }
            Err(error) => Err(error),
        },
    };
}

fn acceptor(options: &Options) -> anyhow::Result<Option<TlsAcceptor>> {
    let (Some(cert), Some(key)) = (&options.tls_cert, &options.tls_key) else { return Ok(None) };
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
