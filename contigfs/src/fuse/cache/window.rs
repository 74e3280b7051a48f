//! Windows: stores past the page cache that are under way in one file, and what the kernel does to its copies meanwhile.
//!
//! States and the argument why nothing gets lost are in `docs/coherence.md`.
//!
//! # Invariants
//! - W1. A write-back counts in every window of its pages that was RECALLING when it began, until it ends.
//! - W2. STORING is entered only when none counts, and none begins then.
//! - W3. `filled` of a STORED window are the pages whose copies may be older than its store.

use std::collections::BTreeSet;
use std::ops::Range;

use ftl::GRAIN_BYTES;

/// The kernel's page.
const PAGE: u64 = GRAIN_BYTES as u64;

/// Names a window of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowId(u64);

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Copies are dropped.
    Recalling,
    /// As before, and write-backs that began before are awaited; others wait.
    Closing,
    /// The store is made.
    Storing,
    /// The store of these bytes has been made; copies that were filled before are dropped.
    Stored(Range<u64>),
}

#[derive(Debug)]
struct Window {
    id: WindowId,
    pages: Range<u64>,
    phase: Phase,
    /// Pages that were filled since it was opened, and may be stale.
    filled: BTreeSet<u64>,
    /// Write-backs under way.
    writing: u32,
}

/// What a write-back has to mind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WriteBack {
    windows: Vec<WindowId>,
    /// Bytes that were stored behind the back of the page, in any order.
    pub(super) left_out: Vec<Range<u64>>,
}

/// The windows of one file.
#[derive(Debug, Default)]
pub(super) struct Windows {
    open: Vec<Window>,
    next: u64,
}

impl Windows {
    /// Opens a window over the pages of `bytes`.
    pub(super) fn open(&mut self, bytes: &Range<u64>) -> WindowId {
        self.open_in(bytes, Phase::Recalling)
    }

    /// Opens a window over pages of which there are no copies: it is STORING.
    pub(super) fn open_storing(&mut self, bytes: &Range<u64>) -> WindowId {
        self.open_in(bytes, Phase::Storing)
    }

    fn open_in(&mut self, bytes: &Range<u64>, phase: Phase) -> WindowId {
        self.next += 1;
        let id = WindowId(self.next);
        self.open.push(Window {
            id,
            pages: pages(bytes),
            phase,
            filled: BTreeSet::new(),
            writing: 0,
        });
        id
    }

    /// No store is under way?
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The kernel is about to get copies; to be called before the content is read.
    pub(super) fn fill(&mut self, bytes: &Range<u64>) {
        for window in &mut self.open {
            for page in common(&window.pages, &pages(bytes)) {
                match window.phase {
                    // The old copy has gone, or this one would not have been asked for.
                    Phase::Stored(_) => window.filled.remove(&page),
                    _ => window.filled.insert(page),
                };
            }
        }
    }

    /// The kernel gives back pages that were stored to. `None`: a store is just being made, ask again when that is over.
    pub(super) fn write_back(&mut self, bytes: &Range<u64>) -> Option<WriteBack> {
        let pages = pages(bytes);
        let meets = |window: &&mut Window| !common(&window.pages, &pages).is_empty();
        let mut write_back = WriteBack::default();
        let waits = |window: &Window| matches!(window.phase, Phase::Closing | Phase::Storing);
        if self.open.iter_mut().filter(meets).any(|w| waits(w)) {
            return None;
        }
        for window in self.open.iter_mut().filter(meets) {
            match &window.phase {
                Phase::Stored(stored) => {
                    for &page in window.filled.range(common(&window.pages, &pages)) {
                        let left_out = common(stored, &(page * PAGE..(page + 1) * PAGE));
                        if !left_out.is_empty() {
                            write_back.left_out.push(left_out);
                        }
                    }
                }
                _ => {
                    window.writing += 1;
                    write_back.windows.push(window.id);
                }
            }
        }
        Some(write_back)
    }

    /// A write-back is over. Answers the windows that waited for it and are STORING now.
    pub(super) fn end_write_back(&mut self, write_back: &WriteBack) -> Vec<WindowId> {
        let mut storing = Vec::new();
        for &id in &write_back.windows {
            let Some(window) = self.find(id) else {
                continue;
            };
            window.writing -= 1;
            if window.writing == 0 && window.phase == Phase::Closing {
                window.phase = Phase::Storing;
                storing.push(id);
            }
        }
        storing
    }

    /// All copies from before the window was opened have been dropped. True: it is STORING now; false: it will be when
    /// [`end_write_back`](Self::end_write_back) says so.
    pub(super) fn close(&mut self, id: WindowId) -> bool {
        let Some(window) = self.find(id) else {
            return true;
        };
        assert_eq!(window.phase, Phase::Recalling, "recalled once");
        let ready = window.writing == 0;
        window.phase = if ready {
            Phase::Storing
        } else {
            Phase::Closing
        };
        ready
    }

