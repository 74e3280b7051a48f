//! Who a client says it is: nobody in particular, the bearer of a token, or a holder of the secret.

use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

use crate::credentials::token::{MalformedToken, from_text};
use crate::credentials::{Claims, Key, TenantName, unix_now};

/// Life of a token that is made for one connection, in seconds: what clocks may differ by.
const ONCE_SECONDS: u64 = 120;

/// Why there is no token in a file.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read the token file {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// It holds something else.
    #[error("token file {}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: MalformedToken,
    },
}

/// Who a client says it is.
#[derive(Clone, Debug, Default)]
pub enum Identity {
    /// Nobody in particular.
    #[default]
    Stranger,
    /// The bearer of this token.
    Token(Vec<u8>),
    /// A holder of the secret, who makes a token for each connection.
    Key {
        /// Of whom.
        tenant: TenantName,
        /// Its epoch.
        epoch: u64,
        /// Derived from the secret.
        key: Key,
    },
}

impl Identity {
    /// The bearer of the token in a file, if one is named.
    pub fn of_file(path: Option<&Path>) -> Result<Self, TokenFileError> {
        let Some(path) = path else {
            return Ok(Self::Stranger);
        };
        let path_of = || path.to_path_buf();
        let text = fs::read_to_string(path).map_err(|cause| TokenFileError::Read {
            path: path_of(),
            cause,
        })?;
        let token = from_text(&text).map_err(|cause| TokenFileError::Malformed {
            path: path_of(),
            cause,
        })?;
        Ok(Self::Token(token))
    }

    /// The token to present.
    pub fn token(&self) -> Vec<u8> {
        match self {
            Self::Stranger => Vec::new(),
            Self::Token(token) => token.clone(),
            Self::Key { tenant, epoch, key } => key.sign(&Claims {
                tenant: tenant.clone(),
                epoch: *epoch,
                expires: unix_now().saturating_add(ONCE_SECONDS),
                once: true,
                nonce: rand::random(),
            }),
        }
    }
}
