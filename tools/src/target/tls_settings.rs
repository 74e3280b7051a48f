//! Settings of TLS: those of the TOML file and the command line, merged; what their files hold.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;
use flashnet_tls::{ServerFiles, ServerTls};
use serde::Deserialize;

use super::settings::SettingsError;
use crate::cli::tls::TlsServe;
use crate::control::TLS_PORT;

/// The table `tls` of the TOML file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTls {
    listen: Option<SocketAddr>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
}

/// How and where clients connect by TLS.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Where.
    pub listen: SocketAddr,
    /// How.
    pub how: ServerTls,
}

impl TlsSettings {
    /// Merges both and reads the files; none: there is no TLS, because nobody speaks of it.
    pub(super) fn new(options: &TlsServe, file: Option<FileTls>) -> Result<Option<Self>> {
        let is_wanted = file.is_some();
        let file = file.unwrap_or_default();
        let listen = options.tls_listen.or(file.listen);
        let client_ca = options.tls_client_ca.clone().or(file.client_ca);
        let client_crl = options.tls_client_crl.clone().or(file.client_crl);
        if client_crl.is_some() && client_ca.is_none() {
            return Err(SettingsError::Revoked.into());
        }
        // A certificate is not mixed with the key of another.
        let pair = match (&options.tls_cert, &options.tls_key) {
            (None, None) => (file.cert, file.key),
            given => (given.0.clone(), given.1.clone()),
        };
        let (certificate, key) = match pair {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if !is_wanted && listen.is_none() && client_ca.is_none() => {
                return Ok(None);
            }
            _ => return Err(SettingsError::Certificate.into()),
        };
        let how = ServerTls::new(&ServerFiles {
            certificate,
            key,
            client_ca: client_ca.into_iter().collect(),
            client_crl,
        })?;
        let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, TLS_PORT));
        Ok(Some(Self {
            listen: listen.unwrap_or(usual),
            how,
        }))
    }
}
