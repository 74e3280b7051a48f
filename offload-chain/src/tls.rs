//! TLS between members, and between clients and members.
//!
//! A member that has TLS takes nothing else at its address, and calls the next one and those that it tells of itself by TLS, too. Who
//! is called shows a certificate for the host of its address, which the callers' CA has signed; who calls shows one if the member asks for
//! it. Either says who may listen and change what is on the way: nobody. Who is of the group is said by its token, as without TLS.

use std::net::SocketAddr;
use std::path::PathBuf;

use flashnet_tls::{ClientTls, GROUP_PROTOCOL, HandshakeError, ServerFiles, ServerTls, try_out};

pub use flashnet_tls::{ClientFiles, TlsError, TlsFileError};

/// How members are called. Copies share what was read from files.
#[derive(Clone, Debug)]
pub struct GroupTls(ClientTls);

impl GroupTls {
    /// Reads the files. They are not looked at again.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn new(files: &ClientFiles) -> Result<Self, TlsFileError> {
        ClientTls::speaking(GROUP_PROTOCOL, files).map(Self)
    }

    /// How to call the member at `HOST:PORT`.
    pub(crate) fn to(&self, address: &str) -> Result<ClientTls, TlsFileError> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.strip_prefix('[').unwrap_or(host);
        let host = host.strip_suffix(']').unwrap_or(host);
        self.0.clone().for_host(host)
    }
}

/// What a member is told of TLS.
#[derive(Clone, Debug)]
pub struct MemberFiles {
    /// PEM file with its certificate, and those between it and its CA.
    pub certificate: PathBuf,
    /// PEM file with its key.
    pub key: PathBuf,
    /// PEM file with the CAs of members' certificates. Nobody else's are trusted.
    pub ca: PathBuf,
    /// PEM file with the CAs of clients' certificates; then only who shows one, of these or of those of members, gets a connection.
    pub client_ca: Option<PathBuf>,
    /// Whose certificate every member has, if not one for the host of its address.
    pub name: Option<String>,
}

/// How a member speaks TLS.
#[derive(Clone, Debug)]
pub struct MemberTls {
    pub(crate) called: ServerTls,
    pub(crate) calls: GroupTls,
}

impl MemberTls {
    /// Reads the files. They are not looked at again.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn new(files: &MemberFiles) -> Result<Self, TlsFileError> {
        let members_and = |clients: &PathBuf| vec![files.ca.clone(), clients.clone()];
        let called = ServerFiles {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            client_ca: files.client_ca.as_ref().map_or(Vec::new(), members_and),
            client_crl: None,
        };
        let calls = ClientFiles {
            ca: Some(files.ca.clone()),
            name: files.name.clone(),
            own: Some((files.certificate.clone(), files.key.clone())),
        };
        Ok(Self {
            called: ServerTls::speaking(GROUP_PROTOCOL, &called)?,
            calls: GroupTls::new(&calls)?,
        })
    }

    /// Whether other members with the same CAs are content with this one, which others reach at `HOST:PORT`, and which is at `address`.
    pub(crate) fn try_out(&self, host: &str, address: SocketAddr) -> Result<(), HandshakeError> {
        // A host that cannot be in a certificate was refused before.
        match self.calls.to(host) {
            Ok(calls) => try_out(&calls, &self.called, address),
            Err(_) => Ok(()),
        }
    }
}
