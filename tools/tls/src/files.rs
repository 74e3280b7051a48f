//! Certificates and keys in PEM files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use thiserror::Error;

/// Longest file, in bytes: all CAs of a system together take less than a megabyte. What is read may have no end.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why certificates or keys cannot be used.
#[derive(Debug, Error)]
pub enum TlsFileError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// There is none in it, or it is damaged.
    #[error("{} holds no {what} in PEM form{more}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// What is wrong, if something is there.
        more: String,
    },
    /// Everybody could say he is this end.
    #[error("everybody can get at the key in {} (mode {mode:04o}): chmod o= it", path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The two do not belong together, or cannot be used.
    #[error("certificate {} and key {}: {cause}", certificate.display(), key.display())]
    Unusable {
        /// Certificate.
        certificate: PathBuf,
        /// Key.
        key: PathBuf,
        /// Why not.
        cause: rustls::Error,
    },
    /// The CA cannot be one.
    #[error("{} holds no CA that can be used: {cause}", path.display())]
    UnusableCa {
        /// Which file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The list cannot be one.
    #[error("{} holds a list of revoked certificates that cannot be used: {cause}", path.display())]
    UnusableCrl {
        /// Which file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// Whom this system trusts is not to be found out.
    #[error("this system trusts no CA that could be found{0}: name one (--tls-ca)")]
    NoRoots(String),
    /// What should be a name is none.
    #[error("{0:?} is no name of a host, and no address")]
    Name(String),
}

fn malformed(path: &Path, what: &'static str, cause: pem::Error) -> TlsFileError {
    let path = path.to_path_buf();
    match cause {
        pem::Error::Io(cause) => TlsFileError::Read { path, cause },
        pem::Error::NoItemsFound => TlsFileError::Malformed {
            path,
            what,
            more: String::new(),
        },
        other => TlsFileError::Malformed {
            path,
            what,
            more: format!(": {other}"),
        },
    }
}

/// What is in a file.
fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content))
        .and_then(|bytes| match bytes as u64 > FILE_BYTES_MAX {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(content),
        })
        .map_err(|cause| TlsFileError::Read {
            path: path.to_path_buf(),
            cause,
        })
}

/// The certificates in a file, the one of this end first; at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let wrong = |cause| malformed(path, "certificate", cause);
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    match found.is_empty() {
        true => Err(wrong(pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

/// The lists of revoked certificates in a file; at least one.
pub(crate) fn revocations(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsFileError> {
    let wrong = |cause| malformed(path, "list of revoked certificates", cause);
    let found: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    match found.is_empty() {
        true => Err(wrong(pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

/// The key in a file that not everybody can read.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    let meta = fs::metadata(path).map_err(|cause| TlsFileError::Read {
        path: path.to_path_buf(),
        cause,
    })?;
    let mode = meta.permissions().mode() & 0o7777;
    if mode & 0o007 != 0 {
        let path = path.to_path_buf();
        return Err(TlsFileError::Exposed { path, mode });
    }
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|cause| malformed(path, "private key", cause))
}

/// The CAs in some files, one at least in each.
pub(crate) fn authorities(paths: &[PathBuf]) -> Result<Arc<RootCertStore>, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for path in paths {
        for certificate in certificates(path)? {
            let unusable = |cause: rustls::Error| TlsFileError::UnusableCa {
                path: path.clone(),
                cause: cause.to_string(),
            };
            roots.add(certificate).map_err(unusable)?;
        }
    }
    Ok(Arc::new(roots))
}

/// The CAs that this system trusts.
pub(crate) fn system_authorities() -> Result<Arc<RootCertStore>, TlsFileError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Old ones that nobody uses any more may be of a form that is not understood.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(Arc::new(roots));
    }
    let why = found.errors.first();
    let why = why.map(|error| format!(" ({error})")).unwrap_or_default();
    Err(TlsFileError::NoRoots(why))
}
