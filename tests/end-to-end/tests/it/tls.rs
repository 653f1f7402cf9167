//! TLS towards clients and towards engines.

use crate::{CHAT, body, text};
use plimsoll_end_to_end::{Connection, Gateway, PATIENCE, Plan, eventually};
use plimsoll_fakes::{Dialect, FakeEngine, Options};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

pub(crate) fn certificate(folder: &tempfile::TempDir, name: &str) -> Certificate {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join(format!("{name}.pem")), folder.path().join(format!("{name}.key")));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Certificate { cert, key }
}

async fn secure_engine(certificate: &Certificate, dialect: Dialect) -> FakeEngine {
    let (cert, key) = (certificate.cert.clone(), certificate.key.clone());
    FakeEngine::start(Options { tls_cert: Some(cert), tls_key: Some(key), ..Options::new(dialect) }).await.unwrap()
}

async fn open(gateway: &Gateway, trusted: &Certificate) -> std::io::Result<Connection> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&trusted.cert).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = tokio::net::TcpStream::connect(gateway.addr).await?;
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
    Ok(Connection::over(stream))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_speak_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (certificate(&folder, "gateway"), certificate(&folder, "engine"));
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let engine = secure_engine(&theirs, dialect).await;
        let file = folder.path().join("plimsoll.toml");
        let ca = theirs.cert.display();
        std::fs::write(&file, format!("[[engines]]\nurl = \"{}\"\nca_file = \"{ca}\"\n", engine.url())).unwrap();
        let gateway = Plan::default().config(&file, 1).tls(&ours.cert, &ours.key).start().await;
        let mut connection = open(&gateway, &ours).await.unwrap();
        for stream in [true, false] {
            connection.post(CHAT, &[], &body(CHAT, stream, 4).to_string()).await;
            let answer = connection.answer().await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert!(answer.text().contains("t3"), "{}", answer.text());
        }
        let stranger = certificate(&folder, "stranger");
        assert!(open(&gateway, &stranger).await.is_err(), "a client that trusts somebody else is not fooled");
        let plain = Connection::open(gateway.addr).await;
        let mut plain = plain;
        plain.post(CHAT, &[], &body(CHAT, false, 2).to_string()).await;
        assert!(plain.try_answer().await.is_none_or(|answer| answer.status() >= 400), "no plain HTTP on a TLS port");
        drop((connection, plain));
        gateway.finish().await;
    }
    assert_eq!(text(1), " t0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_nobody_vouches_for_gets_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let (theirs, wrong) = (certificate(&folder, "engine"), certificate(&folder, "wrong"));
    let engine = secure_engine(&theirs, Dialect::Vllm).await;
    let file = folder.path().join("plimsoll.toml");
    let ca = wrong.cert.display();
    let url = engine.url();
    std::fs::write(&file, format!("[[engines]]\nurl = \"{url}\"\nca_file = \"{ca}\"\nmodels = [\"tiny\"]\n")).unwrap();
    let gateway = Plan::default().config(&file, 1).wait_for(0).start().await;
    let answer = gateway.post(CHAT, &body(CHAT, false, 2)).await;
    assert!(matches!(answer.status(), 404 | 502 | 503), "{} {}", answer.status(), answer.text());
    eventually("the reason to be told", PATIENCE, || async {
        let engines = gateway.engines().await;
        let said = engines[0]["last_error"].to_string().to_lowercase();
        if said.contains("certificate") || said.contains("tls") { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!(engine.snapshot().generations, 0);
    gateway.finish().await;
}
