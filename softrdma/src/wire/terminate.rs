//! Terminate messages (RFC 5040 §4.8).
//!
//! The codes are data: one table, [`TERMINATE_TABLE`], maps every error to layer, type and code, and says which headers
//! of the offending message are enclosed.
//!
//! Linux `siw` fills each byte of the control word from the low end: layer and type are swapped, and M, D and R are
//! bits 0, 1, 2 of the third byte. [`Terminate::parse`] accepts both; we send what the RFC says.

use std::fmt;

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ddp;
use crate::wire::rdmap::{Opcode, READ_REQUEST_BYTES};

/// Everything that ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TerminateCode {
    RdmapLocalCatastrophic,
    ProtectionInvalidStag,
    ProtectionBounds,
    ProtectionRights,
    ProtectionNotOfStream,
    ProtectionWrap,
    ProtectionCannotInvalidate,
    ProtectionUnspecified,
    OperationVersion,
    OperationUnexpectedOpcode,
    OperationCatastrophicStream,
    OperationCatastrophicGlobal,
    OperationCannotInvalidate,
    OperationUnspecified,
    DdpLocalCatastrophic,
    TaggedInvalidStag,
    TaggedBounds,
    TaggedNotOfStream,
    TaggedWrap,
    TaggedVersion,
    UntaggedQueue,
    UntaggedNoBuffer,
    UntaggedMsnRange,
    UntaggedOffset,
    UntaggedTooLong,
    UntaggedVersion,
    MpaLost,
    MpaCrc,
    MpaFraming,
    MpaStartFrame,
    MpaLocalCatastrophic,
    MpaInsufficientIrd,
    MpaNoCommonRtr,
}

/// Headers of the offending message that a Terminate encloses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enclosed {
    /// Nothing.
    Nothing,
    /// Segment length and DDP header.
    Ddp,
    /// The same, and the Read Request header if it was one.
    DdpAndRead,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct TerminateRow {
    /// Name in the program.
    pub code: TerminateCode,
    /// Layer: 0 RDMAP, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type.
    pub etype: u8,
    /// Error code.
    pub ecode: u8,
    /// What it encloses.
    pub enclosed: Enclosed,
    /// Words for people.
    pub text: &'static str,
}

macro_rules! rows {
    ($($code:ident $layer:literal $etype:literal $ecode:literal $enclosed:ident $text:literal)*) => {
        /// All codes we send, in the order of RFC 5040 figure 10 and RFC 6581 §8.
        pub const TERMINATE_TABLE: &[TerminateRow] = &[$(TerminateRow {
            code: TerminateCode::$code, layer: $layer, etype: $etype, ecode: $ecode,
            enclosed: Enclosed::$enclosed, text: $text,
        }),*];
    };
}

rows! {
    RdmapLocalCatastrophic      0 0 0x00 Nothing    "RDMAP local catastrophic error"
    ProtectionInvalidStag       0 1 0x00 DdpAndRead "remote protection: invalid STag"
    ProtectionBounds            0 1 0x01 DdpAndRead "remote protection: base or bounds"
    ProtectionRights            0 1 0x02 DdpAndRead "remote protection: access rights"
    ProtectionNotOfStream       0 1 0x03 DdpAndRead "remote protection: STag not of this stream"
    ProtectionWrap              0 1 0x04 DdpAndRead "remote protection: TO wraps"
    ProtectionCannotInvalidate  0 1 0x09 DdpAndRead "remote protection: STag cannot be invalidated"
    ProtectionUnspecified       0 1 0xff DdpAndRead "remote protection: unspecified"
    OperationVersion            0 2 0x05 Ddp        "remote operation: RDMAP version"
    OperationUnexpectedOpcode   0 2 0x06 Ddp        "remote operation: unexpected opcode"
    OperationCatastrophicStream 0 2 0x07 Ddp        "remote operation: catastrophic for this stream"
    OperationCatastrophicGlobal 0 2 0x08 Ddp        "remote operation: catastrophic, global"
    OperationCannotInvalidate   0 2 0x09 Ddp        "remote operation: STag cannot be invalidated"
    OperationUnspecified        0 2 0xff Ddp        "remote operation: unspecified"
    DdpLocalCatastrophic        1 0 0x00 Nothing    "DDP local catastrophic error"
    TaggedInvalidStag           1 1 0x00 Ddp        "tagged buffer: invalid STag"
    TaggedBounds                1 1 0x01 Ddp        "tagged buffer: base or bounds"
    TaggedNotOfStream           1 1 0x02 Ddp        "tagged buffer: STag not of this stream"
    TaggedWrap                  1 1 0x03 Ddp        "tagged buffer: TO wraps"
    TaggedVersion               1 1 0x04 Ddp        "tagged buffer: DDP version"
    UntaggedQueue               1 2 0x01 Ddp        "untagged buffer: invalid QN"
    UntaggedNoBuffer            1 2 0x02 Ddp        "untagged buffer: no buffer for this MSN"
    UntaggedMsnRange            1 2 0x03 Ddp        "untagged buffer: MSN range"
    UntaggedOffset              1 2 0x04 Ddp        "untagged buffer: invalid MO"
    UntaggedTooLong             1 2 0x05 Ddp        "untagged buffer: message too long"
    UntaggedVersion             1 2 0x06 Ddp        "untagged buffer: DDP version"
    MpaLost                     2 0 0x01 Nothing    "MPA: TCP connection lost"
    MpaCrc                      2 0 0x02 Nothing    "MPA: CRC"
    MpaFraming                  2 0 0x03 Nothing    "MPA: marker and length do not match"
    MpaStartFrame               2 0 0x04 Nothing    "MPA: invalid Request or Reply frame"
    MpaLocalCatastrophic        2 0 0x05 Nothing    "MPA: local catastrophic error"
    MpaInsufficientIrd          2 0 0x06 Nothing    "MPA: insufficient IRD"
    MpaNoCommonRtr              2 0 0x07 Nothing    "MPA: no ready-to-receive frame in common"
}

