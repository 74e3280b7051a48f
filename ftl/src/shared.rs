//! What all threads share: map and pool, used without the core's lock, on one side; the core behind it on the other.
//!
//! Lock order: core, then a port or the inbox. No page guard is ever dropped under the core's lock. Drivers of other
//! ports are woken after the lock has been released.

use crate::addr::Lba;
use crate::core::{Core, Cx};
use crate::device::Members;
use crate::ids::Port;
use crate::inbox::{Inbox, Put};
use crate::map::{Entry, FrameId, MapTable, Moves, Unpinned};
use crate::page::Pool;
use crate::planted::Bug;
use crate::port::PortQueue;
use crate::stats::Counters;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// No timer.
pub(crate) const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) map: MapTable,
    /// Data grains of a write-out at most.
    pub(crate) write_out_data_max: usize,
    pub(crate) counters: Counters,
    pub(crate) ports: Vec<PortQueue>,
    pub(crate) core: Mutex<Core>,
    pub(crate) inbox: Inbox,
    /// Somebody waits for a frame: an unpin that frees one must say so.
    pub(crate) frames_wanted: AtomicBool,
    /// A part of the map is not in memory: what seems unmapped may be anything.
    pub(crate) map_cold: AtomicBool,
    /// Grains get other names: what seems unmapped may be on its way.
    pub(crate) moves: Moves,
    /// There is a snapshot: pages for writing are had behind the lock.
    pub(crate) keeping: AtomicBool,
    /// No more changes: failed or shutting down.
    pub(crate) closed: AtomicBool,
    /// Last time a driver told.
    pub(crate) now: AtomicU64,
    /// When dirty pages are due.
    pub(crate) deadline: AtomicU64,
    /// Wall clock minus `now`.
    pub(crate) wall_offset_ns: u64,
    pub(crate) age_ns: u64,
    /// Pages are due for write-out as soon as they are put.
    pub(crate) write_through: bool,
    /// The driver of the background's port writes out what is due because there is much of it.
    pub(crate) write_out_apart: bool,
    /// There is something of that for it to do.
    pub(crate) write_out_due: AtomicBool,
    /// The device keeps no data: none is copied or checked.
    pub(crate) dataless: bool,
    /// Records that the copy of one grain takes at most.
    pub(crate) names_max: usize,
    /// Free segments are discarded.
    pub(crate) discard: bool,
    /// The devices of an array.
    pub(crate) members: Option<Arc<Members>>,
    /// Times that pages to be cloned are made urgent before they are copied.
    pub(crate) clone_urges: u32,
    pub(crate) planted: Option<Bug>,
}

impl Shared {
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Port that carries what nobody asked for in particular.
    pub(crate) const BACKGROUND: Port = Port(0);

    /// Runs `f` on the core; media operations go to `port`. Then wakes the drivers of ports that got something,
    /// except `port` when its own driver is calling.
    pub(crate) fn with_core<R>(
        self: &Arc<Self>,
        port: Port,
        own_driver: bool,
        f: impl FnOnce(&mut Core, Cx<'_>) -> R,
    ) -> R {
        let mut core = self.core.lock().expect("core poisoned by a panic");
        let cx = Cx { sh: self, port };
        let result = f(&mut core, cx);
        let wakes = core.take_wakes();
        drop(core);
        for woken in wakes {
            if woken != port || !own_driver {
                self.ports[usize::from(woken.0)].wake();
            }
        }
        result
    }

    /// Leaves work to the moment when the driver of `port`, who is calling, asks for actions.
    pub(crate) fn owe(&self, port: Port) {
        self.ports[usize::from(port.0)].owe();
    }

    /// Gives a pin back; the first half of every put.
    pub(crate) fn unpin(
        self: &Arc<Self>,
        entry: &Entry,
        lba: Lba,
        frame: FrameId,
        wrote: bool,
        port: Port,
    ) {
        let put = match wrote {
            true => self.inbox.put(entry, lba, frame),
            false => Put {
                unpinned: entry.unpin(frame, false),
                waiting: None,
            },
        };
        if let Some(waiting) = put.waiting {
            self.turned_dirty(waiting, port);
        }
        match put.unpinned {
            Unpinned::Detached => {
                self.with_core(port, false, |core, cx| core.orphan_unpinned(cx, frame));
            }
            Unpinned::Done { last, .. } => {
                if last && self.frames_wanted.load(Ordering::SeqCst) {
                    self.with_core(port, false, |core, cx| core.frame_unpinned(cx, frame, lba));
                }
            }
        }
    }

    /// A page turned dirty; so many are in the inbox.
    fn turned_dirty(self: &Arc<Self>, waiting: usize, port: Port) {
        self.arm_timer();
        if self.write_through || waiting >= 64.min(1 + self.pool.frames() / 8) {
            self.with_core(port, false, |core, cx| core.many_put(cx));
        }
    }

    /// Makes sure that a timer runs while there are dirty pages.
    pub(crate) fn arm_timer(&self) {
        if self.deadline.load(Ordering::SeqCst) == NEVER {
            let due = self.now.load(Ordering::SeqCst).saturating_add(self.age_ns);
            let armed =
                self.deadline
                    .compare_exchange(NEVER, due, Ordering::SeqCst, Ordering::SeqCst);
            if armed.is_ok() {
                self.ports[usize::from(Self::BACKGROUND.0)].wake();
            }
        }
    }

    /// Makes sure that a timer ends at this time, or before.
    pub(crate) fn wake_at(&self, due: u64) {
        if self.deadline.fetch_min(due, Ordering::SeqCst) > due {
            self.ports[usize::from(Self::BACKGROUND.0)].wake();
        }
    }

    /// Holders of exclusive pages put them; of each, whether it was wholly filled.
    pub(crate) fn publish(
        self: &Arc<Self>,
        pages: impl IntoIterator<Item = (FrameId, bool)>,
        port: Port,
    ) {
        self.with_core(port, false, |core, cx| core.publish(cx, pages));
    }
}
