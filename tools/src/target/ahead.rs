//! Reading ahead of remote peers who read one range behind the other.
//!
//! What the mount does for programs ([`readahead`](super::readahead)) is done here for connections, with the same
//! [`Stream`]s, but without threads: the reactor asks for pages that nobody waits for, and drops them when they come. Such a
//! page is resident like any other, so a peer who reads on finds it; it is not held, so when nobody reads it, it is evicted
//! like any other.
//!
//! Each reader has its own memory of where its last READs ended. Those who read at random do not push out those who read
//! in order, and all they pay is to compare two numbers. Who goes on where one of them ended becomes a stream.
//!
//! # Bounds
//! - Pages asked for and not there yet: [`IN_FLIGHT_MAX`], so that they do not stand in the way of those who wait.
//! - Pages brought in and not read yet: an eighth of the pool, for all streams together.
//! - Time: a stream that nobody has read from for [`IDLE_NS`] is forgotten, and its part of the eighth is for the others.

use ftl::{Lba, LbaRange, Time};

use super::streams::{Stream, goes_on};
use crate::reactor::LinkTag;

/// Pages asked for at once. Enough to keep a device busy.
const IN_FLIGHT_MAX: usize = 128;
/// Farthest ahead of anybody (4 MiB).
const WINDOW_GRAINS_MAX: u64 = 1024;
/// Streams at once.
const STREAMS_MAX: usize = 64;
/// A stream ends when nobody has read from it for so long.
const IDLE_NS: u64 = 1_000_000_000;
/// Where no READ ends.
const NOWHERE: Lba = Lba(u64::MAX);

/// Where a reader's last READs ended.
#[derive(Clone, Copy, Debug)]
struct Reader {
    tag: LinkTag,
    ends: [Lba; 2],
    older: usize,
    /// It has a stream, or had one.
    has_streams: bool,
}

/// A stream that is brought something.
#[derive(Debug)]
struct Followed {
    reader: LinkTag,
    stream: Stream,
    /// The grain behind the last one to bring in.
    wanted: Lba,
    used: Time,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Grains that may be ahead of all streams together.
    budget: u64,
    /// By slot of the link.
    readers: Vec<Reader>,
    streams: Vec<Followed>,
    in_flight: usize,
    now: Time,
    /// The stream that was brought something last.
    turn: usize,
}

impl Ahead {
    /// For a reactor that has `frames` of the pool as its part.
    pub(super) fn new(frames: usize) -> Self {
        Self {
            budget: frames as u64 / 8,
            readers: Vec::new(),
            streams: Vec::with_capacity(STREAMS_MAX),
            in_flight: 0,
            now: Time(0),
            turn: 0,
        }
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now: Time) {
        self.now = now;
    }

    /// A connection reads `range`, and may read `left` grains behind it. Whether there is something to bring in.
    pub(super) fn reads(&mut self, tag: LinkTag, range: LbaRange, left: u64) -> bool {
        let slot = tag.slot();
        let unknown = Reader {
            tag,
            ends: [NOWHERE; 2],
            older: 0,
            has_streams: false,
        };
        if self.readers.len() <= slot {
            self.readers.resize(slot + 1, unknown);
        }
        let reader = &mut self.readers[slot];
        if reader.tag != tag {
            *reader = unknown;
        }
        if reader.has_streams {
            let (mut any, mut found) = (false, None);
            for (n, followed) in self.streams.iter().enumerate() {
                if followed.reader == tag {
                    any = true;
                    if followed.stream.goes_on(range) {
                        found = Some(n);
                        break;
                    }
                }
            }
            reader.has_streams = any;
            if let Some(found) = found {
                self.follow(found, range, left);
                return true;
            }
        }
        if reader.ends.iter().any(|&end| goes_on(end, range)) {
            reader.has_streams = true;
            let before = LbaRange::new(range.start, 0);
            let stream = Stream::new(before);
            let n = self.begin(Followed {
                reader: tag,
                stream,
                wanted: range.start,
                used: self.now,
            });
            self.follow(n, range, left);
            return true;
        }
        reader.ends[reader.older] = range.end();
        reader.older ^= 1;
        false
    }

    fn begin(&mut self, followed: Followed) -> usize {
        let now = self.now.0;
        self.streams
            .retain(|s| now.saturating_sub(s.used.0) < IDLE_NS);
        if self.streams.len() == STREAMS_MAX {
            let oldest = (0..STREAMS_MAX).min_by_key(|&n| self.streams[n].used);
            self.streams.swap_remove(oldest.expect("there are some"));
        }
        self.streams.push(followed);
        self.streams.len() - 1
    }

    fn follow(&mut self, n: usize, range: LbaRange, left: u64) {
        let window = (self.budget / self.streams.len() as u64).min(WINDOW_GRAINS_MAX);
        let followed = &mut self.streams[n];
        followed.used = self.now;
        let ahead = followed.stream.advance(range, window);
        // What it reads now is brought in as well, as far as that has not been done before.
        followed.stream.brought(range.start);
        followed.wanted = range.end().offset(ahead.min(left));
    }

