//! Counters: what the engine did, and the write amplification that follows.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    (counted: { $($(#[doc = $doc:expr])* $name:ident,)* } now: { $($(#[doc = $now_doc:expr])* $now:ident,)* }) => {
        /// Counts since the volume was opened, and how it is now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])* pub $name: u64,)*
            $($(#[doc = $now_doc])* pub $now: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    ..Stats::default()
                }
            }
        }

        impl Stats {
            /// All of them, with their names and descriptions.
            pub fn described(&self) -> Vec<Stat> {
                vec![
                    $(Stat {
                        name: stringify!($name),
                        about: concat!($($doc),*).trim_ascii_start(),
                        is_counted: true,
                        value: self.$name,
                    },)*
                    $(Stat {
                        name: stringify!($now),
                        about: concat!($($now_doc),*).trim_ascii_start(),
                        is_counted: false,
                        value: self.$now,
                    },)*
                ]
            }
        }
    };
}

/// One of the [`Stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the field.
    pub name: &'static str,
    /// What it is: a sentence.
    pub about: &'static str,
    /// It only grows, from 0 on when the volume is opened; otherwise it is how things are now.
    pub is_counted: bool,
    /// Its value.
    pub value: u64,
}

counters! {
    counted: {
        /// Grains read from the media for a `get`.
        fills,
        /// Reads that failed: checksum or device.
        fills_failed,
        /// Reads whose checksum did not fit.
        damaged,
        /// Data grains written for users.
        user_grains,
        /// Copies of pages that a younger copy overtook before they had a place; they were never written.
        overtaken_grains,
        /// Data grains relocated.
        relocated_grains,
        /// Header grains written.
        header_grains,
        /// Device writes of the log.
        write_outs,
        /// Flushes.
        flushes,
        /// Pages evicted.
        evictions,
        /// Times a get had to wait for a frame.
        frame_waits,
        /// Batches committed.
        commits,
        /// Trims.
        trims,
        /// Remaps.
        remaps,
        /// Clones.
        clones,
        /// Pages that clones copied because somebody wrote to them all the time.
        clone_copies,
        /// Names that kept a place because the header of the copy had no room for them.
        names_left,
        /// Segments freed.
        segments_freed,
        /// Victims collected.
        victims,
        /// Headers without records written to let a segment go.
        nudges,
        /// Checkpoints taken.
        checkpoints,
        /// Pages written for checkpoints, roots included.
        checkpoint_grains,
        /// Checkpoints that did not fit beside the last two.
        checkpoints_skipped,
        /// Devices that have failed.
        devices_lost,
        /// Free segments discarded.
        discards,
        /// Pages of the map read.
        map_pages_read,
        /// Shared pages that were found to have been stored to.
        stores_found,
        /// Grains that were kept for snapshots, under the names of their images.
        grains_kept,
    }
    now: {
        /// Free segments.
        segments_free,
        /// Tombstones.
        tombstones,
        /// Dirty pages.
        dirty_pages,
    }
}

impl Stats {
    /// Grains written for each grain the user wrote.
    pub fn write_amplification(&self) -> f64 {
        let all =
            self.user_grains + self.relocated_grains + self.header_grains + self.checkpoint_grains;
        all as f64 / self.user_grains.max(1) as f64
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
