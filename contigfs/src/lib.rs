//! ContigFS: files contiguous in a 64-bit LBA space.