    /// The next page to bring in, once.
    pub(super) fn next(&mut self) -> Option<Lba> {
        if self.in_flight >= IN_FLIGHT_MAX.min(self.budget as usize) {
            return None;
        }
        for _ in 0..self.streams.len() {
            self.turn %= self.streams.len();
            let followed = &mut self.streams[self.turn];
            let lba = followed.stream.ahead();
            if lba < followed.wanted {
                followed.stream.brought(lba.offset(1));
                return Some(lba);
            }
            self.turn += 1;
        }
        None
    }

    /// The page has been asked for, and comes later.
    pub(super) fn asked(&mut self) {
        self.in_flight += 1;
    }

    /// It has come.
    pub(super) fn came(&mut self) {
        self.in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: usize = 8 * 64;

    fn tag(slot: u32) -> LinkTag {
        LinkTag(1 << 16 | slot)
    }

    fn range(start: u64, count: u64) -> LbaRange {
        LbaRange::new(Lba(start), count)
    }

    /// All there is to bring in; each of it arrives at once.
    fn brought(ahead: &mut Ahead) -> Vec<u64> {
        std::iter::from_fn(|| ahead.next())
            .map(|lba| lba.0)
            .collect()
    }

    /// The second READ in a row begins a stream. Each grain is brought in once, none farther ahead than the budget, and none
    /// behind the end of what the reader may read.
    #[test]
    fn who_reads_in_order_is_ahead_of() {
        let mut ahead = Ahead::new(FRAMES);
        assert!(!ahead.reads(tag(0), range(100, 1), 899));
        assert!(brought(&mut ahead).is_empty());
        let mut next = 101;
        for start in 101..1000 {
            assert!(ahead.reads(tag(0), range(start, 1), 999 - start));
            for lba in brought(&mut ahead) {
                assert_eq!(lba, next);
                next += 1;
            }
            assert!(next > start && next <= 1000 && next - start - 1 <= 64);
            assert!(
                start < 140 || next == 1000.min(start + 65),
                "{start}: {next}"
            );
        }
        assert_eq!(next, 1000);
    }

    /// Who reads at random brings nothing in and is no stream, and does not disturb those who are (I16).
    #[test]
    fn who_reads_at_random_pays_nothing() {
        let mut ahead = Ahead::new(FRAMES);
        ahead.reads(tag(0), range(100, 4), 1 << 20);
        for n in 1..1000 {
            for reader in 1..40 {
                let start = (n * 7919 + u64::from(reader) * 104_729) % 100_000 * 8 + 1000;
                assert!(!ahead.reads(tag(reader), range(start, 1), 1 << 20));
            }
            assert!(ahead.reads(tag(0), range(100 + 4 * n, 4), 1 << 20));
            brought(&mut ahead);
        }
        assert_eq!(ahead.streams.len(), 1);
    }

    /// However many read in order, what is ahead of all of them together is bounded, and so is what is under way; who stops
    /// leaves his part to the others when his time is over (I16).
    #[test]
    fn all_together_are_bounded() {
        let mut ahead = Ahead::new(FRAMES);
        let mut reached = vec![0; 200];
        let read = |ahead: &mut Ahead, reader: usize, n: u64| {
            let start = reader as u64 * 1_000_000 + n;
            ahead.reads(tag(reader as u32), range(start, 1), 1 << 20);
            start
        };
        for n in 0..100 {
            for reader in 0..200 {
                let start = read(&mut ahead, reader, n);
                assert!(ahead.streams.len() <= STREAMS_MAX);
                for lba in brought(&mut ahead) {
                    reached[lba as usize / 1_000_000] = lba + 1;
                }
                reached[reader] = reached[reader].max(start + 1);
            }
        }
        let unread = (0..200).map(|reader: usize| {
            let read = reader as u64 * 1_000_000 + 100;
            reached[reader].saturating_sub(read)
        });
        assert!(unread.sum::<u64>() <= 200, "less than a page or so each");

        ahead.tick(Time(IDLE_NS));
        for n in 0..100 {
            read(&mut ahead, 300, n);
        }
        assert_eq!(ahead.streams.len(), 1, "the others have had their time");
        assert_eq!(brought(&mut ahead).last(), Some(&(300_000_100 + 63)));

        for n in 100..110 {
            read(&mut ahead, 300, n);
            while ahead.next().is_some() {
                ahead.asked();
            }
        }
        assert_eq!(ahead.next(), None, "nothing has come");
        assert!(ahead.in_flight <= 64);
        while ahead.in_flight > 0 {
            ahead.came();
        }
    }

    /// A connection that comes to the slot of another one does not go on where that was.
    #[test]
    fn connections_are_told_apart() {
        let mut ahead = Ahead::new(FRAMES);
        ahead.reads(tag(3), range(100, 1), 1000);
        assert!(!ahead.reads(LinkTag(2 << 16 | 3), range(101, 1), 1000));
        assert!(ahead.reads(LinkTag(2 << 16 | 3), range(102, 1), 1000));
    }
}
