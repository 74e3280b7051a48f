//! Bugs on request: each variant makes credentials wrong in one exact way, so that the tests can show that they would
//! notice (M12). Never set outside of tests.

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// An STag is handed out before its record is durable.
    IssuedUnsynced,
    /// A file shrinks or goes before the retirement of its registrations is durable.
    RetiredUnsynced,
    /// A restart does not compare the generation of the inode.
    GenerationUnchecked,
    /// A restart does not compare the size of the file.
    SizeUnchecked,
    /// A restart believes registrations of earlier epochs.
    EpochUnchecked,
    /// A restart believes registrations under other exports.
    ExportsUnchecked,
    /// Every tenant's registrations come back in the domain of strangers.
    DomainForgotten,
    /// The index of a retired STag can be drawn at once.
    IndexReissued,
    /// A token of any epoch is taken.
    TokenEpochUnchecked,
    /// A token is taken for ever.
    TokenNeverExpires,
    /// A token for one connection is taken again.
    TokenUsedTwice,
    /// A token is believed whoever made it.
    TokenMacUnchecked,
}

impl Bug {
    /// Those of registrations.
    pub const REGISTRATIONS: [Self; 8] = [
        Self::IssuedUnsynced,
        Self::RetiredUnsynced,
        Self::GenerationUnchecked,
        Self::SizeUnchecked,
        Self::EpochUnchecked,
        Self::ExportsUnchecked,
        Self::DomainForgotten,
        Self::IndexReissued,
    ];

    /// Those of the door.
    pub const DOOR: [Self; 4] = [
        Self::TokenEpochUnchecked,
        Self::TokenNeverExpires,
        Self::TokenUsedTwice,
        Self::TokenMacUnchecked,
    ];
}
