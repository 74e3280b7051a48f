//! TLS to etcd: whom to trust, and who asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Files in PEM form, as `etcdctl` calls them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// CAs to trust; those that the system trusts, if there is none.
    pub cacert: Option<PathBuf>,
    /// The certificate of who asks, and those between it and its CA; and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum EtcdTlsError {
    /// A file has not what it should have.
    #[error("{path} has no {what} in PEM form that can be read: {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// What it should have.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// The two do not belong together, or cannot be used.
    #[error("certificate {certificate} and key {key}: {why}")]
    Pair {
        /// Certificate.
        certificate: PathBuf,
        /// Key.
        key: PathBuf,
        /// Why not.
        why: rustls::Error,
    },
    /// Whom the system trusts is not to be found out.
    #[error("this system trusts no CA that could be found; name one: ?cacert=FILE")]
    NoRoots,
}

impl EtcdTls {
    pub(super) fn config(&self) -> Result<TlsConfig, EtcdTlsError> {
        let provider = Arc::new(ring::default_provider());
        let roots = match &self.cacert {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        if roots.is_empty() {
            return Err(EtcdTlsError::NoRoots);
        }
        let roots: Vec<_> = roots.iter().map(owned).collect();
        let own = self.own.as_ref();
        let own = own.map(|(certificate, key)| pair(&provider, certificate, key));
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .client_cert(own.transpose()?)
            .unversioned_rustls_crypto_provider(provider)
            .build())
    }
}

/// Looked at here, since whoever connects takes it for checked.
fn pair(
    provider: &CryptoProvider,
    certificate: &Path,
    key: &Path,
) -> Result<ClientCert, EtcdTlsError> {
    let chain = certificates(certificate)?;
    let unread = |why| file(key, "private key", why);
    let pem = fs::read(key).map_err(|error| unread(error.to_string()))?;
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unread(error.to_string()))?;
    CertifiedKey::from_der(chain.clone(), der, provider).map_err(|why| EtcdTlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        why,
    })?;
    let chain: Vec<_> = chain.iter().map(owned).collect();
    let key = PrivateKey::from_pem(&pem).map_err(|error| unread(error.to_string()))?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdTlsError> {
    let wrong = |why| file(path, "certificate", why);
    let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(wrong("there is none".into())),
        found => found.map_err(|error| wrong(error.to_string())),
    }
}

fn owned(der: &CertificateDer<'_>) -> Certificate<'static> {
    Certificate::from_der(der).to_owned()
}

fn file(path: &Path, what: &'static str, why: String) -> EtcdTlsError {
    let path = path.to_owned();
    EtcdTlsError::File { path, what, why }
}
