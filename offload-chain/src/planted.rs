//! Bugs on request: each variant makes one part wrong in one exact way, so that the simulation can show that it would
//! notice (M12). Never set outside of tests.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The log's header is posted together with the copies it relies on.
    AdvanceBeforeCopy,
    /// The log's header may be on media before copies that are only visible.
    MarkNotFlushed,
    /// Recovery takes records of an earlier term for real.
    StaleRecordAccepted,
    /// Recovery of a log that is not carried out leaves what is behind its end.
    FreeNotErased,
    /// Recovery carries out records that may not be durable.
    RingNotFlushed,
    /// A member that vouches keeps its own mark in a log that is not carried out.
    MarkKept,
    /// Recovery does not compare checksums.
    TornRecordAccepted,
    /// Each epoch that is tried decides anew where the log ends.
    EndNotKept,
    /// A member that lost its memory says that it has not.
    BlankVouches,
    /// A joiner is taken for caught up without the last, sealed round.
    LastRoundSkipped,
    /// A new epoch takes no locks from clients that were fenced, and does not wait for members to seal.
    SealNotAwaited,
    /// An epoch is active as soon as it was asked for that the keys of slots that it fences are deleted.
    ActiveBeforeGone,
    /// A member looks at its log and reports that it has sealed before its engine has stopped.
    SealedBeforeClosed,
    /// A member looks at its log and reports that it has sealed while it recovers for an earlier epoch.
    WorkNotAwaited,
    /// An engine looks at its read lease before it waits for what comes, and not after it has taken bytes.
    LeaseLookedAtEarly,
    /// A dirty object is answered like a clean one.
    DirtyAnswered,
}
