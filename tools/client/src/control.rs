//! The control protocol: how a client turns a path into (STag, tagged offset, length).
//!
//! One request per SEND, one reply per SEND, on the very connection that the one-sided operations use. All fields are
//! big-endian, as everything else on that wire; the fixed parts are plain structs, so that a C program over verbs can
//! fill them in. `tools/docs/control-protocol.md` describes the exchange; the layouts are written down here, once.

use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Port of a target, in the range that nobody owns.
pub const PORT: u16 = 7174;
/// Port of a target for connections inside of TLS.
pub const TLS_PORT: u16 = 7175;
/// Largest message in either direction, header included: the size of the receives that both sides post.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Receives that both sides keep posted, hence requests that a client may have outstanding.
pub const OUTSTANDING_MAX: usize = 16;
/// First word of a request, ASCII `FNQ1`.
pub const REQUEST_MAGIC: u32 = u32::from_be_bytes(*b"FNQ1");
/// First word of a reply, ASCII `FNR1`.
pub const REPLY_MAGIC: u32 = u32::from_be_bytes(*b"FNR1");

/// Request flag: the region may be written.
pub const FLAG_WRITE: u16 = 1;
/// Request flag: make the file if it is not there.
pub const FLAG_CREATE: u16 = 2;
/// Request flag: drop the old content first; the file then has `length` bytes.
pub const FLAG_TRUNCATE: u16 = 4;
/// Request flag: with `FLAG_CREATE`, or of [`Op::Mkdir`] and [`Op::Rename`], fail if the file is there.
pub const FLAG_EXCLUSIVE: u16 = 8;
/// Request flag: the region may reach beyond the end of the file, and follows that: peers reach as much of it as the file
/// has. Without it a region ends when its file gets too short.
pub const FLAG_GROW: u16 = 16;
/// Request flag: the region outlives the connection and the process of the target.
pub const FLAG_PERSISTENT: u16 = 32;
/// Request flag of [`Op::Close`]: reply when the file is durable, with the times that it gets from being closed.
pub const FLAG_DURABLE: u16 = 64;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Register `length` bytes (0: all) of a file from `offset` and tell its STags.
    Open,
    /// Invalidate the region `handle`.
    Close,
    /// Attributes of a path.
    Stat,
    /// Entries of a directory from cookie `offset` on.
    List,
    /// Make everything written to the file of `handle` durable.
    Sync,
    /// Refuse the persistent region `handle` for ever.
    Revoke,
    /// Go on with the persistent region whose STag `handle` is.
    Attach,
    /// What became of the atomic operations of an earlier connection of this session, number `offset`.
    Atomics,
    /// The number of this life of the target.
    Verifier,
    /// Take the name of anything but a directory away.
    Unlink,
    /// Take an empty directory away.
    Rmdir,
    /// Make a directory.
    Mkdir,
    /// Give what has the first path, of `length` bytes, the second one, which follows it.
    Rename,
}

impl Op {
    const ALL: [Self; 13] = [
        Self::Open,
        Self::Close,
        Self::Stat,
        Self::List,
        Self::Sync,
        Self::Revoke,
        Self::Attach,
        Self::Atomics,
        Self::Verifier,
        Self::Unlink,
        Self::Rmdir,
        Self::Mkdir,
        Self::Rename,
    ];

    /// Number on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Open => 1,
            Self::Close => 2,
            Self::Stat => 3,
            Self::List => 4,
            Self::Sync => 5,
            Self::Revoke => 6,
            Self::Attach => 7,
            Self::Atomics => 8,
            Self::Verifier => 9,
            Self::Unlink => 10,
            Self::Rmdir => 11,
            Self::Mkdir => 12,
            Self::Rename => 13,
        }
    }

    fn parse(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }
}

/// Fixed part of a request; the path follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawRequest {
    magic: U32,
    op: U16,
    flags: U16,
    id: U64,
    offset: U64,
    length: U64,
    handle: U32,
    path_bytes: U16,
    reserved: U16,
}
const _: () = assert!(size_of::<RawRequest>() == 40);

