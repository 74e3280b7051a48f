//! What can go wrong with a peer, in words of this program.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};
use thiserror::Error as ThisError;

/// Why there is no TLS connection with a peer, or no longer.
#[derive(Clone, Debug, ThisError, PartialEq)]
pub enum TlsError {
    /// What it sends is no TLS.
    #[error("the peer does not speak TLS")]
    NotTls,
    /// The stream ended before there was a connection.
    #[error("the peer ended the connection before TLS was set up")]
    Ended,
    /// No CA that is trusted has signed the certificate.
    #[error("the certificate of the peer is not signed by a CA that is trusted here")]
    UnknownIssuer,
    /// The certificate is somebody else's.
    #[error("the certificate of the peer is not for {wanted} but for {presented}")]
    WrongName {
        /// Whom this end wanted.
        wanted: String,
        /// Whose it is.
        presented: String,
    },
    /// The certificate was good once.
    #[error("the certificate of the peer has expired")]
    Expired,
    /// The certificate will be good.
    #[error("the certificate of the peer is not valid yet (are the clocks right?)")]
    NotYetValid,
    /// Its CA has taken it back.
    #[error("the certificate of the peer has been revoked")]
    Revoked,
    /// Nobody knows whether its CA has taken it back.
    #[error(
        "there is no list of revoked certificates of a CA that has signed the certificate of the peer, or one on the way to it"
    )]
    NotListed,
    /// This end has presented none.
    #[error("the peer wants a certificate of this end")]
    CertificateWanted,
    /// The peer does not accept the certificate of this end; its word for why.
    #[error("the peer does not accept the certificate of this end: {0}")]
    CertificateRefused(String),
    /// It speaks TLS, and something else inside.
    #[error("the peer speaks TLS, but something else inside of it")]
    OtherProtocol,
    /// Only versions before 1.3.
    #[error("the peer speaks TLS, but not TLS 1.3")]
    OldVersion,
    /// The stream ended without a word of the peer: somebody else may have cut it.
    #[error("the connection was cut: its end was not announced")]
    Truncated,
    /// Anything else.
    #[error("TLS: {0}")]
    Other(Error),
}

impl TlsError {
    /// What the user of a client can do about it.
    pub fn way_out(&self) -> &'static str {
        match self {
            Self::NotTls => {
                "is it the TLS port of the target? without --tls it is spoken to plainly"
            }
            Self::Ended => "is it the TLS port of the target? its log may say more",
            Self::UnknownIssuer => "--tls-ca names a file with the CA to trust",
            Self::WrongName { .. } => "--tls-name says whose it is to be",
            Self::Expired | Self::NotYetValid | Self::Revoked => {
                "the target needs another (--tls-cert of serve)"
            }
            Self::CertificateWanted | Self::CertificateRefused(_) => {
                "--tls-cert and --tls-key name one that the CA of the target's clients has signed"
            }
            Self::OtherProtocol | Self::OldVersion => "is it the TLS port of a target?",
            Self::Truncated | Self::NotListed | Self::Other(_) => {
                "the log of the target may say more"
            }
        }
    }

    /// Whether it may be otherwise at the next attempt: somebody was cut off, or a bit was changed on the way.
    pub fn passes(&self) -> bool {
        match self {
            Self::Ended | Self::Truncated => true,
            Self::Other(error) => !matches!(
                error,
                Error::PeerIncompatible(_) | Error::InvalidCertificate(_) | Error::General(_)
            ),
            _ => false,
        }
    }
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidMessage(_) => Self::NotTls,
            Error::InvalidCertificate(why) => of_certificate(why),
            Error::NoCertificatesPresented => Self::CertificateWanted,
            Error::NoApplicationProtocol => Self::OtherProtocol,
            Error::PeerIncompatible(
                PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::SupportedVersionsExtensionRequired,
            ) => Self::OldVersion,
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired => Self::CertificateWanted,
                AlertDescription::NoApplicationProtocol => Self::OtherProtocol,
                AlertDescription::ProtocolVersion => Self::OldVersion,
                // Some alerts stand for more than one reason, and do not tell which.
                AlertDescription::UnknownCA => {
                    refused("its CA is unknown there, or has no list of revoked certificates there")
                }
                AlertDescription::CertificateExpired => {
                    refused("it has expired, or is not valid yet (are the clocks right?)")
                }
                AlertDescription::CertificateRevoked => refused("it has been revoked"),
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::AccessDenied => refused(&format!("{alert:?}")),
                _ => Self::Other(error),
            },
            other => Self::Other(other),
        }
    }
}

fn refused(why: &str) -> TlsError {
    TlsError::CertificateRefused(why.to_owned())
}

fn of_certificate(why: CertificateError) -> TlsError {
    match why {
        CertificateError::UnknownIssuer => TlsError::UnknownIssuer,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsError::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsError::NotYetValid
        }
        CertificateError::Revoked => TlsError::Revoked,
        CertificateError::UnknownRevocationStatus => TlsError::NotListed,
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => TlsError::WrongName {
            wanted: expected.to_str().into_owned(),
            presented: match presented.is_empty() {
                true => "nobody".to_owned(),
                false => presented.join(", "),
            },
        },
        other => TlsError::Other(Error::InvalidCertificate(other)),
    }
}

/// Why a handshake came to nothing.
#[derive(Debug, ThisError)]
pub enum HandshakeError {
    /// The peer, or what it said.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
}
