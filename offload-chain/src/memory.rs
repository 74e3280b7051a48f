//! What a member's process may do with the memory that the group's primitives change.

/// Memory is compared and copied between members in pieces of this size.
pub const CHUNK_BYTES: u64 = 4096;

/// Why memory could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The range is not all inside.
    #[error("{length} bytes at {offset} are not within the {size} bytes of the group's memory")]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes there are.
        size: u64,
    },
    /// The device under it failed. The member cannot vouch for its memory any more.
    #[error("the device under the group's memory failed: {0}")]
    Device(String),
}

/// The memory of one member, from inside its process. The engine changes it too, while members of the group are connected.
pub trait Memory {
    /// Bytes.
    fn size(&self) -> u64;

    /// Copies out.
    ///
    /// # Errors
    /// If it is not all there.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies in: visible, not durable.
    ///
    /// # Errors
    /// If it is not all there.
    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError>;

    /// Everything visible is durable when it returns.
    ///
    /// # Errors
    /// If it is not; then nothing that was written since the last flush may be relied on (I8).
    fn flush(&mut self) -> Result<(), MemoryError>;

    /// Grows with each change, by whomever. Starts anywhere when the process starts.
    fn generation(&self) -> u64;

    /// Chunks changed after the memory had that generation, in order; all of them, if it cannot say.
    fn changed_since(&self, generation: u64) -> Vec<u64>;
}