/// Fixed part of a reply; `payload_bytes` follow: list entries, or a message that explains `status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawReply {
    magic: U32,
    op: U16,
    status: U16,
    id: U64,
    handle: U32,
    mode: U32,
    stag: U32,
    stag_sync: U32,
    to: U64,
    length: U64,
    size: U64,
    mtime_ns: U64,
    cookie: U64,
    entries: U16,
    payload_bytes: U16,
    register_ns: U32,
}
const _: () = assert!(size_of::<RawReply>() == 80);

/// Fixed part of a list entry; the name follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawEntry {
    size: U64,
    mtime_ns: U64,
    mode: U32,
    name_bytes: U16,
    reserved: U16,
}
const _: () = assert!(size_of::<RawEntry>() == 24);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub op: Op,
    /// `FLAG_` bits.
    pub flags: u16,
    /// Chosen by the client, comes back in the reply.
    pub id: u64,
    /// First byte of the region, cookie of a list, or number of a connection.
    pub offset: u64,
    /// Bytes of the region, or of the first of two paths.
    pub length: u64,
    /// Region, for [`Op::Close`], [`Op::Sync`] and [`Op::Revoke`]; STag, for [`Op::Attach`].
    pub handle: u32,
    /// Path from the root of the volume.
    pub path: Vec<u8>,
}

impl Request {
    /// A request about `path` with everything else 0.
    pub fn new(op: Op, path: impl Into<Vec<u8>>) -> Self {
        Self {
            op,
            flags: 0,
            id: 0,
            offset: 0,
            length: 0,
            handle: 0,
            path: path.into(),
        }
    }

    /// A request for another name, with everything else 0.
    pub fn rename(from: &str, to: &str) -> Self {
        Self {
            length: from.len() as u64,
            ..Self::new(Op::Rename, [from, to].concat())
        }
    }

    /// The bytes of the message.
    ///
    /// # Panics
    /// If the path is longer than a message can carry; [`Self::PATH_BYTES_MAX`] is the caller's check.
    pub fn emit(&self) -> Vec<u8> {
        assert!(self.path.len() <= Self::PATH_BYTES_MAX);
        let raw = RawRequest {
            magic: REQUEST_MAGIC.into(),
            op: self.op.code().into(),
            flags: self.flags.into(),
            id: self.id.into(),
            offset: self.offset.into(),
            length: self.length.into(),
            handle: self.handle.into(),
            path_bytes: (self.path.len() as u16).into(),
            reserved: 0.into(),
        };
        [raw.as_bytes(), &self.path].concat()
    }

    /// Longest path.
    pub const PATH_BYTES_MAX: usize = MESSAGE_BYTES_MAX - size_of::<RawRequest>();

    /// Reads a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (raw, rest) = RawRequest::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        if raw.magic.get() != REQUEST_MAGIC {
            return Err(Malformed::Magic);
        }
        let op = Op::parse(raw.op.get()).ok_or(Malformed::Op(raw.op.get()))?;
        let path = rest
            .get(..usize::from(raw.path_bytes.get()))
            .ok_or(Malformed::Short)?;
        Ok(Self {
            op,
            flags: raw.flags.get(),
            id: raw.id.get(),
            offset: raw.offset.get(),
            length: raw.length.get(),
            handle: raw.handle.get(),
            path: path.to_vec(),
        })
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Bytes.
    pub size: u64,
    /// Last modification, Unix time in nanoseconds.
    pub mtime_ns: u64,
    /// `st_mode`.
    pub mode: u32,
    /// Name.
    pub name: Vec<u8>,
}

