//! Bugs on request: each variant makes the engine wrong in one exact way, so that the crash and damage tests can
//! show that they would notice (M12). Never set outside of tests.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The header is written first, its data grains separately and nobody waits for them; recovery does not look.
    MappingBeforeData,
    /// A sync is answered when the writes completed, without a flush.
    AckBeforeFlush,
    /// Every page of a batch gets a header of its own.
    BatchNotAtomic,
    /// Recovery takes headers of earlier lives of a segment and of cut tails for real.
    StaleHeaderAccepted,
    /// Trim records are not written.
    TrimResurrected,
    /// Recovery lets the lowest sequence number win.
    WrongSequenceWins,
    /// A victim is reused before the relocations are durable.
    GcFreesEarly,
    /// Data is returned without comparing its checksum.
    ChecksumIgnored,
    /// A range is reserved without the grains that are mapped in memory only.
    ReservationDropped,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::MappingBeforeData,
        Self::AckBeforeFlush,
        Self::BatchNotAtomic,
        Self::StaleHeaderAccepted,
        Self::TrimResurrected,
        Self::WrongSequenceWins,
        Self::GcFreesEarly,
        Self::ChecksumIgnored,
        Self::ReservationDropped,
    ];
}
