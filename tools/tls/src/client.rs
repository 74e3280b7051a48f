//! The end that connects.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection};

use crate::error::{HandshakeError, TlsError};
use crate::files::{self, TlsFileError};
use crate::handshake::{Handshake, uninterrupted};
use crate::records::Records;
use crate::{PROTOCOL, provider};

/// What a client is told of TLS.
#[derive(Clone, Debug, Default)]
pub struct ClientFiles {
    /// PEM file with the CAs to trust; without it those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Whose certificate the other end must have, if not that of the host that the address names.
    pub name: Option<String>,
    /// PEM files with a certificate of the client, and those between it and its CA, and with its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// How a client connects by TLS. Copies share what was read from files.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
    protocol: &'static [u8],
}

impl ClientTls {
    /// Reads the files. They are not looked at again.
    pub fn new(files: &ClientFiles) -> Result<Self, TlsFileError> {
        Self::speaking(PROTOCOL, files)
    }

    /// As [`new`](Self::new), for another protocol inside of TLS.
    pub fn speaking(protocol: &'static [u8], files: &ClientFiles) -> Result<Self, TlsFileError> {
        let roots = match &files.ca {
            Some(path) => files::authorities(std::slice::from_ref(path))?,
            None => files::system_authorities()?,
        };
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider knows TLS 1.3")
            .with_root_certificates(roots);
        let mut config = match &files.own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = files::certificates(certificate)?;
                config
                    .with_client_auth_cert(chain, files::key(key)?)
                    .map_err(|cause| TlsFileError::Unusable {
                        certificate: certificate.clone(),
                        key: key.clone(),
                        cause,
                    })?
            }
        };
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![protocol.to_vec()];
        let mut tls = Self {
            config: Arc::new(config),
            name: None,
            protocol,
        };
        if let Some(name) = &files.name {
            tls.name = Some(server_name(name)?);
        }
        Ok(tls)
    }

    /// Expects the certificate of `host`, unless a name has been given already.
    pub fn for_host(mut self, host: &str) -> Result<Self, TlsFileError> {
        if self.name.is_none() {
            self.name = Some(server_name(host)?);
        }
        Ok(self)
    }

    /// The handshake on a connected, blocking socket, in `patience` at most.
    pub fn connect(
        &self,
        stream: &TcpStream,
        address: SocketAddr,
        patience: Duration,
    ) -> Result<Records, HandshakeError> {
        let mut tls = self.connection(address)?;
        let until = Instant::now() + patience;
        let shaken = shake(&mut tls, stream, until);
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        shaken?;
        Ok(Records::new(tls.into(), self.protocol)?)
    }

    /// The handshake on a socket that does not block, and is or will be connected.
    pub fn begin(&self, address: SocketAddr) -> Result<Handshake, TlsError> {
        let tls = self.connection(address)?;
        Ok(Handshake::new(tls.into(), self.protocol))
    }

    fn connection(&self, address: SocketAddr) -> Result<ClientConnection, TlsError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::from(address.ip()),
        };
        Ok(ClientConnection::new(Arc::clone(&self.config), name)?)
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsFileError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsFileError::Name(name.to_owned()))
}

/// Talks until both ends have said what there is to say.
fn shake(
    tls: &mut ClientConnection,
    mut stream: &TcpStream,
    until: Instant,
) -> Result<(), HandshakeError> {
    // A peer that says one byte at a time has no more time than others.
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    while tls.is_handshaking() || tls.wants_write() {
        if tls.wants_write() {
            stream.set_write_timeout(left()?)?;
            uninterrupted(|| tls.write_tls(&mut stream)).map_err(overdue)?;
            continue;
        }
        stream.set_read_timeout(left()?)?;
        if uninterrupted(|| tls.read_tls(&mut stream)).map_err(overdue)? == 0 {
            return Err(TlsError::Ended.into());
        }
        if let Err(error) = tls.process_new_packets() {
            // The peer may want to know why.
            let _ = tls.write_tls(&mut stream);
            return Err(TlsError::from(error).into());
        }
    }
    Ok(())
}

/// A socket whose time is over says that it would block.
fn overdue(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
