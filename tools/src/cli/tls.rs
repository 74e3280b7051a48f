//! Options of TLS: of those who serve, and of those who connect.

use std::path::PathBuf;

use clap::Args;

use crate::client::{ClientFiles, ClientTls, TlsFileError};
use crate::control::{PORT, TLS_PORT};

/// How a target lets clients in by TLS.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsServe {
    /// Address for connections by TLS [default: 127.0.0.1:7175 if there is a certificate, else none].
    #[arg(long, value_name = "ADDR")]
    pub tls_listen: Option<std::net::SocketAddr>,
    /// PEM file with the certificate of the target, and those between it and its CA.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// PEM file with CAs: by TLS, only clients with a certificate that one of them has signed are let in.
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
}

/// How a client connects.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsConnect {
    /// Connect by TLS; the port is 7175 then, unless the address names another.
    #[arg(long)]
    pub tls: bool,
    /// PEM file with the CAs to trust [default: those that this system trusts].
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_ca: Option<PathBuf>,
    /// Whose certificate the target must have [default: that of HOST].
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_name: Option<String>,
    /// PEM file with a certificate of this client, where the target wants one.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_cert"])]
    pub tls_key: Option<PathBuf>,
}

impl TlsConnect {
    /// The port of a target that the address does not name.
    pub fn port(&self) -> u16 {
        if self.tls { TLS_PORT } else { PORT }
    }

    /// How to connect to `host`; none: plainly.
    pub fn to(&self, host: &str) -> Result<Option<ClientTls>, TlsFileError> {
        if !self.tls {
            return Ok(None);
        }
        let files = ClientFiles {
            ca: self.tls_ca.clone(),
            name: self.tls_name.clone(),
            own: self.tls_cert.clone().zip(self.tls_key.clone()),
        };
        ClientTls::new(&files)?.for_host(host).map(Some)
    }
}
