//! MPA Request and Reply frames (RFC 5044 §7.1) with the enhanced block (RFC 6581 §4).

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::event::SetupError;

/// Private data, enhanced block included (RFC 5044 §7.1).
pub const PRIVATE_DATA_LIMIT: usize = 512;
/// "Not negotiated" as IRD or ORD (RFC 6581 §4).
pub const NOT_NEGOTIATED: u16 = 0x3fff;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
const TOP_BIT: u16 = 0x8000;
const SECOND_BIT: u16 = 0x4000;

/// Fixed part of a Request or Reply.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawStart {
    key: [u8; 16],
    flags: u8,
    revision: u8,
    pd_length: U16,
}
const _: () = assert!(size_of::<RawStart>() == 20);

/// The four bytes in front of the private data when S=1.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawEnhanced {
    ird: U16,
    ord: U16,
}
const _: () = assert!(size_of::<RawEnhanced>() == 4);

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

/// Enhanced set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enhanced {
    /// READs the sender holds; [`NOT_NEGOTIATED`] possible.
    pub ird: u16,
    /// READs the sender will have outstanding; [`NOT_NEGOTIATED`] possible.
    pub ord: u16,
    /// Peer-to-peer model with its ready-to-receive frames, if asked for.
    pub peer_to_peer: Option<RtrKinds>,
}

/// Kinds of ready-to-receive frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RtrKinds {
    /// Zero-length Send.
    pub send: bool,
    /// Zero-length Write.
    pub write: bool,
    /// Zero-length Read.
    pub read: bool,
}

/// A valid Request or Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartFrame<'a> {
    /// Which.
    pub kind: StartKind,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs.
    pub crc: bool,
    /// Reply: the connection is refused.
    pub rejected: bool,
    /// 1 or 2.
    pub revision: u8,
    /// Enhanced block; only with revision 2.
    pub enhanced: Option<Enhanced>,
    /// What follows the enhanced block.
    pub private_data: &'a [u8],
}

/// Result of looking at the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStart<'a> {
    /// At least this many bytes are needed.
    Need(usize),
    /// A frame and its length.
    Frame(StartFrame<'a>, usize),
}

impl<'a> StartFrame<'a> {
    /// Reads the frame at the start of `bytes`.
    ///
    /// # Errors
    /// If these bytes can not become a valid frame of this kind.
    pub fn parse(expected: StartKind, bytes: &'a [u8]) -> Result<NextStart<'a>, SetupError> {
        let Ok((raw, rest)) = RawStart::ref_from_prefix(bytes) else {
            // A stranger who has said something else and waits for an answer shall not wait until the set-up times out.
            let said = &bytes[..bytes.len().min(KEY_REQUEST.len())];
            if !KEY_REQUEST.starts_with(said) && !KEY_REPLY.starts_with(said) {
                return Err(SetupError::BadKey);
            }
            // Each byte of the key is looked at when it comes, however the stream is cut.
            return Ok(NextStart::Need(match bytes.len() {
                len if len < KEY_REQUEST.len() => len + 1,
                _ => size_of::<RawStart>(),
            }));
        };
        let kind = match &raw.key {
            KEY_REQUEST => StartKind::Request,
            KEY_REPLY => StartKind::Reply,
            _ => return Err(SetupError::BadKey),
        };
        if kind != expected {
            let both = kind == StartKind::Request;
            return Err(if both {
                SetupError::BothInitiated
            } else {
                SetupError::BadKey
            });
        }
        if !(1..=2).contains(&raw.revision) {
            return Err(SetupError::Revision(raw.revision));
        }
        let length = usize::from(raw.pd_length.get());
        if length > PRIVATE_DATA_LIMIT {
            return Err(SetupError::BadLength);
        }
        // S was a reserved bit in revision 1.
        let has_block = raw.revision >= 2 && raw.flags & FLAG_ENHANCED != 0;
        if has_block && length < size_of::<RawEnhanced>() {
            return Err(SetupError::BadLength);
        }
        let total = size_of::<RawStart>() + length;
        let Some(data) = rest.get(..length) else {
            return Ok(NextStart::Need(total));
        };
        let (enhanced, private_data) = match RawEnhanced::ref_from_prefix(data) {
            Ok((block, rest)) if has_block => (Some(Enhanced::from_raw(block)), rest),
            _ => (None, data),
        };
        let frame = StartFrame {
            kind,
            markers: raw.flags & FLAG_MARKERS != 0,
            crc: raw.flags & FLAG_CRC != 0,
            rejected: kind == StartKind::Reply && raw.flags & FLAG_REJECT != 0,
            revision: raw.revision,
            enhanced,
            private_data,
        };
        Ok(NextStart::Frame(frame, total))
    }

    /// Appends the frame.
    ///
    /// # Panics
    /// If the private data exceeds [`PRIVATE_DATA_LIMIT`]; callers check it when the program hands it over.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let block = self.enhanced.map(Enhanced::to_raw);
        let length = self.private_data.len() + block.map_or(0, |_| size_of::<RawEnhanced>());
        assert!(
            length <= PRIVATE_DATA_LIMIT,
            "private data was checked when handed over"
        );
        let mut flags = 0;
        for (set, flag) in [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.rejected, FLAG_REJECT),
            (block.is_some(), FLAG_ENHANCED),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let key = match self.kind {
            StartKind::Request => *KEY_REQUEST,
            StartKind::Reply => *KEY_REPLY,
        };
        let raw = RawStart {
            key,
            flags,
            revision: self.revision,
            pd_length: U16::new(length as u16),
        };
        out.extend_from_slice(raw.as_bytes());
        if let Some(block) = block {
            out.extend_from_slice(block.as_bytes());
        }
        out.extend_from_slice(self.private_data);
    }
}

