//! Who a client says it is: nobody in particular, the bearer of a token, or a holder of the secret.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::credentials::token::from_text;
use crate::credentials::{Claims, Key, TenantName, unix_now};

/// Life of a token that is made for one connection, in seconds: what clocks may differ by.
const ONCE_SECONDS: u64 = 120;

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
    pub fn of_file(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self::Stranger);
        };
        let name = path.display();
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the token file {name}"))?;
        let token = from_text(&text).with_context(|| format!("token file {name}"))?;
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
