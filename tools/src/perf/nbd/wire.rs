//! Messages of the Network Block Device protocol, as many as our client needs: fixed newstyle negotiation by `NBD_OPT_GO`, and
//! simple replies. All fields are big-endian.
//!
//! # References
//! `doc/proto.md` of the NBD project, whose names the constants have.

use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `NBDMAGIC`
const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// `IHAVEOPT`
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const FLAG_FIXED_NEWSTYLE: u16 = 1;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const FLAG_READ_ONLY: u16 = 1 << 1;
const FLAG_SEND_FUA: u16 = 1 << 3;
const CMD_FLAG_FUA: u16 = 1;
/// Longest text or information about an option that makes sense.
const OPTION_REPLY_BYTES_MAX: u32 = 64 * 1024;

/// What the server must not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A greeting that is none of a server that negotiates.
    #[error("the server does not negotiate as NBD servers do")]
    Greeting,
    /// Some other answer to an option.
    #[error("the answer to an option does not belong to it")]
    Option,
    /// No export, for this reason (`NBD_REP_ERR_...`).
    #[error("the server refuses the export ({0:#x})")]
    Refused(u32),
    /// An export about which nothing was said.
    #[error("the server does not say how large the export is")]
    Unsaid,
    /// An export of so many bytes.
    #[error("the export has {has} bytes, {needed} are needed")]
    Small {
        /// So many.
        has: u64,
        /// Of so many.
        needed: u64,
    },
    /// Nothing can be written.
    #[error("the export is read-only")]
    ReadOnly,
    /// Nothing can be made durable.
    #[error("the server makes nothing durable (no NBD_FLAG_SEND_FUA)")]
    Volatile,
    /// A reply that is none.
    #[error("a reply begins with {0:#x}")]
    Magic(u32),
    /// A request that failed, with this error.
    #[error("a request failed with error {0}")]
    Failed(u32),
    /// A reply to a request that is not in flight.
    #[error("a reply to a request that is not in flight ({0:#x})")]
    Unknown(u64),
}

/// The server's first words.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawGreeting {
    pub(super) magic: U64,
    pub(super) option_magic: U64,
    pub(super) flags: U16,
}
const _: () = assert!(size_of::<RawGreeting>() == 18);

impl RawGreeting {
    /// The client's flags in answer to it.
    pub(super) fn answer(&self) -> Result<[u8; 4], Fault> {
        let is_fixed = self.flags.get() & FLAG_FIXED_NEWSTYLE != 0;
        if self.magic != GREETING_MAGIC || self.option_magic != OPTION_MAGIC || !is_fixed {
            return Err(Fault::Greeting);
        }
        Ok(u32::from(FLAG_FIXED_NEWSTYLE).to_be_bytes())
    }
}

/// `NBD_OPT_GO` for the export that has no name, without questions.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawGo {
    magic: U64,
    option: U32,
    length: U32,
    name_length: U32,
    questions: U16,
}
const _: () = assert!(size_of::<RawGo>() == 22);

impl RawGo {
    pub(super) fn new() -> Self {
        Self {
            magic: U64::new(OPTION_MAGIC),
            option: U32::new(OPT_GO),
            length: U32::new(6),
            name_length: U32::ZERO,
            questions: U16::ZERO,
        }
    }
}

/// Before each answer to an option.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawOptionReply {
    pub(super) magic: U64,
    pub(super) option: U32,
    pub(super) kind: U32,
    pub(super) length: U32,
}
const _: () = assert!(size_of::<RawOptionReply>() == 20);

/// What an answer to `NBD_OPT_GO` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionReply {
    /// Information of so many bytes follows.
    Info(usize),
    /// Transmission begins.
    Go,
}

impl RawOptionReply {
    pub(super) fn parse(&self) -> Result<OptionReply, Fault> {
        let length = self.length.get();
        let belongs = self.magic == OPTION_REPLY_MAGIC && self.option == OPT_GO;
        if !belongs || length > OPTION_REPLY_BYTES_MAX {
            return Err(Fault::Option);
        }
        match self.kind.get() {
            REP_INFO => Ok(OptionReply::Info(length as usize)),
            REP_ACK if length == 0 => Ok(OptionReply::Go),
            kind if kind >> 31 == 1 => Err(Fault::Refused(kind)),
            _ => Err(Fault::Option),
        }
    }
}

/// `NBD_INFO_EXPORT`
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawExport {
    info: U16,
    size: U64,
    flags: U16,
}
const _: () = assert!(size_of::<RawExport>() == 12);

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
    /// Whether writes can be made durable one by one.
    pub(super) has_fua: bool,
}

