//! Reading ahead of those who read one range behind the other.
//!
//! A program that reads a file from its beginning to its end waits for the device, then the device waits for it. Who is
//! seen to read sequentially finds the next pages in memory, or on their way. How far ahead grows with how much was read in
//! a row, and is bounded; pages brought in are like all others, so what nobody reads is soon forgotten.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use ftl::LbaRange;

use super::streams::Stream;

/// Threads that bring pages in: one waits for the device while the other checks what it has read.
pub(super) const THREADS: usize = 2;
/// Grains brought in at once (1 MiB).
const CHUNK_GRAINS: u64 = 256;
/// Farthest ahead (4 MiB), if the pool is not small.
const WINDOW_GRAINS_MAX: u64 = 4 * CHUNK_GRAINS;
/// Sequential readers that are known at once.
const STREAMS_MAX: usize = 16;
/// Chunks that may wait for a thread; more are not read ahead.
const CHUNKS_MAX: usize = 8;

/// What reads ahead.
#[derive(Debug)]
pub(super) struct Readahead {
    streams: Mutex<Streams>,
    chunks: Mutex<Option<SyncSender<LbaRange>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readahead {
    /// Starts the threads; `bring_in` reads a range. At most `window` grains are read ahead of anybody.
    pub(super) fn start(
        window: u64,
        bring_in: impl Fn(LbaRange) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (chunks, receiver) = sync_channel(CHUNKS_MAX);
        let (receiver, bring_in) = (Arc::new(Mutex::new(receiver)), Arc::new(bring_in));
        let start = |n| {
            let (receiver, bring_in) = (Arc::clone(&receiver), Arc::clone(&bring_in));
            let next = |receiver: &Mutex<Receiver<LbaRange>>| lock(receiver).recv();
            let work = move || {
                while let Ok(chunk) = next(&receiver) {
                    bring_in(chunk);
                }
            };
            Builder::new().name(format!("readahead-{n}")).spawn(work)
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<_>>()?;
        Ok(Self {
            streams: Mutex::new(Streams::new(window.min(WINDOW_GRAINS_MAX))),
            chunks: Mutex::new(Some(chunks)),
            threads: Mutex::new(threads),
        })
    }

    /// Somebody reads `range` now.
    pub(super) fn reads(&self, range: LbaRange) {
        let Some(ahead) = lock(&self.streams).reads(range) else {
            return;
        };
        let chunks = lock(&self.chunks);
        let Some(chunks) = chunks.as_ref() else {
            return;
        };
        let mut done = 0;
        while done < ahead.count {
            let count = CHUNK_GRAINS.min(ahead.count - done);
            let chunk = LbaRange::new(ahead.start.offset(done), count);
            if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
                chunks.try_send(chunk)
            {
                return;
            }
            done += count;
        }
    }

    /// Ends the threads, when they have brought in what they were told to.
    pub(super) fn stop(&self) {
        drop(lock(&self.chunks).take());
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads ahead panicked");
            }
        }
    }
}

/// Who reads sequentially.
#[derive(Debug)]
struct Streams {
    window: u64,
    list: Vec<Known>,
    clock: u64,
}

/// A reader.
#[derive(Clone, Copy, Debug)]
struct Known {
    stream: Stream,
    /// When it was heard of.
    used: u64,
}

impl Streams {
    fn new(window: u64) -> Self {
        Self {
            window,
            list: Vec::with_capacity(STREAMS_MAX),
            clock: 0,
        }
    }

    /// Somebody reads `range`; what to bring in.
    fn reads(&mut self, range: LbaRange) -> Option<LbaRange> {
        self.clock += 1;
        let end = range.end();
        let used = self.clock;
        let known = |known: &&mut Known| known.stream.goes_on(range);
        let Some(known) = self.list.iter_mut().find(known) else {
            let stream = Stream::new(range);
            self.begin(Known { stream, used });
            return None;
        };
        known.used = used;
        let stream = &mut known.stream;
        let window = stream.advance(range, self.window);
        let (from, to) = (stream.ahead().max(end), end.offset(window));
        // In pieces of some size: half a window at a time.
        if to <= from || (to.0 - from.0) * 2 < window {
            return None;
        }
        stream.brought(to);
        Some(LbaRange::new(from, to.0 - from.0))
    }

    fn begin(&mut self, known: Known) {
        if self.list.len() < STREAMS_MAX {
            self.list.push(known);
        } else if let Some(oldest) = self.list.iter_mut().min_by_key(|k| k.used) {
            *oldest = known;
        }
    }
}

#[cfg(test)]
mod tests {
    use ftl::Lba;

    use super::*;

    fn range(start: u64, count: u64) -> LbaRange {
        LbaRange::new(Lba(start), count)
    }

    /// The first read says nothing, the second begins a window that grows to its bound; each grain is asked for once.
    #[test]
    fn sequential_reads_are_followed() {
        let mut streams = Streams::new(64);
        assert_eq!(streams.reads(range(100, 4)), None);
        assert_eq!(streams.reads(range(104, 4)), Some(range(108, 16)));
        let mut asked = 124;
        for start in (108..2000).step_by(4) {
            if let Some(ahead) = streams.reads(range(start, 4)) {
                assert_eq!(ahead.start, Lba(asked));
                asked += ahead.count;
            }
            assert!(asked >= start + 4 && asked <= start + 4 + 64);
        }
    }

    /// Reads that end inside of a grain are sequential too; random ones are not, however many there are.
    #[test]
    fn only_sequential_reads_are_followed() {
        let mut streams = Streams::new(64);
        assert_eq!(streams.reads(range(5, 2)), None);
        assert!(streams.reads(range(6, 2)).is_some());
        for n in 1..1000 {
            assert_eq!(streams.reads(range(n * 7919 % 100_000 * 8 + 1000, 1)), None);
        }
        assert_eq!(streams.list.len(), STREAMS_MAX);
    }
}