impl TerminateCode {
    /// Its row of the table.
    #[must_use]
    pub fn row(self) -> &'static TerminateRow {
        &TERMINATE_TABLE[self as usize]
    }

    /// The code with these numbers.
    #[must_use]
    pub fn find(layer: u8, etype: u8, ecode: u8) -> Option<Self> {
        // Local catastrophic of RDMAP carries any code.
        let ecode = if (layer, etype) == (0, 0) { 0 } else { ecode };
        TERMINATE_TABLE
            .iter()
            .find(|row| (row.layer, row.etype, row.ecode) == (layer, etype, ecode))
            .map(|row| row.code)
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().text)
    }
}

/// A Terminate as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// Layer number, after unswapping.
    pub layer: u8,
    /// Error type, after unswapping.
    pub etype: u8,
    /// Error code.
    pub ecode: u8,
}

impl Terminate {
    /// What it means, if it is in the table.
    #[must_use]
    pub fn code(self) -> Option<TerminateCode> {
        TerminateCode::find(self.layer, self.etype, self.ecode)
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code() {
            Some(code) => code.fmt(f),
            None => write!(
                f,
                "layer {} type {} code {:#04x}",
                self.layer, self.etype, self.ecode
            ),
        }
    }
}

/// The control word of a Terminate; the low 13 bits are reserved.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawTerminate {
    layer_and_type: u8,
    code: u8,
    flags: U16,
}
const _: () = assert!(size_of::<RawTerminate>() == 4);

/// M: the segment length is there.
const FLAG_LENGTH: u16 = 0x8000;
/// D: the DDP header is there.
const FLAG_DDP: u16 = 0x4000;
/// R: the Read Request header is there.
const FLAG_READ: u16 = 0x2000;
/// M, D and R where `siw` puts them.
const FLAGS_SIW: u16 = 0x0700;
/// D of these.
const FLAG_DDP_SIW: u16 = 0x0200;

