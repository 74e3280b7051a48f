//! Tokens: what a tenant presents at the door, and the key that makes and checks them.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of a token.
pub const TOKEN_MAGIC: [u8; 4] = *b"FNT1";
/// Flag: the target takes the token a single time.
const FLAG_ONCE: u8 = 1;
/// Longest name of a tenant.
pub const TENANT_BYTES_MAX: usize = 32;
/// Longest life of a token that is taken once, in seconds: so long targets remember it.
pub const ONCE_SECONDS_MAX: u64 = 300;
/// Bytes of a MAC.
const MAC_BYTES: usize = 32;
/// Longest token.
pub const TOKEN_BYTES_MAX: usize = size_of::<RawToken>() + TENANT_BYTES_MAX + MAC_BYTES;
/// So much of a file is read for a token: more than one has, and some white space.
const TEXT_BYTES_MAX: u64 = 4096;
/// Shortest secret: fewer bytes can be guessed.
pub const SECRET_BYTES_MIN: usize = 16;
/// Longest secret.
const SECRET_BYTES_MAX: usize = 4096;
/// What the derived key is for.
const KEY_LABEL: &[u8] = b"flashnet token key 1";

/// Fixed part of a token; name and MAC follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawToken {
    magic: [u8; 4],
    flags: u8,
    tenant_bytes: u8,
    reserved: U16,
    epoch: U64,
    expires: U64,
    nonce: [u8; 16],
}
const _: () = assert!(size_of::<RawToken>() == 40);

/// Name of a tenant: 1 to 32 of `a-z`, `0-9`, `.`, `_`, `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName(String);

/// Not a name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no name of a tenant: 1 to 32 of a-z, 0-9, '.', '_' and '-' are")]
pub struct BadTenantName(pub String);

impl TenantName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let legal = |b: &u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        let text = std::str::from_utf8(bytes).ok()?;
        let fits = (1..=TENANT_BYTES_MAX).contains(&bytes.len());
        (fits && bytes.iter().all(legal)).then(|| Self(text.to_owned()))
    }
}

impl std::str::FromStr for TenantName {
    type Err = BadTenantName;

    fn from_str(text: &str) -> Result<Self, BadTenantName> {
        Self::parse(text.as_bytes()).ok_or_else(|| BadTenantName(text.to_owned()))
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Who presents it.
    pub tenant: TenantName,
    /// Epoch of the tenant it is of.
    pub epoch: u64,
    /// Unix time in seconds from which on it is refused.
    pub expires: u64,
    /// The target takes it a single time.
    pub once: bool,
    /// Random.
    pub nonce: [u8; 16],
}

/// A token as it was received: well formed, but said by anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unverified<'a> {
    claims: Claims,
    signed: &'a [u8],
    mac: &'a [u8],
}

/// Not a token, though it begins like one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("malformed token")]
pub struct MalformedToken;

impl<'a> Unverified<'a> {
    /// Reads the token at the front of `bytes`; returns what follows it, too.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), MalformedToken> {
        let (raw, rest) = RawToken::read_from_prefix(bytes).map_err(|_| MalformedToken)?;
        if raw.magic != TOKEN_MAGIC || raw.flags & !FLAG_ONCE != 0 || raw.reserved.get() != 0 {
            return Err(MalformedToken);
        }
        let name = usize::from(raw.tenant_bytes);
        let (name, rest) = rest.split_at_checked(name).ok_or(MalformedToken)?;
        let (mac, rest) = rest.split_at_checked(MAC_BYTES).ok_or(MalformedToken)?;
        let claims = Claims {
            tenant: TenantName::parse(name).ok_or(MalformedToken)?,
            epoch: raw.epoch.get(),
            expires: raw.expires.get(),
            once: raw.flags & FLAG_ONCE != 0,
            nonce: raw.nonce,
        };
        let signed = &bytes[..size_of::<RawToken>() + name.len()];
        Ok((
            Self {
                claims,
                signed,
                mac,
            },
            rest,
        ))
    }

    /// Who it says it is of.
    pub fn tenant(&self) -> &TenantName {
        &self.claims.tenant
    }

    /// What it says, if `key` made it. Takes the same time wherever the MAC differs.
    pub fn verify(self, key: &Key) -> Option<Claims> {
        key.mac(self.signed).verify_slice(self.mac).ok()?;
        Some(self.claims)
    }

    /// What it says, believed by nobody: for people.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }
}

/// Key of a tenant, derived from its secret.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Everybody on this machine can read or change it.
    #[error("{0}, and make another key")]
    Public(Public),
    /// Too short or too long.
    #[error(
        "a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, this one has {0} (`flashnet token key` makes one)"
    )]
    Length(usize),
}

/// What lets its bearer in is in a file that everybody on this machine can read or change.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("every user of this machine can get at it (mode {mode:04o}): chmod o= it")]
pub struct Public {
    /// Permissions of the file.
    pub mode: u32,
}

impl Public {
    /// Whether a file is such a one. A group may read it: service managers hand credentials out that way. Directories and devices
    /// keep no secret, and are not to be closed to others.
    pub(crate) fn find(file: &fs::File) -> io::Result<Option<Self>> {
        let metadata = file.metadata()?;
        let mode = metadata.permissions().mode() & 0o7777;
        let keeps = metadata.is_file() || metadata.file_type().is_fifo();
        Ok((keeps && mode & 0o007 != 0).then_some(Self { mode }))
    }
}

