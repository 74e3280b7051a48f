//! RDMAP opcodes (RFC 5040 §4.3, RFC 7306 §4.1) and the Read Request header (RFC 5040 §4.4).

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::addr::{RemoteAddr, Stag, TaggedOffset};
use crate::wire::ddp::QueueNum;
use crate::wire::profile;

/// Version bits of the control byte.
pub const RDMAP_VERSION: u8 = 0x40;

/// The opcodes that we support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Opcode {
    Write = 0,
    ReadRequest = 1,
    ReadResponse = 2,
    Send = 3,
    SendInvalidate = 4,
    SendSolicited = 5,
    SendSolicitedInvalidate = 6,
    Terminate = 7,
    ImmediateData = 8,
    ImmediateDataSolicited = 9,
    AtomicRequest = 10,
    AtomicResponse = 11,
    FlushRequest = profile::FLUSH_REQUEST,
    FlushResponse = profile::FLUSH_RESPONSE,
    VerifyRequest = profile::VERIFY_REQUEST,
    VerifyResponse = profile::VERIFY_RESPONSE,
}

impl Opcode {
    /// From the low four bits of the control byte; those of the private profile only with `profile`.
    #[must_use]
    pub const fn from_bits(bits: u8, profile: bool) -> Option<Self> {
        Some(match bits {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::ImmediateData,
            9 => Self::ImmediateDataSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            profile::FLUSH_REQUEST if profile => Self::FlushRequest,
            profile::FLUSH_RESPONSE if profile => Self::FlushResponse,
            profile::VERIFY_REQUEST if profile => Self::VerifyRequest,
            profile::VERIFY_RESPONSE if profile => Self::VerifyResponse,
            _ => return None,
        })
    }

    /// Goes to a tagged buffer.
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Its queue, if it goes to an untagged buffer.
    #[must_use]
    pub const fn queue(self) -> Option<QueueNum> {
        Some(match self {
            Self::Write | Self::ReadResponse => return None,
            Self::ReadRequest | Self::AtomicRequest | Self::FlushRequest | Self::VerifyRequest => {
                QueueNum::ReadRequest
            }
            Self::Terminate => QueueNum::Terminate,
            Self::AtomicResponse | Self::FlushResponse | Self::VerifyResponse => {
                QueueNum::AtomicResponse
            }
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::ImmediateData
            | Self::ImmediateDataSolicited => QueueNum::Send,
        })
    }

    /// The form of Send with these properties.
    #[must_use]
    pub const fn send(solicited: bool, invalidate: bool) -> Self {
        match (solicited, invalidate) {
            (false, false) => Self::Send,
            (false, true) => Self::SendInvalidate,
            (true, false) => Self::SendSolicited,
            (true, true) => Self::SendSolicitedInvalidate,
        }
    }

    /// The form of Immediate Data with or without a solicited event.
    #[must_use]
    pub const fn immediate(solicited: bool) -> Self {
        if solicited {
            Self::ImmediateDataSolicited
        } else {
            Self::ImmediateData
        }
    }

    /// Asks for a solicited event.
    #[must_use]
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateDataSolicited
        )
    }

    /// Names an STag to invalidate.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

/// Body of a Read Request.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawReadRequest {
    sink_stag: U32,
    sink_to: U64,
    size: U32,
    source_stag: U32,
    source_to: U64,
}
/// Bytes of a Read Request's body.
pub const READ_REQUEST_BYTES: usize = size_of::<RawReadRequest>();
const _: () = assert!(READ_REQUEST_BYTES == 28);

/// A Read Request: every value is legal until the source is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// Where the response goes; only the requester understands it.
    pub sink: RemoteAddr,
    /// Bytes wanted.
    pub size: u32,
    /// Where they are.
    pub source: RemoteAddr,
}

impl ReadRequest {
    /// Reads the body; `None` if it is not of the one legal length.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let raw = RawReadRequest::ref_from_bytes(body).ok()?;
        Some(Self {
            sink: RemoteAddr {
                stag: Stag(raw.sink_stag.get()),
                to: TaggedOffset(raw.sink_to.get()),
            },
            size: raw.size.get(),
            source: RemoteAddr {
                stag: Stag(raw.source_stag.get()),
                to: TaggedOffset(raw.source_to.get()),
            },
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let raw = RawReadRequest {
            sink_stag: U32::new(self.sink.stag.0),
            sink_to: U64::new(self.sink.to.0),
            size: U32::new(self.size),
            source_stag: U32::new(self.source.stag.0),
            source_to: U64::new(self.source.to.0),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_read_request() {
        let bytes: [u8; 28] = [
            0x42, 0xcd, 0xfd, 0x00, 0, 0, 0x56, 0x53, 0xc8, 0xdf, 0x03, 0xb0, 0, 0, 0, 0x40, 0xc3,
            0xf5, 0x2f, 0x00, 0, 0, 0x55, 0x69, 0x1c, 0x7c, 0x4d, 0x50,
        ];
        let request = ReadRequest::parse(&bytes).unwrap();
        assert_eq!(
            request.sink,
            RemoteAddr {
                stag: Stag(0x42cd_fd00),
                to: TaggedOffset(0x5653_c8df_03b0)
            }
        );
        assert_eq!(request.size, 64);
        assert_eq!(
            request.source,
            RemoteAddr {
                stag: Stag(0xc3f5_2f00),
                to: TaggedOffset(0x5569_1c7c_4d50)
            }
        );
        let mut out = Vec::new();
        request.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(ReadRequest::parse(&bytes[..27]), None);
    }

    #[test]
    fn opcodes_round_trip() {
        for bits in 0..=255_u8 {
            assert_eq!(
                Opcode::from_bits(bits, false).map(|opcode| opcode as u8),
                (bits < 12).then_some(bits)
            );
            assert_eq!(
                Opcode::from_bits(bits, true).map(|opcode| opcode as u8),
                (bits < 16).then_some(bits)
            );
        }
        for (solicited, invalidate) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let opcode = Opcode::send(solicited, invalidate);
            assert_eq!(
                (opcode.is_solicited(), opcode.invalidates()),
                (solicited, invalidate)
            );
        }
    }
}