/// A reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// [`Op::code`] of the request (0 if it could not be read).
    pub op: u16,
    /// 0, or the errno of the failure.
    pub status: u16,
    /// Of the request.
    pub id: u64,
    /// Names the region in later requests.
    pub handle: u32,
    /// `st_mode`.
    pub mode: u32,
    /// STag whose WRITEs become durable at a later sync point.
    pub stag: u32,
    /// STag whose WRITEs are durable before anything after them runs.
    pub stag_sync: u32,
    /// Tagged offset of the region's first byte.
    pub to: u64,
    /// Bytes registered.
    pub length: u64,
    /// Bytes in the file.
    pub size: u64,
    /// Last modification, Unix time in nanoseconds.
    pub mtime_ns: u64,
    /// List: where the next one goes on, 0 at the end. Open: number of the file's inode. Atomics: how many were executed.
    /// Verifier: that number.
    pub cookie: u64,
    /// Nanoseconds that registering took in the target, once the path was resolved; for those who measure.
    pub register_ns: u32,
    /// Entries of a list.
    pub entries: Vec<Entry>,
    /// Atomics: what the words were before the last of those that were executed. Verifier: that of the life before, if it has ended in
    /// order.
    pub words: Vec<u64>,
    /// Explains a status that is not 0.
    pub message: String,
}

impl Reply {
    /// Bytes that the entries of one reply may take.
    pub const PAYLOAD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - size_of::<RawReply>();

    /// Bytes that an entry with a name of `name_bytes` takes.
    pub const fn entry_bytes(name_bytes: usize) -> usize {
        size_of::<RawEntry>() + name_bytes
    }

    /// The bytes of the message. A message text that is too long is cut.
    pub fn emit(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for entry in &self.entries {
            let raw = RawEntry {
                size: entry.size.into(),
                mtime_ns: entry.mtime_ns.into(),
                mode: entry.mode.into(),
                name_bytes: (entry.name.len() as u16).into(),
                reserved: 0.into(),
            };
            payload.extend_from_slice(raw.as_bytes());
            payload.extend_from_slice(&entry.name);
        }
        for word in &self.words {
            payload.extend_from_slice(&word.to_be_bytes());
        }
        if payload.is_empty() {
            payload.extend_from_slice(self.message.as_bytes());
        }
        payload.truncate(Self::PAYLOAD_BYTES_MAX);
        let raw = RawReply {
            magic: REPLY_MAGIC.into(),
            op: self.op.into(),
            status: self.status.into(),
            id: self.id.into(),
            handle: self.handle.into(),
            mode: self.mode.into(),
            stag: self.stag.into(),
            stag_sync: self.stag_sync.into(),
            to: self.to.into(),
            length: self.length.into(),
            size: self.size.into(),
            mtime_ns: self.mtime_ns.into(),
            cookie: self.cookie.into(),
            entries: (self.entries.len() as u16).into(),
            payload_bytes: (payload.len() as u16).into(),
            register_ns: self.register_ns.into(),
        };
        [raw.as_bytes(), &payload].concat()
    }

    /// Reads a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (raw, rest) = RawReply::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        if raw.magic.get() != REPLY_MAGIC {
            return Err(Malformed::Magic);
        }
        let mut payload = rest
            .get(..usize::from(raw.payload_bytes.get()))
            .ok_or(Malformed::Short)?;
        let mut entries = Vec::new();
        for _ in 0..raw.entries.get() {
            let (entry, rest) =
                RawEntry::read_from_prefix(payload).map_err(|_| Malformed::Short)?;
            let (name, rest) = rest
                .split_at_checked(usize::from(entry.name_bytes.get()))
                .ok_or(Malformed::Short)?;
            entries.push(Entry {
                size: entry.size.get(),
                mtime_ns: entry.mtime_ns.get(),
                mode: entry.mode.get(),
                name: name.to_vec(),
            });
            payload = rest;
        }
        let mut words = Vec::new();
        let has_words = [Op::Atomics.code(), Op::Verifier.code()].contains(&raw.op.get());
        if has_words && raw.status.get() == 0 {
            let (whole, rest) = payload.as_chunks();
            if !rest.is_empty() {
                return Err(Malformed::Short);
            }
            words.extend(whole.iter().map(|word| u64::from_be_bytes(*word)));
            payload = rest;
        }
        Ok(Self {
            op: raw.op.get(),
            status: raw.status.get(),
            id: raw.id.get(),
            handle: raw.handle.get(),
            mode: raw.mode.get(),
            stag: raw.stag.get(),
            stag_sync: raw.stag_sync.get(),
            to: raw.to.get(),
            length: raw.length.get(),
            size: raw.size.get(),
            mtime_ns: raw.mtime_ns.get(),
            cookie: raw.cookie.get(),
            register_ns: raw.register_ns.get(),
            entries,
            words,
            message: printable(payload),
        })
    }
}