impl Terminate {
    /// Reads a Terminate's body, in the layout of the RFC or of `siw`. `None` if it is shorter than its control word.
    ///
    /// `siw`'s layout is told by its flags. Without any flag nothing is enclosed, and it is the RFC's layout whenever
    /// that gives an error of the table: 02 02 is only a CRC error of `siw`, but 02 07 could also be its "no common
    /// RTR", which it sends during set-up alone.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let (raw, _) = RawTerminate::ref_from_prefix(body).ok()?;
        let (high, low) = (raw.layer_and_type >> 4, raw.layer_and_type & 0x0f);
        let flags = raw.flags.get();
        let as_rfc = Self {
            layer: high,
            etype: low,
            ecode: raw.code,
        };
        let as_siw = Self {
            layer: low,
            etype: high,
            ecode: raw.code,
        };
        let from_siw = if flags & (FLAG_LENGTH | FLAG_DDP | FLAG_READ) != 0 {
            false
        } else if flags & FLAGS_SIW != 0 {
            true
        } else {
            as_rfc.code().is_none() && as_siw.code().is_some()
        };
        Some(if from_siw { as_siw } else { as_rfc })
    }

    /// What kind of message it is about, if its body encloses the header of that.
    #[must_use]
    pub fn about(body: &[u8]) -> Option<Opcode> {
        let (raw, enclosed) = RawTerminate::ref_from_prefix(body).ok()?;
        let flags = raw.flags.get();
        let is_enclosed = match flags & (FLAG_LENGTH | FLAG_DDP | FLAG_READ) {
            0 => flags & FLAG_DDP_SIW != 0,
            of_the_rfc => of_the_rfc & FLAG_DDP != 0,
        };
        // Behind the segment length and the control byte of DDP.
        let rdmap = enclosed.get(3).filter(|_| is_enclosed)?;
        Opcode::from_bits(rdmap & 0x0f, true)
    }

    /// Appends the body of a Terminate for `code`, with headers of the offending ULPDU as far as they are there.
    pub fn emit(code: TerminateCode, ulpdu: Option<&[u8]>, out: &mut Vec<u8>) {
        let row = code.row();
        let header = ulpdu.and_then(|ulpdu| Some((ulpdu, ddp::header_bytes(ulpdu)?)));
        let header = header.filter(|_| row.enclosed != Enclosed::Nothing);
        let read = header.and_then(|(ulpdu, ddp)| {
            let is_read = row.enclosed == Enclosed::DdpAndRead
                && ulpdu[1] & 0x0f == Opcode::ReadRequest as u8;
            ulpdu
                .get(ddp.len()..ddp.len() + READ_REQUEST_BYTES)
                .filter(|_| is_read)
        });
        let mut flags = 0;
        if header.is_some() {
            flags |= FLAG_LENGTH | FLAG_DDP;
        }
        if read.is_some() {
            flags |= FLAG_READ;
        }
        let raw = RawTerminate {
            layer_and_type: (row.layer << 4) | row.etype,
            code: row.ecode,
            flags: U16::new(flags),
        };
        out.extend_from_slice(raw.as_bytes());
        if let Some((ulpdu, ddp)) = header {
            // A ULPDU comes out of a 16-bit length field.
            let length = u16::try_from(ulpdu.len()).unwrap_or(u16::MAX);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(ddp);
            out.extend_from_slice(read.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row for row: the code finds its row, its numbers find the code, and what we send reads back in both layouts.
    #[test]
    fn every_row() {
        for (at, row) in TERMINATE_TABLE.iter().enumerate() {
            assert_eq!(
                row.code as usize, at,
                "table in the order of the enum: {}",
                row.text
            );
            assert_eq!(
                TerminateCode::find(row.layer, row.etype, row.ecode),
                Some(row.code)
            );
            let ulpdu = [&[0x41, 0x41][..], &[9; 16 + READ_REQUEST_BYTES]].concat();
            let mut body = Vec::new();
            Terminate::emit(row.code, Some(&ulpdu), &mut body);
            let (flags, len) = match row.enclosed {
                Enclosed::Nothing => (0, 4),
                Enclosed::Ddp => (0xc0, 4 + 2 + 18),
                Enclosed::DdpAndRead => (0xe0, 4 + 2 + 18 + 28),
            };
            assert_eq!(body[..4], [row.layer << 4 | row.etype, row.ecode, flags, 0]);
            assert_eq!(body.len(), len);
            assert_eq!(Terminate::parse(&body).unwrap().code(), Some(row.code));
            let swapped = match flags {
                0 => 0,
                0xc0 => 3,
                _ => 7,
            };
            let siw = [row.etype << 4 | row.layer, row.ecode, swapped, 0];
            let twin =
                TerminateCode::find(row.etype, row.layer, row.ecode).filter(|_| swapped == 0);
            let expected = Some(twin.unwrap_or(row.code));
            assert_eq!(
                Terminate::parse(&siw).unwrap().code(),
                expected,
                "{}",
                row.text
            );
        }
    }

    /// Bytes seen from `siw`, and their RFC forms.
    #[test]
    fn golden() {
        let code = |bytes: &[u8]| Terminate::parse(bytes).unwrap().code().unwrap();
        assert_eq!(code(&[0x11, 0, 3, 0]), TerminateCode::TaggedInvalidStag);
        assert_eq!(code(&[0x10, 0, 7, 0]), TerminateCode::ProtectionInvalidStag);
        assert_eq!(code(&[0x11, 0, 0xc0, 0]), TerminateCode::TaggedInvalidStag);
        assert_eq!(
            code(&[0x01, 0, 0xe0, 0]),
            TerminateCode::ProtectionInvalidStag
        );
        // Nothing enclosed: version and opcode errors of siw.
        assert_eq!(code(&[0x20, 6, 0, 0]), TerminateCode::MpaInsufficientIrd);
        assert_eq!(
            code(&[0x02, 7, 0, 0]),
            TerminateCode::OperationCatastrophicStream
        );
        assert_eq!(code(&[0x02, 2, 0, 0]), TerminateCode::MpaCrc);
        assert_eq!(Terminate::parse(&[0; 3]), None);
    }

    /// A tagged header is 14 bytes, and headers that are not there are left out.
    #[test]
    fn encloses_what_is_there() {
        let mut body = Vec::new();
        let ulpdu = [&[0xc1, 0x40][..], &[5; 20]].concat();
        Terminate::emit(TerminateCode::TaggedBounds, Some(&ulpdu), &mut body);
        assert_eq!(body[..6], [0x11, 0x01, 0xc0, 0, 0, 22]);
        assert_eq!(body[6..], ulpdu[..14]);
        for ulpdu in [None, Some(&ulpdu[..13]), Some(&[][..])] {
            let mut body = Vec::new();
            Terminate::emit(TerminateCode::TaggedBounds, ulpdu, &mut body);
            assert_eq!(body, [0x11, 0x01, 0, 0]);
        }
    }
}
