//! Where appends go: behind the end of the file, which the kernel need not know.
//!
//! The kernel sends the end that it knows of, and lets nobody else on the mount write until an append is answered. But a
//! remote peer may have moved the end without it, so it is looked up here.
//!
//! A large append comes as several requests. Those of a program that waits (`write`) come one after the other, each behind
//! the end that the one before has made. Those of one that does not (io_uring, AIO) come all at once, and are served by
//! several threads in any order: none of them may go where the end happens to be at that moment. All requests of one append
//! are shifted alike, by what the kernel's end is wrong.
//!
//! | offset of the kernel, and the end | taken for | goes |
//! |---|---|---|
//! | others of the file are under way, or it was left out before | a part | as far shifted |
//! | neither has been moved since the last append | an append, or the next part of one | as far shifted |
//! | it is the end | an append | there |
//! | the end is where the last append left it, and this leaves something out | a part that has overtaken others | as far shifted |
//! | behind another end, and not where the last append ended | a part that has overtaken others | there |
//! | anything else | an append | to the end |

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::inode::InodeNo;

/// An open file.
#[derive(Debug, Default)]
struct File {
    opens: u64,
    /// Somebody appends to it.
    appends: bool,
    last: Last,
}

/// The last append to a file, or what is known of its end. All offsets are the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Last {
    /// Where it ends, as far as its requests have come.
    end: u64,
    /// What is added to the kernel's offsets, modulo 2^64.
    shift: u64,
    /// Requests of it that are under way.
    under_way: u32,
    /// What requests that overtook others have left out, and that has not come since.
    left_out: Vec<Range<u64>>,
}

impl Last {
    fn at(end: u64) -> Self {
        Self {
            end,
            ..Self::default()
        }
    }

    /// Where a request goes that the kernel sends for `offset`, while the file ends at `end`.
    fn place(&mut self, offset: u64, len: u64, end: u64) -> u64 {
        let left_at = self.end.wrapping_add(self.shift);
        let is_part =
            self.under_way > 0 || self.left_out.iter().any(|range| range.contains(&offset));
        let overtakes = match end == left_at {
            true => offset > self.end,
            // Or the end has been moved back, and this goes on where the kernel believes it.
            false => offset > end && !(end < left_at && offset == self.end),
        };
        match (is_part, offset == end, overtakes) {
            (true, ..) => {}
            // It goes on.
            (false, ..) if end == left_at && offset == self.end => {}
            (false, true, _) => *self = Self::at(end),
            (false, false, true) if end == left_at => {}
            // Behind an end that the kernel has made itself.
            (false, false, true) => *self = Self::at(end),
            (false, false, false) => {
                *self = Self::at(offset);
                self.shift = end.wrapping_sub(offset);
            }
        }
        let came = offset..offset + len;
        let left_out = std::mem::take(&mut self.left_out).into_iter();
        let left_out = left_out.flat_map(|range| {
            let before = range.start..range.end.min(came.start);
            let behind = range.start.max(came.end)..range.end;
            [before, behind]
        });
        self.left_out = left_out
            .chain(std::iter::once(self.end..offset))
            .filter(|range| !range.is_empty())
            .collect();
        self.end = self.end.max(came.end);
        self.under_way += 1;
        offset.wrapping_add(self.shift)
    }
}

/// Appends to the files of a mount.
#[derive(Debug, Default)]
pub(super) struct Appends {
    files: Mutex<HashMap<InodeNo, File>>,
    /// Files that somebody appends to.
    appended: AtomicUsize,
}

impl Appends {
    fn files(&self) -> MutexGuard<'_, HashMap<InodeNo, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of `size` bytes was opened; to append to it, or not.
    pub(super) fn opened(&self, ino: InodeNo, size: u64, appends: bool) {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        file.opens += 1;
        if appends {
            self.begin(file, size);
        }
    }

