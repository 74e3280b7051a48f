//! Reads that no thread waits for: the answer is given by whoever hears that the page has come.
//!
//! Meanwhile nobody holds the content of the file, which may be cut off, or be moved, and its place be given to another.
//! So the bytes are copied first; then it is seen whether the file is as it was when it was asked where they are
//! ([`Inode::is_as_at`]). If it is not, or there is no page, a thread reads as usual.

use std::sync::Arc;
use std::thread::Builder;

use ftl::GRAIN_BYTES;

use super::data::place;
use super::{Fs, ReadOptions, shared};
use crate::error::FsError;
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr, PageDone};

impl<S: BlockStore + 'static> Fs<S> {
    /// As [`read`](Self::read) of at most a grain, without waiting for the store, if that had rather not be waited for: what
    /// `done` gives is told what is read, by another thread. False: nothing is done, and `done` was not asked.
    pub(crate) fn read_then<D>(
        self: &Arc<Self>,
        ino: InodeNo,
        (offset, len): (u64, usize),
        options: ReadOptions,
        mut done: impl FnMut() -> D,
    ) -> bool
    where
        D: FnOnce(Result<&[u8], FsError>) + Send + 'static,
    {
        if len > GRAIN_BYTES || !self.store.reads_later() {
            return false;
        }
        let Ok(inode) = self.inode(ino) else {
            return false;
        };
        let found = {
            let _content = shared(&inode.content);
            let found = inode.live_file().and_then(|()| place(&inode));
            found.map(|found| (found, inode.moment()))
        };
        let Ok(((range, size), moment)) = found else {
            return false;
        };
        let n = size.saturating_sub(offset).min(len as u64) as usize;
        let at = ByteAddr::new(range.start, offset);
        if n == 0 || at.in_grain() + n > GRAIN_BYTES {
            return false;
        }
        let mut became_dirty = false;
        let mut then = || -> PageDone {
            became_dirty = !options.keep_atime && self.touch_atime(&inode);
            let (fs, inode, done) = (Arc::clone(self), Arc::clone(&inode), done());
            Box::new(move |page| {
                let mut bytes = Vec::with_capacity(GRAIN_BYTES);
                let is_there = page.map(|page| page.append_to(&mut bytes)).is_ok();
                if is_there && inode.is_as_at(moment) {
                    return done(Ok(&bytes));
                }
                // This waits, which is not for the thread that tells of pages. If there can be no other, whoever asked is told so by
                // the end of `done`.
                let again = move || {
                    bytes.resize(n, 0);
                    let read = fs.read_with(ino, offset, &mut bytes, options);
                    done(read.map(|n| &bytes[..n]));
                };
                if let Err(error) = Builder::new().spawn(again) {
                    tracing::error!(%error, "no thread to read a file that was changed");
                }
            })
        };
        let begun = self.store.read_then(at, n, &mut then);
        self.count_dirty(became_dirty);
        begun
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Mutex, PoisonError};

    use ftl::{AtomicBatch, Lba, LbaRange, Space};

    use super::*;
    use crate::SetAttr;
    use crate::fs::{CopyRange, FallocMode, FormatOptions, FsOptions, NewNode, WriteOptions};
    use crate::mem_store::MemStore;
    use crate::span::Span;
    use crate::store::StoreError;

    const GRAIN: u64 = GRAIN_BYTES as u64;
    const OLD: u8 = 1;
    const NEXT: u8 = 2;
    const OTHER: u8 = 3;

    /// A store that tells of pages when it is asked to.
    struct Late {
        inner: MemStore,
        asked: Mutex<Vec<(ByteAddr, usize, PageDone)>>,
    }

    impl Late {
        /// Tells who asked what is there now, or this.
        fn tell(&self, error: Option<StoreError>) {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            for (at, len, done) in asked.drain(..) {
                let mut bytes = vec![0; len];
                match error {
                    Some(error) => done(Err(error)),
                    None => {
                        self.inner.read(at, &mut bytes).unwrap();
                        done(Ok(Span::of(&bytes)));
                    }
                }
            }
        }
    }

    impl BlockStore for Late {
        fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
            self.inner.read(at, buf)
        }

        fn reads_later(&self) -> bool {
            true
        }

        fn read_then(&self, at: ByteAddr, len: usize, done: &mut dyn FnMut() -> PageDone) -> bool {
            self.asked.lock().unwrap().push((at, len, done()));
            true
        }

        fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
            self.inner.write(at, data)
        }

        fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
            self.inner.commit(batch)
        }

        fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
            self.inner.sync(range)
        }

        fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
            self.inner.next_mapped(range)
        }

        fn space(&self) -> Space {
            self.inner.space()
        }
    }

    /// A file of two grains, the other that lies behind it, and a read of the first that is under way.
    struct Read {
        fs: Arc<Fs<Arc<Late>>>,
        ino: InodeNo,
        other: InodeNo,
        answer: Receiver<Result<Vec<u8>, FsError>>,
    }

    impl Read {
        fn new() -> Self {
            let store = Arc::new(Late {
                inner: MemStore::new(1000),
                asked: Mutex::default(),
            });
            Fs::format(&store, &FormatOptions::default()).unwrap();
            // Ranges have little room, so that files which grow have to move.
            let tight = FsOptions {
                file_order: 1,
                ..FsOptions::default()
            };
            let fs = Arc::new(Fs::mount_with(store, &tight).unwrap());
            let make = |name: &str, grains: &[u8]| {
                let made = fs.create(InodeNo::ROOT, OsStr::new(name), &NewNode::file());
                let ino = made.unwrap().ino;
                fs.open(ino).unwrap();
                let bytes: Vec<u8> = grains.iter().flat_map(|&b| [b; GRAIN_BYTES]).collect();
                fs.write(ino, 0, &bytes, WriteOptions::default()).unwrap();
                ino
            };
            let (ino, other) = (make("file", &[OLD, NEXT]), make("other", &[OTHER]));
            let answer = ask(&fs, ino);
            Self {
                fs,
                ino,
                other,
                answer,
            }
        }

        fn answer(&self) -> Vec<u8> {
            self.fs.store.tell(None);
            self.answer.recv().unwrap().unwrap()
        }
    }

    fn ask(fs: &Arc<Fs<Arc<Late>>>, ino: InodeNo) -> Receiver<Result<Vec<u8>, FsError>> {
        let (tell, answer) = channel();
        let mut done = || {
            let tell = tell.clone();
            move |read: Result<&[u8], FsError>| tell.send(read.map(<[u8]>::to_vec)).unwrap()
        };
        let options = ReadOptions::default();
        assert!(fs.read_then(ino, (0, GRAIN_BYTES), options, &mut done));
        assert!(answer.try_recv().is_err());
        answer
    }

    /// A late answer has what the file has or had, whatever became meanwhile of the place where it was asked for: never the
    /// bytes of another (I11).
    #[test]
    fn answers_are_of_the_file() {
        type Change = fn(&Read);
        let changes: [(&str, Change, Option<u8>); 7] = [
            ("nothing", |_| {}, Some(OLD)),
            (
                "another write",
                |read| {
                    let bytes = [OTHER; 8];
                    let options = WriteOptions::default();
                    read.fs.write(read.other, 0, &bytes, options).unwrap();
                },
                Some(OLD),
            ),
            (
                "cut off",
                |read| {
                    let none = SetAttr {
                        size: Some(0),
                        ..SetAttr::default()
                    };
                    read.fs.set_attr(read.ino, &none).unwrap();
                },
                None,
            ),
            (
                "a hole",
                |read| {
                    let hole = FallocMode::PunchHole;
                    read.fs.fallocate(read.ino, 0, GRAIN, hole).unwrap();
                },
                Some(0),
            ),
            (
                "closed up",
                |read| {
                    let collapse = FallocMode::CollapseRange;
                    read.fs.fallocate(read.ino, 0, GRAIN, collapse).unwrap();
                },
                Some(NEXT),
            ),
            (
                "cloned over",
                |read| {
                    let whole = CopyRange {
                        from: read.other,
                        from_offset: 0,
                        to: read.ino,
                        to_offset: 0,
                        len: GRAIN,
                    };
                    assert_eq!(read.fs.copy_range(&whole), Ok(GRAIN));
                },
                Some(OTHER),
            ),
            (
                "moved, and its place taken",
                |read| {
                    let place = |ino| read.fs.inode(ino).unwrap().range().unwrap();
                    let before = place(read.ino);
                    let options = WriteOptions::default();
                    let bytes = [NEXT; GRAIN_BYTES];
                    read.fs.write(read.ino, 1 << 30, &bytes, options).unwrap();
                    let after = place(read.ino);
                    assert_ne!(before.start, after.start);
                    let at = ByteAddr::new(before.start, 0);
                    read.fs
                        .store
                        .inner
                        .write(at, &[OTHER; GRAIN_BYTES])
                        .unwrap();
                },
                Some(OLD),
            ),
        ];
        for (what, change, expected) in changes {
            let read = Read::new();
            change(&read);
            let expected = expected.map_or(vec![], |byte| vec![byte; GRAIN_BYTES]);
            assert!(read.answer() == expected, "{what}");
        }
    }

    /// What the store does not tell is read as usual, with its answer or its error.
    #[test]
    fn without_a_page_it_is_read() {
        let Read {
            fs, ino, answer, ..
        } = Read::new();
        fs.store.tell(Some(StoreError::Failed));
        assert!(answer.recv().unwrap().unwrap() == [OLD; GRAIN_BYTES]);
        let lba = fs.inode(ino).unwrap().range().unwrap().start;
        fs.store.inner.damage(lba);
        let damaged = StoreError::Damaged { lba };
        let answer = ask(&fs, ino);
        fs.store.tell(Some(damaged));
        assert_eq!(answer.recv().unwrap(), Err(damaged.into()));
    }
}