impl Enhanced {
    fn from_raw(raw: &RawEnhanced) -> Self {
        let (first, second) = (raw.ird.get(), raw.ord.get());
        // With A=0 the other bits are ignored (RFC 6581 §4).
        let peer_to_peer = (first & TOP_BIT != 0).then_some(RtrKinds {
            send: first & SECOND_BIT != 0,
            write: second & TOP_BIT != 0,
            read: second & SECOND_BIT != 0,
        });
        Self {
            ird: first & NOT_NEGOTIATED,
            ord: second & NOT_NEGOTIATED,
            peer_to_peer,
        }
    }

    fn to_raw(self) -> RawEnhanced {
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let kinds = self.peer_to_peer.unwrap_or_default();
        let first = bit(self.peer_to_peer.is_some(), TOP_BIT) | bit(kinds.send, SECOND_BIT);
        let second = bit(kinds.write, TOP_BIT) | bit(kinds.read, SECOND_BIT);
        RawEnhanced {
            ird: U16::new(first | (self.ird & NOT_NEGOTIATED)),
            ord: U16::new(second | (self.ord & NOT_NEGOTIATED)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"MPA ID Req Frame\x50\x02\x00\x06\x80\x10\xc0\x10hi";

    fn request() -> StartFrame<'static> {
        let kinds = RtrKinds {
            send: false,
            write: true,
            read: true,
        };
        StartFrame {
            kind: StartKind::Request,
            markers: false,
            crc: true,
            rejected: false,
            revision: 2,
            enhanced: Some(Enhanced {
                ird: 16,
                ord: 16,
                peer_to_peer: Some(kinds),
            }),
            private_data: b"hi",
        }
    }

    /// Golden bytes of protocol note §2 and §3, both ways.
    #[test]
    fn golden_request() {
        assert_eq!(
            StartFrame::parse(StartKind::Request, REQUEST),
            Ok(NextStart::Frame(request(), REQUEST.len()))
        );
        let mut out = Vec::new();
        request().emit(&mut out);
        assert_eq!(out, REQUEST);
    }

    #[test]
    fn golden_reject() {
        let bytes = b"MPA ID Rep Frame\x20\x01\x00\x00";
        let Ok(NextStart::Frame(frame, 20)) = StartFrame::parse(StartKind::Reply, bytes) else {
            panic!("a frame")
        };
        assert!(frame.rejected && !frame.crc && frame.enhanced.is_none());
        let mut out = Vec::new();
        frame.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn every_prefix_needs_more() {
        for n in 0..REQUEST.len() {
            let need = StartFrame::parse(StartKind::Request, &REQUEST[..n]);
            let wanted = match n {
                ..16 => n + 1,
                16..20 => 20,
                _ => 26,
            };
            assert_eq!(need, Ok(NextStart::Need(wanted)));
        }
    }

    /// What begins like a key and is none is refused at its first wrong byte, whatever comes after it, or does not.
    #[test]
    fn a_wrong_key_is_noticed_at_once() {
        for wrong in 0..16 {
            let mut bytes = REQUEST.to_vec();
            bytes[wrong] = b'#';
            for end in 1..bytes.len() {
                let refused = StartFrame::parse(StartKind::Request, &bytes[..end]).is_err();
                assert_eq!(refused, end > wrong, "byte {wrong} of {end}");
            }
        }
    }

    #[test]
    fn refusals() {
        let parse = |at: usize, byte: u8| {
            let mut bytes = REQUEST.to_vec();
            bytes[at] = byte;
            StartFrame::parse(StartKind::Request, &bytes).map(|_| ())
        };
        assert_eq!(parse(0, b'm'), Err(SetupError::BadKey));
        assert_eq!(parse(17, 0), Err(SetupError::Revision(0)));
        assert_eq!(parse(17, 3), Err(SetupError::Revision(3)));
        assert_eq!(parse(18, 2), Err(SetupError::BadLength));
        assert_eq!(parse(19, 3), Err(SetupError::BadLength));
        assert_eq!(
            StartFrame::parse(StartKind::Reply, REQUEST),
            Err(SetupError::BothInitiated)
        );
    }
}
