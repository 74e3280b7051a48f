//! Bugs on request: each variant makes the file system wrong in one exact way, so that the crash and model tests can show
//! that they would notice (M12). Never set outside of tests.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// `fsync` writes the record and leaves the data in memory.
    DataUnsynced,
    /// `fsync` that nobody waits for is answered when it has begun.
    SyncAnsweredEarly,
    /// `fsync` leaves a size that has grown in memory.
    SizeUnsynced,
    /// An operation's batch is committed one change at a time.
    BatchNotAtomic,
    /// What a crash left behind the end of a file comes into sight when the file grows.
    TailUncleaned,
    /// Truncation leaves the rest of the last grain as it is.
    TruncationKeepsBytes,
    /// A hole has whole grains only.
    PunchSkipsEdges,
    /// A file that is open when its last name goes is not marked.
    OrphanUnmarked,
    /// The data of a removed file stay mapped.
    DataUnfreed,
    /// The extended attributes of a removed file stay mapped.
    AttributesUnfreed,
    /// A name that is not the last goes without being uncounted.
    LinkUncounted,
    /// A directory that is moved keeps its old parent.
    ParentUnmoved,
    /// Mounting takes the ranges of files for free.
    RangesForgotten,
    /// `fsync` does not look for what mappings have stored to shared pages.
    StoresUnseen,
    /// Shared pages are brought back into their memory only when somebody asks for them.
    SharedLeftAway,
    /// Mounting charges nobody for what belongs to projects.
    ProjectsForgotten,
    /// A file that is relocated is not charged to its project any more.
    ProjectLeftBehind,
    /// A rename brings anything into the directory of a project.
    ProjectsMixed,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::DataUnsynced,
        Self::SyncAnsweredEarly,
        Self::SizeUnsynced,
        Self::BatchNotAtomic,
        Self::TailUncleaned,
        Self::TruncationKeepsBytes,
        Self::PunchSkipsEdges,
        Self::OrphanUnmarked,
        Self::DataUnfreed,
        Self::AttributesUnfreed,
        Self::LinkUncounted,
        Self::ParentUnmoved,
        Self::RangesForgotten,
        Self::StoresUnseen,
        Self::SharedLeftAway,
        Self::ProjectsForgotten,
        Self::ProjectLeftBehind,
        Self::ProjectsMixed,
    ];
}