/// Words or a name of a peer, for a terminal: control characters would be obeyed by it.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = |c: char| {
        if c.is_control() {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(shown).collect()
}

/// A message that is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Malformed {
    /// Ends before what it announces.
    #[error("the message is shorter than its fields say")]
    Short,
    /// Does not start like one.
    #[error("the message does not start with the magic number of the control protocol")]
    Magic,
    /// Asks for something unknown.
    #[error("operation {0} is unknown")]
    Op(u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout that other programs rely on does not move.
    #[test]
    fn request_golden_bytes() {
        let request = Request {
            op: Op::Open,
            flags: FLAG_WRITE | FLAG_CREATE,
            id: 7,
            offset: 4096,
            length: 8192,
            handle: 9,
            path: b"/a/b".to_vec(),
        };
        let golden = [
            b"FNQ1".as_slice(),
            &[0, 1, 0, 3],
            &[0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 0, 0x10, 0],
            &[0, 0, 0, 0, 0, 0, 0x20, 0],
            &[0, 0, 0, 9, 0, 4, 0, 0],
            b"/a/b",
        ]
        .concat();
        assert_eq!(request.emit(), golden);
        assert_eq!(Request::parse(&golden), Ok(request));
    }

    /// What a target says for people does not command their terminals; letters of any language stay.
    #[test]
    fn words_of_a_target_are_only_words() {
        let reply = Reply {
            status: 2,
            message: "\x1b]0;owned\x07 gr\u{fc}n\u{9b}31m\r\n".to_owned(),
            ..Reply::default()
        };
        let heard = Reply::parse(&reply.emit()).unwrap().message;
        let shown = "\\u{1b}]0;owned\\u{7} gr\u{fc}n\\u{9b}31m\\r\\n";
        assert_eq!(heard, shown);
    }

    /// A message cut anywhere is refused, never read past its end.
    #[test]
    fn every_cut_is_refused() {
        let reply = Reply {
            op: Op::List.code(),
            register_ns: 77,
            entries: vec![Entry {
                size: 1,
                mtime_ns: 2,
                mode: 0o100_644,
                name: b"x".to_vec(),
            }],
            ..Reply::default()
        };
        let bytes = reply.emit();
        assert_eq!(Reply::parse(&bytes), Ok(reply));
        for cut in 0..bytes.len() {
            assert_eq!(Reply::parse(&bytes[..cut]), Err(Malformed::Short));
        }
        let words = Reply {
            op: Op::Atomics.code(),
            cookie: 70,
            words: vec![1, u64::MAX],
            ..Reply::default()
        };
        let bytes = words.emit();
        assert_eq!(bytes[80..], [[0, 0, 0, 0, 0, 0, 0, 1], [0xff; 8]].concat());
        assert_eq!(Reply::parse(&bytes), Ok(words));
        for cut in 0..bytes.len() {
            assert_eq!(Reply::parse(&bytes[..cut]), Err(Malformed::Short));
        }
        let request = Request::new(Op::Stat, "/path").emit();
        for cut in 0..request.len() {
            assert_eq!(Request::parse(&request[..cut]), Err(Malformed::Short));
        }
    }
}
