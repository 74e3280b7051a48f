//! Options of TLS: of those who serve, and of those who connect.

use std::path::PathBuf;

use clap::Args;
use offload_chain::tls::{GroupTls, MemberFiles, MemberTls};

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
    /// PEM file with lists of revoked certificates (CRL), one of each of these CAs and of those between them and clients.
    #[arg(long, value_name = "FILE")]
    pub tls_client_crl: Option<PathBuf>,
}

/// How a member of a replication group lets others in by TLS, and calls them.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsMember {
    /// PEM file with the certificate of the member, and those between it and its CA: with it the member speaks TLS, and nothing else. It
    /// has to be for the host that others reach the member at, and good for a server and a client.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// PEM file with the CAs that have signed the certificates of members.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// PEM file with CAs: only who has a certificate that one of them, or of --tls-ca, has signed is let in.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Whose certificate every other member must have [default: that of the host it is reached at].
    #[arg(long, value_name = "NAME", requires = "tls_cert")]
    pub tls_name: Option<String>,
}

/// Whom a client trusts by TLS, and how it shows who it is.
#[derive(Clone, Debug, Default, Args)]
struct TlsFiles {
    /// PEM file with the CAs to trust [default: those that this system trusts].
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// Whose certificate the other end must have [default: that of the host in its address].
    #[arg(long, value_name = "NAME", requires = "tls")]
    tls_name: Option<String>,
    /// PEM file with a certificate of this client, where the other end wants one.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_cert"])]
    tls_key: Option<PathBuf>,
}

impl TlsFiles {
    fn named(&self) -> ClientFiles {
        ClientFiles {
            ca: self.tls_ca.clone(),
            name: self.tls_name.clone(),
            own: self.tls_cert.clone().zip(self.tls_key.clone()),
        }
    }
}

/// How a client of a replication group calls its members.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsGroup {
    /// Speak TLS with the members, as they do.
    #[arg(long)]
    pub tls: bool,
    #[command(flatten)]
    files: TlsFiles,
}

impl TlsMember {
    /// How the member speaks TLS; none: it does not.
    pub fn read(&self) -> Result<Option<MemberTls>, TlsFileError> {
        let (Some(certificate), Some(key), Some(ca)) =
            (&self.tls_cert, &self.tls_key, &self.tls_ca)
        else {
            return Ok(None);
        };
        MemberTls::new(&MemberFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            ca: ca.clone(),
            client_ca: self.tls_client_ca.clone(),
            name: self.tls_name.clone(),
        })
        .map(Some)
    }
}

impl TlsGroup {
    /// How to call members; none: plainly.
    pub fn read(&self) -> Result<Option<GroupTls>, TlsFileError> {
        let group = self.tls.then(|| GroupTls::new(&self.files.named()));
        group.transpose()
    }
}

/// How a client connects.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsConnect {
    /// Connect by TLS; the port is 7175 then, unless the address names another.
    #[arg(long)]
    pub tls: bool,
    #[command(flatten)]
    files: TlsFiles,
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
        ClientTls::new(&self.files.named())?
            .for_host(host)
            .map(Some)
    }
}
