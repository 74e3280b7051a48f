//! What the engine knows of a frame besides the map entry that names it.

use crate::addr::Lba;
use crate::ids::{Intent, Port, Token};
use crate::map::{Leaf, Location};
use crate::placement::Heat;
use std::sync::Arc;

/// What a frame serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameUse {
    /// Nothing.
    Free,
    /// A read from the media fills it.
    Reading,
    /// The holder of an overwrite fills it.
    Exclusive,
    /// A page of the map.
    Resident,
    /// Its LBA was trimmed while it was held; the last holder frees it.
    Orphan,
}

/// Who waits for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) lba: Lba,
    pub(crate) kind: WaiterKind,
}

/// What the waiter wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterKind {
    /// A page, by event.
    Get {
        port: Port,
        token: Token,
        intent: Intent,
    },
    /// The batch at the head of the commit queue wants to look again.
    Commit,
}

/// A frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) usage: FrameUse,
    pub(crate) lba: Lba,
    pub(crate) leaf: Option<Arc<Leaf>>,
    /// Where the grain is besides this frame: what the entry becomes on eviction.
    pub(crate) media: Location,
    /// The past of the grain; goes back to the entry with it.
    pub(crate) heat: Heat,
    /// The youngest copy that has joined a write-out, and the youngest that has a place in the log.
    pub(crate) joined: u64,
    pub(crate) written: u64,
    /// Copies of this page that are not on the media yet; it must not be evicted.
    pub(crate) writing: u32,
    /// Pins left when the page was orphaned.
    pub(crate) orphan_pins: u32,
    /// Counts the lives of the frame, so that a completion finds out that it came too late.
    pub(crate) life: u32,
    /// Who waits for it to be filled. Keeps its memory over the lives.
    pub(crate) waiters: Vec<Waiter>,
}

impl Frame {
    pub(crate) fn new() -> Self {
        Self {
            usage: FrameUse::Free,
            lba: Lba(0),
            leaf: None,
            media: Location::Nowhere,
            heat: Heat::UNKNOWN,
            joined: 0,
            written: 0,
            writing: 0,
            orphan_pins: 0,
            life: 0,
            waiters: Vec::new(),
        }
    }

    /// The leaf of a frame in use.
    pub(crate) fn leaf(&self) -> &Arc<Leaf> {
        self.leaf.as_ref().expect("a frame in use has a leaf")
    }
}
