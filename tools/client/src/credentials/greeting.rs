//! The private data of a connection request: a token, a session block, both, or something of a foreign program.

use zerocopy::byteorder::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::token::{MalformedToken, TOKEN_MAGIC, Unverified};

/// First word of a session block.
pub const SESSION_MAGIC: [u8; 4] = *b"FNS1";

/// As it lies on the wire.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawSession {
    magic: [u8; 4],
    id: [u8; 16],
    connection: U64,
}
const _: () = assert!(size_of::<RawSession>() == 28);
// Beside the hello of the endpoint.
const _: () = assert!(
    super::token::TOKEN_BYTES_MAX + size_of::<RawSession>() + 8
        <= softrdma::config::PRIVATE_DATA_MAX
);

/// A session of the client library, and which connection of it this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionBlock {
    /// Names the session; drawn at random.
    pub id: [u8; 16],
    /// Counts its connections.
    pub connection: u64,
}

impl SessionBlock {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let raw = RawSession {
            magic: SESSION_MAGIC,
            id: self.id,
            connection: self.connection.into(),
        };
        raw.as_bytes().to_vec()
    }
}

/// What a peer says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// Who it claims to be.
    pub token: Option<Unverified<'a>>,
    /// Of which session it is.
    pub session: Option<SessionBlock>,
}

impl<'a> Greeting<'a> {
    /// Reads the private data of a connection request. What begins with neither magic is of a foreign program, and says
    /// nothing; what begins with one has to be well formed to its last byte. This is the fuzz entry.
    pub fn parse(private_data: &'a [u8]) -> Result<Self, MalformedToken> {
        let mut greeting = Self::default();
        let mut rest = private_data;
        if rest.starts_with(&TOKEN_MAGIC) {
            let (token, behind) = Unverified::parse(rest)?;
            greeting.token = Some(token);
            rest = behind;
        } else if !rest.starts_with(&SESSION_MAGIC) {
            return Ok(greeting);
        }
        if rest.is_empty() {
            return Ok(greeting);
        }
        let raw = RawSession::read_from_bytes(rest).map_err(|_| MalformedToken)?;
        if raw.magic != SESSION_MAGIC {
            return Err(MalformedToken);
        }
        greeting.session = Some(SessionBlock {
            id: raw.id,
            connection: raw.connection.get(),
        });
        Ok(greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::{Claims, Key};
    use super::*;

    /// Every combination is told from every other, and each cut of one that is ours is malformed, never foreign.
    #[test]
    fn every_form() {
        let key = Key::derive(&[1; 32]).unwrap();
        let token = key.sign(&Claims {
            tenant: "a".parse().unwrap(),
            epoch: 0,
            expires: 1,
            once: false,
            nonce: [2; 16],
        });
        let block = SessionBlock {
            id: [7; 16],
            connection: 2,
        };
        let session = block.emit();
        assert_eq!(session[..4], *b"FNS1");
        assert_eq!(session[20..], [0, 0, 0, 0, 0, 0, 0, 2]);
        let both = [&token[..], &session].concat();
        let seen = |bytes: &[u8]| {
            let greeting = Greeting::parse(bytes)?;
            Ok((greeting.token.is_some(), greeting.session))
        };
        assert_eq!(seen(b""), Ok((false, None)));
        assert_eq!(seen(b"rping"), Ok((false, None)));
        assert_eq!(seen(&token), Ok((true, None)));
        assert_eq!(seen(&session), Ok((false, Some(block))));
        assert_eq!(seen(&both), Ok((true, Some(block))));
        for cut in (4..both.len()).filter(|&cut| cut != token.len()) {
            assert_eq!(seen(&both[..cut]), Err(MalformedToken), "{cut}");
        }
        assert_eq!(seen(&[&both[..], b"x"].concat()), Err(MalformedToken));
        assert_eq!(seen(&[&token[..], &token].concat()), Err(MalformedToken));
    }
}
