//! A request of the kernel.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::wire::InHeader;
use crate::inode::InodeNo;

/// A request: its header, and what of its body has not been taken yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) header: InHeader,
    /// What comes before the body, where the transport has that in a place of its own.
    head: Option<&'a [u8]>,
    body: &'a [u8],
}

/// A request that is not what its operation should have. The kernel does not send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> Message<'a> {
    /// The request in `bytes`.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed)?;
        match header.len as usize == bytes.len() {
            true => Ok(Self {
                header,
                head: None,
                body,
            }),
            false => Err(Malformed),
        }
    }

    /// A request that came in parts: fixed parts of its operation in `head`, all others in `body`.
    pub(super) fn from_parts(header: InHeader, head: &'a [u8], body: &'a [u8]) -> Self {
        Self {
            header,
            head: Some(head),
            body,
        }
    }

    /// The inode it is about.
    pub(super) fn ino(&self) -> InodeNo {
        InodeNo(self.header.nodeid)
    }

    /// The next fixed part.
    pub(super) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let from = self.head.as_mut().unwrap_or(&mut self.body);
        let (value, rest) = T::read_from_prefix(from).map_err(|_| Malformed)?;
        *from = rest;
        Ok(value)
    }

    /// The next fixed part, zero where it is cut short, which it is by kernels of an older protocol.
    pub(super) fn take_prefix<T: FromBytes + IntoBytes + Default>(&mut self) -> T {
        let mut value = T::default();
        let bytes = value.as_mut_bytes();
        let from = self.head.as_mut().unwrap_or(&mut self.body);
        let len = bytes.len().min(from.len());
        let (head, rest) = from.split_at(len);
        bytes[..len].copy_from_slice(head);
        *from = rest;
        value
    }

    /// A name that ends with a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a OsStr, Malformed> {
        let end = self.body.iter().position(|&byte| byte == 0);
        let (name, rest) = self.body.split_at(end.ok_or(Malformed)?);
        self.body = &rest[1..];
        Ok(OsStr::from_bytes(name))
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.body.split_at_checked(len as usize).ok_or(Malformed)?;
        self.body = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::MkdirIn;
    use super::*;

    fn request(body: &[u8]) -> Vec<u8> {
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            nodeid: 7,
            ..InHeader::default()
        };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn parts_in_their_order() {
        let bytes = request(b"\x01\0\0\0\x02\0\0\0name\0\0rest");
        let mut message = Message::parse(&bytes).unwrap();
        assert_eq!(message.ino(), InodeNo(7));
        let mkdir: MkdirIn = message.take().unwrap();
        assert_eq!((mkdir.mode, mkdir.umask), (1, 2));
        assert_eq!(message.name().unwrap(), "name");
        assert_eq!(message.name().unwrap(), "");
        assert_eq!(message.bytes(5), Err(Malformed));
        assert_eq!(message.bytes(4).unwrap(), b"rest");
        assert!(message.name().is_err() && message.take::<MkdirIn>().is_err());
    }

    /// A request in parts reads as one in a row.
    #[test]
    fn parts_in_two_places() {
        let head = [1, 0, 0, 0, 2, 0, 0, 0, 99];
        let mut message = Message::from_parts(InHeader::default(), &head, b"name\0rest");
        let mkdir: MkdirIn = message.take().unwrap();
        assert_eq!((mkdir.mode, mkdir.umask), (1, 2));
        assert_eq!(message.name().unwrap(), "name");
        assert_eq!(message.bytes(4).unwrap(), b"rest");
        assert!(message.take::<MkdirIn>().is_err() && message.bytes(1).is_err());
    }

    /// However a request is cut, it is refused or answered, without a panic.
    #[test]
    fn cut_short() {
        let whole = request(b"\x01\0\0\0\x02\0\0\0name\0");
        for len in 0..whole.len() {
            assert!(Message::parse(&whole[..len]).is_err());
        }
        let bytes = request(b"\x01\0\0\0\x02\0");
        let mut message = Message::parse(&bytes).unwrap();
        assert!(message.take::<MkdirIn>().is_err());
        let old: MkdirIn = message.take_prefix();
        assert_eq!((old.mode, old.umask), (1, 2));
    }
}
