//! A CA for tests. Other crates' tests include this file by its path; it needs `rcgen`.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A CA, and where its certificate is.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
    path: PathBuf,
}

/// PEM files: a certificate and its key.
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// One whose files are there.
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let common_name = rcgen::DnType::CommonName;
        params.distinguished_name.push(common_name, name);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let path = dir.join(format!("{name}.pem"));
        fs::write(&path, issuer.pem()).unwrap();
        let dir = dir.to_owned();
        Self { issuer, dir, path }
    }

    /// Its own certificate.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A certificate for these names and addresses.
    pub fn issue(&self, file: &str, names: &[&str]) -> Issued {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let issued = Issued {
            certificate: self.dir.join(format!("{file}.crt")),
            key: self.dir.join(format!("{file}.key")),
        };
        fs::write(&issued.certificate, signed.pem()).unwrap();
        fs::write(&issued.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&issued.key, Permissions::from_mode(0o600)).unwrap();
        issued
    }
}
