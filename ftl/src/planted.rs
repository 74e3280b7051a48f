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
    /// The root of a checkpoint is written together with its pages, and nobody waits for the log either.
    RootBeforePages,
    /// The log is replayed from the end of a checkpoint instead of from its beginning.
    ReplayStartsLate,
    /// Any dump is taken for the last word, whatever has been written since.
    StaleDumpAccepted,
    /// Tombstones expire although a checkpoint still needs them.
    TombstoneForgotten,
    /// The ring lets go of what the present checkpoint needs.
    RingOverrun,
    /// Nobody notes what relocation changed.
    RelocationUnsaved,
    /// What is written through is taken for durable although something before it waits for a flush.
    WriteThroughVouchesForAll,
    /// What is relocated while it is remapped stays where it was in memory, although recovery prefers the copy.
    RemapNotFollowed,
    /// What is relocated keeps the name and version it was written under.
    RemapOldName,
    /// A checkpoint does not wait for remaps: recovery carries them out on a map that has them already.
    RemapReplayedTwice,
    /// A clone does not wait until the pages of its source are on the media.
    CloneBeforePage,
    /// What is relocated is written under one of its names only.
    AliasesForgotten,
    /// What is relocated keeps the version it had before it was cloned.
    CloneOldVersion,
    /// A sync does not wait for the batches that have taken effect before and were answered then.
    RelaxedForgotten,
    /// What is to go along with a batch stays behind.
    AlongForgotten,
    /// The new names of a clone are charged to nobody.
    CloneUncharged,
    /// A volume that grows forgets that headers of an earlier life may lie in its new segments.
    FreshForgotten,
    /// A volume that shrinks ends before segments in which something is live.
    CutEarly,
    /// A grain may be changed before it has been kept for the newest snapshot.
    SnapshotChangeFirst,
    /// What is trimmed is not kept.
    SnapshotTrimUnkept,
    /// That a grain was nothing at a snapshot is known in memory only, and forgotten with the snapshot behind.
    SnapshotMarksForgotten,
    /// Nobody asks who holds pages for writing when a snapshot comes into being.
    SnapshotHoldersIgnored,
    /// A page is copied for a write-out while others change it.
    CopiedAmidChange,
    /// A tombstone that no header of its segment tells of holds the segment.
    UnreadStays,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 33] = [
        Self::MappingBeforeData,
        Self::AckBeforeFlush,
        Self::BatchNotAtomic,
        Self::StaleHeaderAccepted,
        Self::TrimResurrected,
        Self::WrongSequenceWins,
        Self::GcFreesEarly,
        Self::ChecksumIgnored,
        Self::ReservationDropped,
        Self::RootBeforePages,
        Self::ReplayStartsLate,
        Self::StaleDumpAccepted,
        Self::TombstoneForgotten,
        Self::RingOverrun,
        Self::RelocationUnsaved,
        Self::WriteThroughVouchesForAll,
        Self::RemapNotFollowed,
        Self::RemapOldName,
        Self::RemapReplayedTwice,
        Self::CloneBeforePage,
        Self::AliasesForgotten,
        Self::CloneOldVersion,
        Self::RelaxedForgotten,
        Self::AlongForgotten,
        Self::CloneUncharged,
        Self::FreshForgotten,
        Self::CutEarly,
        Self::SnapshotChangeFirst,
        Self::SnapshotTrimUnkept,
        Self::SnapshotMarksForgotten,
        Self::SnapshotHoldersIgnored,
        Self::CopiedAmidChange,
        Self::UnreadStays,
    ];
}