    /// From now on it is looked after where a file ends.
    fn begin(&self, file: &mut File, end: u64) {
        if !file.appends {
            file.appends = true;
            file.last = Last::at(end);
            self.appended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An open file has gone.
    pub(super) fn released(&self, ino: InodeNo) {
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else {
            return;
        };
        file.opens = file.opens.saturating_sub(1);
        if file.opens == 0 {
            let appends = file.appends;
            files.remove(&ino);
            self.appended
                .fetch_sub(usize::from(appends), Ordering::Relaxed);
        }
    }

    /// Where an append of `len` bytes goes that the kernel sends for `offset`; `end` says where the file ends.
    pub(super) fn place<E>(
        self: &Arc<Self>,
        ino: InodeNo,
        offset: u64,
        len: u64,
        end: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Placed, E> {
        let mut files = self.files();
        let end = end()?;
        let file = files.entry(ino).or_default();
        // `fcntl` says nothing.
        self.begin(file, offset);
        let offset = file.last.place(offset, len, end);
        Ok(Placed {
            appends: Arc::clone(self),
            ino,
            offset,
        })
    }

    /// Something else than an append has been written through the mount, up to `end`: the kernel knows.
    pub(super) fn wrote(&self, ino: InodeNo, end: u64) {
        if self.appended.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(file) = self.files().get_mut(&ino)
            && file.last.end < end
        {
            file.last = Last::at(end);
        }
    }

    /// The size of a file has been set through the mount: the kernel knows.
    pub(super) fn resized(&self, ino: InodeNo, size: u64) {
        if let Some(file) = self.files().get_mut(&ino) {
            file.last = Last::at(size);
        }
    }

    /// The kernel has been told the size of a file, because it asked, or with a name. Of an append that may have parts to come it has known it before.
    pub(super) fn told(&self, ino: InodeNo, size: u64) {
        if self.appended.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(file) = self.files().get_mut(&ino)
            && file.last.under_way == 0
            && file.last.left_out.is_empty()
        {
            file.last = Last::at(size);
        }
    }
}

/// An append that has been given its place; to be dropped when it is over.
#[derive(Debug)]
pub(super) struct Placed {
    appends: Arc<Appends>,
    ino: InodeNo,
    /// Where it goes.
    pub(super) offset: u64,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(file) = self.appends.files().get_mut(&self.ino) {
            file.last.under_way = file.last.under_way.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = 100;

    /// A file, its end, and what the kernel believes of it.
    struct Scene {
        last: Last,
        end: u64,
        kernel: u64,
    }

    impl Scene {
        fn new(end: u64) -> Self {
            Self {
                last: Last::at(end),
                end,
                kernel: end,
            }
        }

        /// An append of as many parts as `order` names, which are served one after the other in this order; answers where
        /// the append begins, after having looked that it is whole.
        fn append(&mut self, order: &[u64]) -> u64 {
            let mut placed = Vec::new();
            for part in order {
                let at = self.last.place(self.kernel + part * PART, PART, self.end);
                self.last.under_way -= 1;
                self.end = self.end.max(at + PART);
                placed.push(at - part * PART);
            }
            assert!(placed.iter().all(|at| *at == placed[0]), "{placed:?}");
            self.kernel += order.len() as u64 * PART;
            placed[0]
        }
    }

    /// However the parts of appends overtake each other, each append is in one piece behind what was there.
    #[test]
    fn parts_in_any_order() {
        let orders = [
            &[0][..],
            &[0, 1, 2],
            &[1, 0],
            &[2, 0, 1],
            &[2, 1, 0],
            &[1, 2, 3, 0],
            &[0, 3, 1, 2],
            &[3, 1, 0, 2],
        ];
        for first in orders {
            for second in orders {
                let mut scene = Scene::new(1000);
                assert_eq!(scene.append(first), 1000);
                assert_eq!(scene.last.left_out, []);
                let end = scene.end;
                assert_eq!(scene.append(second), end, "{first:?}, {second:?}");
            }
        }
    }

    /// The end that a peer has made counts, before it and behind it, and for what comes after that.
    #[test]
    fn a_peer_moves_the_end() {
        for moved in [0, 5, 1000 - PART, 1001, 20_000] {
            let mut scene = Scene::new(1000);
            scene.append(&[0]);
            scene.end = moved;
            assert_eq!(scene.append(&[0, 1]), moved);
            assert_eq!(scene.append(&[0]), moved + 2 * PART);
            assert_eq!(scene.append(&[0, 2, 1]), moved + 3 * PART);
            assert_eq!(scene.append(&[0]), moved + 6 * PART);
            // The kernel has looked.
            scene.kernel = scene.end;
            scene.last = Last::at(scene.end);
            assert_eq!(scene.append(&[1, 0]), moved + 7 * PART);
        }
    }

    /// What is changed through the mount the kernel knows, and appends go on from there, whichever part comes first.
    #[test]
    fn other_changes_of_the_mount() {
        for order in [&[0, 1][..], &[1, 0]] {
            let mut scene = Scene::new(1000);
            scene.append(&[1, 0]);
            (scene.end, scene.kernel) = (PART, PART);
            scene.last = Last::at(PART);
            assert_eq!(scene.append(order), PART);
            (scene.end, scene.kernel) = (70_000, 70_000);
            assert_eq!(scene.append(order), 70_000);
        }
    }

    /// While a part is under way, however far the file has grown with it, the others are parts of the same append.
    #[test]
    fn parts_at_once() {
        let mut last = Last::at(1000);
        assert_eq!(last.place(1000 + PART, PART, 1000), 1000 + PART);
        assert_eq!(last.place(1000, PART, 1000), 1000);
        let third = 1000 + 2 * PART;
        assert_eq!(last.place(third, PART, 1000 + PART), third);
        assert_eq!(last.under_way, 3);
    }

    /// Who wrote the file before has nothing to do with where appends go.
    #[test]
    fn opened_again() {
        let appends = Arc::new(Appends::default());
        let ino = InodeNo(7);
        appends.opened(ino, 0, false);
        appends.wrote(ino, 1000);
        appends.opened(ino, 1000, true);
        let place = |offset, end| appends.place(ino, offset, PART, || Ok::<_, ()>(end));
        assert_eq!(place(1000, 5).unwrap().offset, 5);
        appends.wrote(ino, 7000);
        assert_eq!(place(7000 + PART, 7000).unwrap().offset, 7000 + PART);
        assert_eq!(place(7000, 7000 + 2 * PART).unwrap().offset, 7000);
    }

    /// What the kernel has looked at is where its next append begins, also when a later part of that comes first.
    #[test]
    fn the_kernel_looks() {
        let appends = Arc::new(Appends::default());
        let ino = InodeNo(7);
        let place = |offset, end| appends.place(ino, offset, PART, || Ok::<_, ()>(end));
        appends.opened(ino, 1000 - PART, true);
        drop(place(1000 - PART, 1000 - PART));
        // A peer has cut the file, and the kernel hears of it.
        appends.told(ino, 1000 - PART);
        assert_eq!(place(1000, 1000 - PART).unwrap().offset, 1000);
        assert_eq!(place(1000 - PART, 1000 + PART).unwrap().offset, 1000 - PART);
    }

    /// Somebody else who looks in the middle of an append does not take its parts from each other: neither while one is under way,
    /// nor while what one has overtaken is to come.
    #[test]
    fn looks_amid_an_append() {
        let scene = || {
            let appends = Arc::new(Appends::default());
            appends.opened(InodeNo(7), 1000, true);
            appends
        };
        // A peer has made the file longer, of which the kernel does not know.
        let end = 5000;
        let place = |appends: &Arc<Appends>, part, end| {
            let offset = 1000 + part * PART;
            let placed = appends.place(InodeNo(7), offset, PART, || Ok::<_, ()>(end));
            placed.unwrap()
        };
        let appends = scene();
        let first = place(&appends, 0, end);
        appends.told(InodeNo(7), end);
        assert_eq!(first.offset, end);
        assert_eq!(place(&appends, 1, end).offset, end + PART);

        let appends = scene();
        drop(place(&appends, 0, end));
        assert_eq!(place(&appends, 2, end + PART).offset, end + 2 * PART);
        appends.told(InodeNo(7), end + 3 * PART);
        assert_eq!(place(&appends, 1, end + 3 * PART).offset, end + PART);
    }

    /// Nothing is remembered of files that are not open.
    #[test]
    fn forgotten_with_the_last_open() {
        let appends = Arc::new(Appends::default());
        let ino = InodeNo(7);
        appends.opened(ino, 0, false);
        appends.opened(ino, 10, true);
        let placed = appends.place(ino, 10, 5, || Ok::<_, ()>(10)).unwrap();
        assert_eq!(placed.offset, 10);
        drop(placed);
        assert!(appends.place(ino, 15, 5, || Err(())).is_err());
        appends.released(ino);
        assert_eq!(appends.files().len(), 1);
        appends.released(ino);
        assert!(appends.files().is_empty());
        assert_eq!(appends.appended.load(Ordering::Relaxed), 0);
    }
}
