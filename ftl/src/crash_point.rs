//! Named places between media operations, where a power cut is most instructive.
//!
//! A place counts how often this thread came past; the crash tests, which cut at every media operation, show with
//! it that each place has been cut behind often enough. It costs a thread-local increment and only in tests that
//! asked for it.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Every place there is.
pub const ALL: [&str; 29] = [
    "seal",
    "gc.victim",
    "gc.assembled",
    "gc.moved",
    "gc.freed",
    "gc.aliased",
    "remap.applied",
    "clone.applied",
    "discard",
    "checkpoint.captured",
    "checkpoint.page",
    "checkpoint.flush",
    "checkpoint.root",
    "checkpoint.done",
    "superblock.copy",
    "shutdown.settled",
    "shutdown.clean",
    "loss",
    "loss.record",
    "resize.left",
    "resize.copy",
    "resize.switched",
    "snapshot.raise",
    "snapshot.changed",
    "snapshot.kept",
    "snapshot.moved",
    "recover.decided",
    "recover.session",
    "recover.cut",
];

thread_local! {
    static HITS: RefCell<Option<BTreeMap<&'static str, u64>>> = const { RefCell::new(None) };
}

/// Counts from now on, on this thread.
pub fn watch() {
    HITS.with_borrow_mut(|hits| {
        hits.get_or_insert_default();
    });
}

/// How often this thread came past each place since the last call.
pub fn take() -> BTreeMap<&'static str, u64> {
    HITS.with_borrow_mut(|hits| hits.as_mut().map(std::mem::take).unwrap_or_default())
}

pub(crate) fn pass(name: &'static str) {
    debug_assert!(ALL.contains(&name), "{name} is not listed");
    HITS.with_borrow_mut(|hits| {
        if let Some(hits) = hits {
            *hits.entry(name).or_default() += 1;
        }
    });
}

/// Marks a place.
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash_point::pass($name)
    };
}
pub(crate) use crash_point;