impl Export {
    /// None of other information.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawExport::ref_from_bytes(bytes).ok()?;
        let flags = raw.flags.get();
        (raw.info == INFO_EXPORT).then_some(Self {
            bytes: raw.size.get(),
            is_read_only: flags & FLAG_READ_ONLY != 0,
            has_fua: flags & FLAG_SEND_FUA != 0,
        })
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    /// Durable before it is answered, or not.
    Write {
        fua: bool,
    },
    /// Ends the connection, without an answer.
    Disconnect,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawRequest {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U32,
}
const _: () = assert!(size_of::<RawRequest>() == 28);

impl RawRequest {
    pub(super) fn new(command: Command, cookie: u64, offset: u64, length: u32) -> Self {
        let (number, flags) = match command {
            Command::Read => (0, 0),
            Command::Write { fua: false } => (1, 0),
            Command::Write { fua: true } => (1, CMD_FLAG_FUA),
            Command::Disconnect => (2, 0),
        };
        Self {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(flags),
            command: U16::new(number),
            cookie: U64::new(cookie),
            offset: U64::new(offset),
            length: U32::new(length),
        }
    }
}

/// A simple reply; what was read follows it.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawReply {
    magic: U32,
    error: U32,
    cookie: U64,
}
const _: () = assert!(size_of::<RawReply>() == 16);

impl RawReply {
    /// The cookie of the request that succeeded.
    pub(super) fn parse(&self) -> Result<u64, Fault> {
        if self.magic != REPLY_MAGIC {
            return Err(Fault::Magic(self.magic.get()));
        }
        match self.error.get() {
            0 => Ok(self.cookie.get()),
            error => Err(Fault::Failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests are those of the specification, byte for byte.
    #[test]
    fn requests() {
        let go = RawGo::new();
        assert_eq!(
            go.as_bytes(),
            b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0".as_slice()
        );
        let write = RawRequest::new(Command::Write { fua: true }, 0x0102, 0x1000, 0x200);
        assert_eq!(
            write.as_bytes(),
            b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x10\0\0\0\x02\0"
                .as_slice()
        );
        let read = RawRequest::new(Command::Read, 0, 0, 1);
        assert_eq!(read.as_bytes()[4..8], [0, 0, 0, 0]);
        let end = RawRequest::new(Command::Disconnect, 0, 0, 0);
        assert_eq!(end.as_bytes()[4..8], [0, 0, 0, 2]);
    }

    /// What servers say is judged before anything else is made of it.
    #[test]
    fn answers() {
        let greeting = |bytes| RawGreeting::ref_from_bytes(bytes).unwrap().answer();
        assert_eq!(greeting(b"NBDMAGICIHAVEOPT\0\x03"), Ok([0, 0, 0, 1]));
        for wrong in [
            b"NBDMAGIDIHAVEOPT\0\x03",
            b"NBDMAGICIHAVEOPU\0\x03",
            b"NBDMAGICIHAVEOPT\0\x02",
        ] {
            assert_eq!(greeting(wrong), Err(Fault::Greeting));
        }
        let option = |option: u8, kind: [u8; 4], length: [u8; 4]| {
            let mut bytes = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0".to_vec();
            bytes.push(option);
            bytes.extend([kind, length].concat());
            RawOptionReply::ref_from_bytes(&bytes).unwrap().parse()
        };
        assert_eq!(option(7, [0, 0, 0, 1], [0; 4]), Ok(OptionReply::Go));
        let info = option(7, [0, 0, 0, 3], [0, 0, 0, 12]);
        assert_eq!(info, Ok(OptionReply::Info(12)));
        let refused = option(7, [0x80, 0, 0, 6], [0, 0, 0, 9]);
        assert_eq!(refused, Err(Fault::Refused(0x8000_0006)));
        for (number, kind, length) in [
            (6, [0, 0, 0, 1], [0; 4]),
            (7, [0, 0, 0, 2], [0; 4]),
            (7, [0, 0, 0, 1], [0, 0, 0, 1]),
            (7, [0, 0, 0, 3], [0xff; 4]),
        ] {
            assert_eq!(option(number, kind, length), Err(Fault::Option));
        }
        let export = Export::parse(b"\0\0\0\0\0\0\0\0\x10\0\0\x0b").unwrap();
        assert_eq!((export.bytes, export.is_read_only), (4096, true));
        assert!(export.has_fua);
        assert_eq!(Export::parse(b"\0\x03\0\0\0\0\0\0\x10\0\0\x0b"), None);
        assert_eq!(Export::parse(b"\0\0"), None);
        let reply = |bytes| RawReply::ref_from_bytes(bytes).unwrap().parse();
        let good = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x05";
        assert_eq!(reply(good), Ok(5));
    }
}