    /// The store of `bytes` has been made. `None`: that was all, the window is no more. Otherwise the copies of a
    /// range have to be dropped before it ends.
    pub(super) fn stored(&mut self, id: WindowId, bytes: Range<u64>) -> Option<Range<u64>> {
        let window = self.find(id)?;
        assert_eq!(window.phase, Phase::Storing, "stored once");
        let stale = (window.filled.first().copied()).zip(window.filled.last().copied());
        let Some((first, last)) = stale else {
            self.end(id);
            return None;
        };
        window.phase = Phase::Stored(bytes);
        Some(first * PAGE..(last + 1) * PAGE)
    }

    /// Ends a window, whatever it is doing.
    pub(super) fn end(&mut self, id: WindowId) {
        self.open.retain(|window| window.id != id);
    }

    fn find(&mut self, id: WindowId) -> Option<&mut Window> {
        self.open.iter_mut().find(|window| window.id == id)
    }
}

/// `bytes` without what is left out, in order.
pub(super) fn without(bytes: Range<u64>, left_out: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = vec![bytes];
    for hole in left_out {
        let parts = rest.into_iter().flat_map(|part| {
            let before = part.start..part.end.min(hole.start);
            let behind = part.start.max(hole.end)..part.end;
            [before, behind]
        });
        rest = parts.filter(|part| !part.is_empty()).collect();
    }
    rest
}

fn pages(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    const BYTES: Range<u64> = PAGE + 8..PAGE + 16;
    const COPY: Range<u64> = PAGE..2 * PAGE;

    /// Nobody looks meanwhile: the window is over with the store.
    #[test]
    fn a_store_that_nobody_notices() {
        let mut windows = Windows::default();
        let id = windows.open(&BYTES);
        let recalled = windows.write_back(&COPY).unwrap();
        assert_eq!(recalled.left_out, []);
        assert_eq!(windows.end_write_back(&recalled), []);
        assert!(windows.close(id));
        assert_eq!(windows.stored(id, BYTES), None);
        assert!(windows.is_empty());
    }

    /// Without copies there is nothing to recall; one that comes in the middle is treated as any other.
    #[test]
    fn a_window_without_copies() {
        let mut windows = Windows::default();
        let id = windows.open_storing(&BYTES);
        assert_eq!(windows.write_back(&COPY), None);
        windows.fill(&COPY);
        assert_eq!(windows.stored(id, BYTES), Some(COPY));
        assert_eq!(windows.write_back(&COPY).unwrap().left_out, [BYTES]);
        windows.end(id);
        let id = windows.open_storing(&BYTES);
        assert_eq!(windows.stored(id, BYTES), None);
        assert!(windows.is_empty());
    }

    /// A page that was filled before the store is invalidated again, and its write-back leaves the store alone.
    #[test]
    fn a_page_filled_too_early() {
        let mut windows = Windows::default();
        let id = windows.open(&BYTES);
        windows.fill(&(0..4 * PAGE));
        assert!(windows.close(id));
        assert_eq!(windows.write_back(&COPY), None);
        assert_eq!(windows.stored(id, BYTES), Some(COPY));
        let stale = windows.write_back(&COPY).unwrap();
        assert_eq!(stale.left_out, from_ref(&BYTES));
        assert_eq!(windows.end_write_back(&stale), []);
        windows.fill(&COPY);
        assert_eq!(windows.write_back(&COPY).unwrap().left_out, []);
        windows.end(id);
        assert!(windows.is_empty());
    }

    /// A write-back under way is awaited, and holds up no other page.
    #[test]
    fn a_store_waits_for_write_backs() {
        let mut windows = Windows::default();
        let id = windows.open(&BYTES);
        let early = windows.write_back(&COPY).unwrap();
        assert!(!windows.close(id));
        assert_eq!(windows.write_back(&COPY), None);
        assert_eq!(windows.write_back(&(0..PAGE)), Some(WriteBack::default()));
        assert_eq!(windows.end_write_back(&early), [id]);
        assert_eq!(windows.write_back(&COPY), None);
        assert_eq!(windows.stored(id, BYTES), None);
        assert!(windows.write_back(&COPY).is_some());
    }

    /// Two stores into one page: each leaves out its own bytes for copies older than itself.
    #[test]
    fn two_stores_into_one_page() {
        let mut windows = Windows::default();
        let (one, two) = (windows.open(&BYTES), windows.open(&COPY));
        windows.fill(&COPY);
        assert!(windows.close(one));
        assert_eq!(windows.stored(one, BYTES), Some(COPY));
        let first = windows.write_back(&COPY).unwrap();
        assert_eq!(first.left_out, from_ref(&BYTES));
        assert!(!windows.close(two));
        assert_eq!(windows.end_write_back(&first), [two]);
        windows.end(two);
        assert!(windows.write_back(&COPY).is_some());
    }

    #[test]
    fn what_is_left() {
        assert_eq!(without(0..10, &[]), from_ref(&(0..10)));
        assert_eq!(without(0..10, &[2..4, 8..12]), [0..2, 4..8]);
        assert_eq!(without(4..10, from_ref(&(2..20))), []);
    }
}
