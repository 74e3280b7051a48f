//! Flaws on request (M12): each makes the engine wrong in one exact way, so that tests can show that they would notice.
//! Never set outside of tests.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Descriptors run without having been granted.
    UnownedRuns,
    /// All fields of a descriptor are taken from ring memory.
    MaskIgnored,
    /// Any opcode that a message names is run.
    AnyOpcode,
    /// Ranges are not checked before a command runs.
    RangeUnchecked,
    /// A message whose fence is another is scattered like any.
    FenceUnchecked,
    /// A WAIT is content with one completion less.
    WaitEarly,
    /// A FLUSH of the local queue pair completes without being made.
    FlushSkipped,
    /// A message is taken though its slot is in use.
    DryRingTaken,
    /// Completions are counted as they happen, not in order.
    CountedEarly,
    /// A WAIT on a receive queue other than the first is over at once.
    OthersUnawaited,
    /// What could not be made durable is taken for durable.
    FailureIgnored,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::UnownedRuns,
        Self::MaskIgnored,
        Self::AnyOpcode,
        Self::RangeUnchecked,
        Self::FenceUnchecked,
        Self::WaitEarly,
        Self::FlushSkipped,
        Self::DryRingTaken,
        Self::CountedEarly,
        Self::OthersUnawaited,
        Self::FailureIgnored,
    ];
}
