//! Scanning: finding every header grain that belongs to the present life of its segment.
//!
//! A segment's headers form a chain: the first lies at its first grain, each next one behind the data of the one
//! before. All segments are walked at the same time; along a chain of equal write-outs the next headers are read before
//! the one in front of them has said where they are. Where a chain is broken by a damaged header, the rest is found
//! from behind: every header says where the one numbered before it lies.

use super::ahead::ReadAhead;
use super::io::MediaIo;
use crate::addr::{Pba, SegmentId};
use crate::format::{Fresh, Header, HeaderFlaw, HeaderNo, SavedSegment, Sessions};
use crate::geometry::Geometry;
use crate::planted::Bug;
use std::collections::{BTreeMap, HashSet};

/// Headers of a segment that are read on suspicion.
const AHEAD_MAX: u32 = 16;

/// A header and where it lies.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) at: Pba,
    pub(crate) header: Header,
}

/// What a scan found.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Headers that may count, by number.
    pub(crate) headers: BTreeMap<HeaderNo, Found>,
    /// Intact headers that do not count: cut tails. They are erased.
    pub(crate) cut: Vec<Pba>,
    /// Sessions that some header names.
    pub(crate) sessions: HashSet<u64>,
    /// Segments that begin with zeros: never written, discarded, or erased with a cut tail.
    pub(crate) blank: HashSet<SegmentId>,
    /// Grains that could not be read, or hold a header that is damaged.
    pub(crate) damaged: u64,
}

/// What a scan needs to know.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) volume: u64,
    pub(crate) session: u64,
    pub(crate) sessions: &'a Sessions,
    pub(crate) fresh: &'a Fresh,
    pub(crate) planted: Option<Bug>,
    /// Devices that are not there, one bit each.
    pub(crate) lost: u16,
    /// Only what lies behind a checkpoint is wanted.
    pub(crate) tail: Option<Behind<'a>>,
}

/// Where the tail of the log begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind<'a> {
    /// Headers up to this one are not wanted.
    pub(crate) after: HeaderNo,
    /// Session that took the checkpoint: whoever was being appended to belongs to it.
    pub(crate) session: u64,
    pub(crate) segments: &'a [SavedSegment],
}

/// What is known of a segment while it is walked.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// First number of the life, and its session.
    life: Option<(HeaderNo, u64)>,
    /// The first grain was erased or never written: nothing behind it counts.
    blank: bool,
    last: HeaderNo,
    /// Grains of the last write-out, and how many before it had as many.
    stride: u32,
    equal: u32,
}

impl Walk {
    /// How many more write-outs are likely to have as many grains as this one.
    fn likely(&mut self, grains: u32) -> u32 {
        self.equal = if grains == self.stride {
            self.equal + 1
        } else {
            0
        };
        self.stride = grains;
        match self.equal {
            0 => 0,
            equal => (1 << equal.min(AHEAD_MAX.ilog2())).min(AHEAD_MAX),
        }
    }
}

impl Scope<'_> {
    fn is_wanted(&self, no: HeaderNo) -> bool {
        self.tail.is_none_or(|tail| no > tail.after)
    }

    fn is_there(&self, segment: SegmentId) -> bool {
        let device = self.geometry.places.device_of_segment(segment);
        self.lost >> device & 1 == 0
    }
}

