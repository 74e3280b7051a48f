//! The end that is connected to.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ServerConfig, ServerConnection};

use crate::error::TlsError;
use crate::files::{self, TlsFileError};
use crate::handshake::Handshake;
use crate::{PROTOCOL, provider};

/// What a server is told of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// PEM file with its certificate, and those between it and its CA.
    pub certificate: PathBuf,
    /// PEM file with its key.
    pub key: PathBuf,
    /// PEM files with CAs; if there is any, only clients with a certificate that one of them has signed get a connection.
    pub client_ca: Vec<PathBuf>,
    /// PEM file with lists of revoked certificates, one of each CA that has signed one of a client or one on the way to it.
    pub client_crl: Option<PathBuf>,
}

/// How connections are let in by TLS. Copies share what was read from files.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    wants_certificates: bool,
    protocol: &'static [u8],
}

impl ServerTls {
    /// Reads the files. They are not looked at again.
    pub fn new(files: &ServerFiles) -> Result<Self, TlsFileError> {
        Self::speaking(PROTOCOL, files)
    }

    /// As [`new`](Self::new), for another protocol inside of TLS.
    pub fn speaking(protocol: &'static [u8], files: &ServerFiles) -> Result<Self, TlsFileError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider knows TLS 1.3");
        let config = match files.client_ca.last() {
            None => config.with_no_client_auth(),
            Some(path) => {
                let roots = files::authorities(&files.client_ca)?;
                let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                if let Some(lists) = &files.client_crl {
                    verifier = verifier.with_crls(files::revocations(lists)?);
                }
                let verifier = verifier.build().map_err(|cause| match &files.client_crl {
                    Some(lists) if matches!(cause, VerifierBuilderError::InvalidCrl(_)) => {
                        TlsFileError::UnusableCrl {
                            path: lists.clone(),
                            cause: cause.to_string(),
                        }
                    }
                    _ => TlsFileError::UnusableCa {
                        path: path.clone(),
                        cause: cause.to_string(),
                    },
                })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let chain = files::certificates(&files.certificate)?;
        let mut config = config
            .with_single_cert(chain, files::key(&files.key)?)
            .map_err(|cause| TlsFileError::Unusable {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
                cause,
            })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self {
            config: Arc::new(config),
            wants_certificates: !files.client_ca.is_empty(),
            protocol,
        })
    }

    /// Whether only clients with a certificate get a connection.
    pub fn wants_certificates(&self) -> bool {
        self.wants_certificates
    }

    /// The handshake with a client that has just connected.
    pub fn accept(&self) -> Result<Handshake, TlsError> {
        let tls = ServerConnection::new(Arc::clone(&self.config))?;
        Ok(Handshake::new(tls.into(), self.protocol))
    }
}
