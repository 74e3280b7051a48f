//! Why the target lets a peer not in, as the peer hears it: six bytes of private data in the reply.

use thiserror::Error;

/// First word of a refusal.
const MAGIC: [u8; 4] = *b"FNE1";

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum Denial {
    /// Nothing in the private data says who it is, and strangers are not let in.
    #[error("the target wants a token (--token-file)")]
    NoToken,
    /// It begins like a token or a session block, and is none.
    #[error("the token is malformed")]
    Malformed,
    /// Unknown tenant, or a MAC of another key.
    #[error("the target does not accept the token")]
    Refused,
    /// Of another epoch of the tenant.
    #[error("the token has been revoked: the epoch of its tenant has changed")]
    Epoch,
    /// Its time is over.
    #[error("the token has expired, by the clock of the target")]
    Expired,
    /// It is good for a single connection, and has been used.
    #[error("the token is good for one connection and has been used")]
    Used,
    /// It is good for a single connection, and lives longer than the target remembers that.
    #[error(
        "a token for one connection may not live longer than {} s, by the clock of the target",
        super::token::ONCE_SECONDS_MAX
    )]
    TooLong,
    /// A later connection of the same session has come first.
    #[error("a later connection of the same session is there already")]
    Superseded,
    /// The target cannot remember more tokens at the moment.
    #[error("the target has no room for more connections at the moment")]
    Busy,
    /// This port is for TLS.
    #[error("the target wants TLS on this port (--tls)")]
    NeedsTls,
    /// The tenant has as many connections as it may.
    #[error("this tenant has its share of the target's connections: close some")]
    Crowded,
}

impl Denial {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::NoToken,
        Self::Malformed,
        Self::Refused,
        Self::Epoch,
        Self::Expired,
        Self::Used,
        Self::TooLong,
        Self::Superseded,
        Self::Busy,
        Self::NeedsTls,
        Self::Crowded,
    ];

    /// Number on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::NoToken => 1,
            Self::Malformed => 2,
            Self::Refused => 3,
            Self::Epoch => 4,
            Self::Expired => 5,
            Self::Used => 6,
            Self::TooLong => 7,
            Self::Superseded => 8,
            Self::Busy => 9,
            Self::NeedsTls => 10,
            Self::Crowded => 11,
        }
    }

    /// Whether asking again later may help.
    pub const fn passes(self) -> bool {
        matches!(self, Self::Busy | Self::Crowded)
    }

    /// The private data of the reply.
    pub fn emit(self) -> [u8; 6] {
        let [a, b] = self.code().to_be_bytes();
        let [m, n, o, p] = MAGIC;
        [m, n, o, p, a, b]
    }

    /// Reads the private data of a reply.
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let code = private_data.strip_prefix(&MAGIC)?;
        let code = u16::from_be_bytes(code.try_into().ok()?);
        Self::ALL.into_iter().find(|denial| denial.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_code_of_its_own() {
        for denial in Denial::ALL {
            assert_eq!(Denial::parse(&denial.emit()), Some(denial));
        }
        assert_eq!(Denial::NoToken.emit(), *b"FNE1\x00\x01");
        assert_eq!(Denial::parse(b"FNE1\x00\x01x"), None);
        assert_eq!(Denial::parse(b"FNE1\x00\x63"), None);
    }
}
