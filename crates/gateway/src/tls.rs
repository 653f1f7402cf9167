//! TLS towards clients.

use plimsoll_settings::ServerTls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// An acceptor from PEM files, offering h2 and HTTP/1.1.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub(crate) fn acceptor(tls: &ServerTls) -> Result<TlsAcceptor, String> {
    let in_cert = |e: &dyn std::fmt::Display| format!("`{}` has no usable certificate: {e}", tls.cert_file.display());
    let in_key = |e: &dyn std::fmt::Display| format!("`{}` has no usable private key: {e}", tls.key_file.display());
    let certs: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&tls.cert_file)
        .map_err(|e| in_cert(&e))?
        .collect::<Result<_, _>>()
        .map_err(|e| in_cert(&e))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key_file).map_err(|e| in_key(&e))?;
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|e| {
            let (cert, key) = (tls.cert_file.display(), tls.key_file.display());
            format!("the certificate in `{cert}` cannot be used with the key in `{key}`: {e}")
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
