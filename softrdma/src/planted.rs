//! Bugs on request: each variant makes the endpoint wrong in one exact way, so that the conformance suite can show that it
//! would notice (M12). Never set outside of tests; looked at only where something is refused, or waits.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A region reaches one byte too far.
    BoundsByOne,
    /// Any access to a region is granted (as `siw` grants READs).
    RightsUnchecked,
    /// A region bound to one stream lets others in.
    StreamUnchecked,
    /// A region that was revoked while its page came is touched.
    LivenessUnchecked,
    /// A window stays when its region goes.
    WindowOutlivesRegion,
    /// A window of type 1 that is bound again stays where it was for who has found it.
    RebindKeepsOld,
    /// One of several users of a region may invalidate it.
    SharedInvalidated,
    /// Nobody waits for what was written through a sync STag.
    DurabilityUnawaited,
    /// A WRITE over several pages is placed when the first of them has come.
    PagesHalfAwaited,
    /// Answers to atomic operations leave before those of earlier READs.
    AnswersJumpQueue,
    /// One more READ is held than was agreed on.
    IrdByOne,
    /// Any SEND is the next one.
    MsnUnchecked,
    /// A message longer than its buffer is told "no buffer" (as `siw` does).
    TooLongIsNoBuffer,
    /// Damaged FPDUs are taken.
    CrcUnchecked,
    /// An FPDU whose first byte arrives alone loses it.
    LoneByteDropped,
    /// A Terminate encloses nothing.
    NothingEnclosed,
    /// A FLUSH is answered at once.
    FlushUnawaited,
    /// Atomic operations take effect before an earlier FLUSH.
    AtomicOvertakesFlush,
    /// An atomic operation whose page comes late takes effect twice.
    AtomicTwice,
    /// A fetch-and-add carries from field to field.
    CarryKept,
    /// Requests do not wait for what they are fenced from.
    FenceIgnored,
    /// One more request is outstanding than was agreed on.
    OrdByOne,
    /// Any answer is taken for that of the oldest request.
    RequestUnchecked,
    /// The private profile is spoken with everybody.
    ProfileUnasked,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::BoundsByOne,
        Self::RightsUnchecked,
        Self::StreamUnchecked,
        Self::LivenessUnchecked,
        Self::WindowOutlivesRegion,
        Self::RebindKeepsOld,
        Self::SharedInvalidated,
        Self::DurabilityUnawaited,
        Self::PagesHalfAwaited,
        Self::AnswersJumpQueue,
        Self::IrdByOne,
        Self::MsnUnchecked,
        Self::TooLongIsNoBuffer,
        Self::CrcUnchecked,
        Self::LoneByteDropped,
        Self::NothingEnclosed,
        Self::FlushUnawaited,
        Self::AtomicOvertakesFlush,
        Self::AtomicTwice,
        Self::CarryKept,
        Self::FenceIgnored,
        Self::OrdByOne,
        Self::RequestUnchecked,
        Self::ProfileUnasked,
    ];
}
