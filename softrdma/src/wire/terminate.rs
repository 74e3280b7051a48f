//! Terminate messages (RFC 5040 §4.8).
//!
//! The codes are data: one table, [`TERMINATE_TABLE`], maps every error to layer, type and code, and says which headers
//! of the offending message are enclosed.
//!
//! Linux `siw` fills each byte of the control word from the low end: layer and type are swapped, and M, D and R are
//! bits 0, 1, 2 of the third byte. [`Terminate::parse`] accepts both; we send what the RFC says.

use std::fmt;

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