/// Walks all segments, or of each what lies behind a checkpoint.
pub(crate) fn scan(io: &mut MediaIo<'_>, scope: &Scope<'_>) -> Scan {
    let mut scan = Scan::default();
    let mut walks = vec![Walk::default(); scope.geometry.segment_count as usize];
    let segments = (0..scope.geometry.segment_count).map(SegmentId);
    for segment in segments.filter(|&id| scope.is_there(id)) {
        let at = scope.geometry.segment_start(segment);
        io.want(at.0, at);
    }
    walk(io, scope, &mut scan, &mut walks);
    if let Some(tail) = scope.tail {
        for (index, segment) in tail.segments.iter().enumerate() {
            let walk = &mut walks[index];
            let same = walk.life.is_none_or(|(epoch, _)| epoch == segment.epoch);
            let there = scope.is_there(SegmentId(index as u32));
            let from = segment.walk_from.filter(|&from| {
                there && from > 0 && from < scope.geometry.segment_grains && same && !walk.blank
            });
            if let Some(from) = from {
                walk.life = Some((segment.epoch, tail.session));
                let start = scope.geometry.segment_start(SegmentId(index as u32));
                let at = Pba(start.0 + u64::from(from));
                io.want(at.0, at);
            }
        }
        walk(io, scope, &mut scan, &mut walks);
    }
    // Follow the back-pointers to what the chains missed, until nothing new turns up.
    let mut tried = HashSet::new();
    loop {
        let lost: Vec<(HeaderNo, Pba)> = scan
            .headers
            .values()
            .filter_map(|f| Some((HeaderNo(f.header.no.0 - 1), f.header.back?)))
            .filter(|(no, at)| {
                scope.is_wanted(*no) && !scan.headers.contains_key(no) && tried.insert(*at)
            })
            .collect();
        let mut wanted = false;
        for (no, at) in lost {
            let Some((id, position)) = scope.geometry.locate(at) else {
                continue;
            };
            if !scope.is_there(id) {
                continue;
            }
            let walk = &walks[id.0 as usize];
            let same_life = walk.life.is_some_and(|(epoch, _)| epoch <= no);
            let unknown = walk.life.is_none() && !walk.blank && position != 0;
            if position != 0 && (same_life || unknown) {
                io.want(at.0, at);
                wanted = true;
            }
        }
        if !wanted {
            return scan;
        }
        walk(io, scope, &mut scan, &mut walks);
    }
}

fn walk(io: &mut MediaIo<'_>, scope: &Scope<'_>, scan: &mut Scan, walks: &mut [Walk]) {
    let mut reads = ReadAhead::new(io);
    while let Some((at, bytes)) = reads.next() {
        let (id, position) = scope.geometry.locate(at).expect("asked inside a segment");
        let walk = &mut walks[id.0 as usize];
        let header = match bytes.as_deref().map(Header::parse) {
            Ok(Ok(header)) => header,
            Ok(Err(flaw)) => {
                if position == 0 && flaw == HeaderFlaw::Blank {
                    walk.blank = true;
                    scan.blank.insert(id);
                }
                scan.damaged += u64::from(flaw == HeaderFlaw::Checksum);
                continue;
            }
            Err(_) => {
                scan.damaged += 1;
                continue;
            }
        };
        let stale_wanted = scope.planted == Some(Bug::StaleHeaderAccepted);
        if header.volume != scope.volume || header.segment != id || header.position != position {
            continue;
        }
        if !header.fits(scope.geometry.segment_grains) {
            // Nobody writes such a one; its grains would be those of the segment behind.
            scan.damaged += 1;
            continue;
        }
        if header.session > scope.session || !scope.fresh.admits(id, header.no) {
            continue;
        }
        let life = (header.epoch, header.session);
        if position == 0 && header.epoch != header.no {
            continue;
        }
        if !stale_wanted {
            if walk.life.is_some_and(|known| known != life) {
                continue;
            }
            walk.life = Some(life);
        }
        scan.sessions.insert(header.session);
        let past = header.session < scope.session;
        let known = scope
            .sessions
            .ends
            .iter()
            .any(|s| s.session == header.session);
        if !scope.is_wanted(header.no) {
            continue;
        }
        let counts = stale_wanted
            || if past || known {
                scope.sessions.admits(header.session, header.no)
            } else {
                header.no > scope.sessions.last()
            };
        if !counts {
            scan.cut.push(at);
            continue;
        }
        walk.last = walk.last.max(header.no);
        let grains = header.grains();
        if scan.headers.contains_key(&header.no) && !stale_wanted {
            continue;
        }
        scan.headers.insert(header.no, Found { at, header });
        let rest = scope.geometry.segment_grains - position;
        let place = |n: u32| Some(n * grains).filter(|&by| by < rest);
        let behind = |n| place(n).map(|by| Pba(at.0 + u64::from(by)));
        if let Some(next) = behind(1) {
            reads.want(next);
        }
        for guess in (2..2 + walk.likely(grains)).map_while(behind) {
            reads.suspect(guess);
        }
    }
}
