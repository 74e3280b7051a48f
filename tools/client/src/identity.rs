//! Who a client says it is: nobody in particular, the bearer of a token, or a holder of the secret.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use thiserror::Error;

use crate::credentials::token::{MalformedToken, Public, from_text, read_text};
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
    /// Everybody could say who its bearer is.
    #[error("token file {}", path.display())]
    Public {
        /// Which.
        path: PathBuf,
        /// Who can read it.
        #[source]
        cause: Public,
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
#[derive(Clone, Default)]
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

/// Without what would let others say the same.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => f.write_str("Stranger"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::Key { tenant, epoch, .. } => write!(f, "Key({tenant}, epoch {epoch})"),
        }
    }
}

impl Identity {
    /// The bearer of the token in a file, if one is named.
    pub fn of_file(path: Option<&Path>) -> Result<Self, TokenFileError> {
        let Some(path) = path else {
            return Ok(Self::Stranger);
        };
        let path_of = || path.to_path_buf();
        let read = || {
            let file = File::open(path)?;
            Ok(match Public::find(&file)? {
                None => Ok(read_text(file)?),
                Some(public) => Err(public),
            })
        };
        let text = read().map_err(|cause| TokenFileError::Read {
            path: path_of(),
            cause,
        })?;
        let text = text.map_err(|cause| TokenFileError::Public {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Who prints how he connects, in a log say, gives away neither token nor secret.
    #[test]
    fn what_is_printed_lets_nobody_in() {
        let secret = [0xa5; 32];
        let key = Key::derive(&secret).unwrap();
        let holder = Identity::Key {
            tenant: "alpha".parse().unwrap(),
            epoch: 1,
            key,
        };
        let bearer = Identity::Token(holder.token());
        for identity in [holder, bearer] {
            let printed = format!("{:?}", crate::Client::builder().identity(identity));
            assert!(!printed.contains("165, 165"), "{printed}");
            // The magic of a token.
            assert!(!printed.contains("70, 78, 84, 49"), "{printed}");
        }
    }
}