impl Key {
    /// The key that a secret gives.
    pub fn derive(secret: &[u8]) -> Result<Self, KeyError> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            return Err(KeyError::Length(secret.len()));
        }
        let derived = hmac(secret).chain_update(KEY_LABEL).finalize();
        Ok(Self(hmac(&derived.into_bytes())))
    }

    /// The key of a secret in a file; an end of line behind it does not count.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let file = fs::File::open(path)?;
        if let Some(public) = Public::find(&file)? {
            return Err(KeyError::Public(public));
        }
        let mut secret = Vec::new();
        io::Read::read_to_end(
            &mut io::Read::take(file, SECRET_BYTES_MAX as u64 + 2),
            &mut secret,
        )?;
        let end = secret.trim_ascii_end().len();
        Self::derive(&secret[..end])
    }

    fn mac(&self, signed: &[u8]) -> Hmac<Sha256> {
        self.0.clone().chain_update(signed)
    }

    /// Makes a token.
    pub fn sign(&self, claims: &Claims) -> Vec<u8> {
        let name = claims.tenant.as_str().as_bytes();
        let raw = RawToken {
            magic: TOKEN_MAGIC,
            flags: if claims.once { FLAG_ONCE } else { 0 },
            tenant_bytes: name.len() as u8,
            reserved: 0.into(),
            epoch: claims.epoch.into(),
            expires: claims.expires.into(),
            nonce: claims.nonce,
        };
        let signed = [raw.as_bytes(), name].concat();
        let mac = self.mac(&signed).finalize().into_bytes();
        [&signed[..], &mac[..]].concat()
    }
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// A token as text: hexadecimal, in one line.
pub fn to_text(token: &[u8]) -> String {
    use fmt::Write;
    token.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The text of a token in a file, which may have no end.
pub fn read_text(file: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, TEXT_BYTES_MAX), &mut text)?;
    Ok(text)
}

/// The token that a text is; white space around it does not count.
pub fn from_text(text: &str) -> Result<Vec<u8>, MalformedToken> {
    let text = text.trim().as_bytes();
    if !text.len().is_multiple_of(2) || text.len() > 2 * TOKEN_BYTES_MAX {
        return Err(MalformedToken);
    }
    let digit = |d: u8| (d as char).to_digit(16).ok_or(MalformedToken);
    let byte = |pair: &[u8]| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    let bytes: Vec<u8> = text.chunks(2).map(byte).collect::<Result<_, _>>()?;
    match Unverified::parse(&bytes)? {
        (_, []) => Ok(bytes),
        _ => Err(MalformedToken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            tenant: "alpha".parse().unwrap(),
            epoch: 3,
            expires: 0x0102_0304_0506_0708,
            once: true,
            nonce: [9; 16],
        }
    }

    /// The layout that other programs rely on does not move. The MAC is that of another implementation (Python's).
    #[test]
    fn golden_bytes() {
        let key = Key::derive(b"0123456789abcdef").unwrap();
        let token = key.sign(&claims());
        let golden = [
            b"FNT1".as_slice(),
            &[1, 5, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 3],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[9; 16],
            b"alpha",
        ]
        .concat();
        assert_eq!(token[..golden.len()], golden);
        assert_eq!(to_text(&token[golden.len()..]), GOLDEN_MAC);
        assert_eq!(from_text(&(to_text(&token) + "\n")), Ok(token));
    }

    const GOLDEN_MAC: &str = "e93135f165786b9d714502e5cfb8475e76bce33c7f3b355d2f4cfe46a59af214";

    /// A token with any bit changed is refused: as malformed, as foreign, or by its MAC.
    #[test]
    fn every_bit_counts() {
        let key = Key::derive(b"0123456789abcdef").unwrap();
        let token = key.sign(&claims());
        let (whole, rest) = Unverified::parse(&token).unwrap();
        assert!(rest.is_empty());
        assert_eq!(whole.verify(&key), Some(claims()));
        for bit in 0..token.len() * 8 {
            let mut forged = token.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            if let Ok((forged, _)) = Unverified::parse(&forged) {
                assert_eq!(forged.verify(&key), None, "bit {bit}");
            }
        }
        let other = Key::derive(b"0123456789abcdeF").unwrap();
        let (token, _) = Unverified::parse(&token).unwrap();
        assert_eq!(token.verify(&other), None);
    }

    /// A token cut anywhere is malformed.
    #[test]
    fn every_cut_is_malformed() {
        let key = Key::derive(b"0123456789abcdef").unwrap();
        let token = key.sign(&claims());
        for cut in 0..token.len() {
            assert_eq!(Unverified::parse(&token[..cut]), Err(MalformedToken));
        }
    }

    #[test]
    fn secrets_of_reasonable_length() {
        assert!(matches!(Key::derive(&[1; 15]), Err(KeyError::Length(15))));
        assert!(Key::derive(&[1; 4096]).is_ok());
        assert!(matches!(Key::derive(&[1; 4097]), Err(KeyError::Length(_))));
    }
}
