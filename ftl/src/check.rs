//! The judge: reads a whole device and says what a volume on it holds. It shares with recovery how grains are read
//! (`MediaIo`), how they are parsed, and which ranges a remap speaks of (`Renaming`), and decides everything else itself.
//!
//! Slow and simple on purpose (I5). It reads every header of every segment in order, decides which count by the
//! rules of `docs/format.md`, lines up everything the log says about each grain by version, and reads and checks
//! every data grain that is live. Headers behind a damaged one are found from behind: each says where the one numbered
//! before it lies. What a damaged header itself said is not known here; a checkpoint may know, and the two are compared
//! by `Volume::differing`. It never writes.

use crate::addr::{Lba, LbaRange, Pba, SegmentId};
use crate::device::Device;
use crate::error::OpenError;
use crate::format::{Header, HeaderNo, RecordKind, Superblock, Version};
use crate::recover::io::MediaIo;
use crate::remap::Renaming;
use std::collections::{BTreeMap, BTreeSet};

/// What a grain holds according to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Reserved.
    Zero,
    /// Data at this place, with this checksum in its record.
    Data {
        /// Where.
        pba: Pba,
        /// CRC-32 it should have.
        crc: u32,
    },
}

/// What the judge found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Superblock copies that are intact (2 is best), of an array on the device that has fewest.
    pub superblocks: u32,
    /// Marked clean.
    pub clean: bool,
    /// Capacity in grains.
    pub capacity: u64,
    /// Headers that count.
    pub headers: u64,
    /// Headers that are intact and do not count.
    pub headers_cut: u64,
    /// Every mapped grain.
    pub map: BTreeMap<Lba, Checked>,
    /// Live data grains of each segment, each as often as it has names.
    pub live: Vec<u32>,
    /// Live grains whose content does not fit its checksum or can not be read.
    pub damaged: Vec<Lba>,
    /// What contradicts itself, in words.
    pub faults: Vec<String>,
}

impl CheckReport {
    /// Whether all is well.
    pub fn is_sound(&self) -> bool {
        self.superblocks == 2 && self.damaged.is_empty() && self.faults.is_empty()
    }
}

#[derive(Clone, Copy)]
enum Said {
    Data { pba: Pba, crc: u32 },
    Trim,
    Zero,
    Rename(Renaming),
}

/// What a grain holds, and the header that said so.
#[derive(Clone, Copy)]
struct Held {
    checked: Checked,
    header: HeaderNo,
}

/// Something the log says about a range, by version and header.
#[derive(Clone, Copy)]
struct Statement {
    version: Version,
    header: HeaderNo,
    range: LbaRange,
    said: Said,
}

/// Judges the volume on `device`.
pub fn check(device: &mut dyn Device) -> Result<CheckReport, OpenError> {
    check_telling(device, &mut |_, _| {})
}

/// As [`check()`], and tells how many grains of how many have been looked at.
pub fn check_telling(
    device: &mut dyn Device,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, OpenError> {
    let mut io = MediaIo::new(device).map_err(OpenError::Memory)?;
    let mut report = CheckReport::default();
    if let Some(member) = io.lost() {
        return Err(OpenError::DeviceLost(member.name().to_owned()));
    }
    let superblock = superblock(&mut io, &mut report)?;
    let headers = headers(&mut io, &superblock, &mut report);
    let statements = statements(&headers);
    report.headers = headers.len() as u64;
    report.clean = superblock.clean;
    report.capacity = superblock.geometry.capacity_grains;
    let statements = possible(statements, report.capacity, &mut report.faults);
    let map = line_up(statements);
    report.live = vec![0; superblock.geometry.segment_count as usize];
    let mut places: BTreeMap<Pba, HeaderNo> = BTreeMap::new();
    let grains = map.len() as u64;
    for (done, (&lba, &Held { checked, header })) in (1..).zip(&map) {
        tell(done, grains);
        let Checked::Data { pba, crc } = checked else {
            continue;
        };
        // Names of one grain all come from the header that wrote it.
        if *places.entry(pba).or_insert(header) != header {
            report.faults.push(format!("{pba} holds two grains"));
        }
        match superblock.geometry.locate(pba) {
            Some((segment, _)) => report.live[segment.0 as usize] += 1,
            None => report
                .faults
                .push(format!("{lba} lies outside of the segments")),
        }
        let fits = io.read(pba).is_ok_and(|b| crc32fast::hash(&b[..]) == crc);
        if !fits {
            report.damaged.push(lba);
        }
    }
    report.map = map.into_iter().map(|(lba, h)| (lba, h.checked)).collect();
    if report.map.len() as u64 > report.capacity {
        report
            .faults
            .push("more grains mapped than the capacity".into());
    }
    Ok(report)
}

fn superblock(io: &mut MediaIo<'_>, report: &mut CheckReport) -> Result<Superblock, OpenError> {
    let mut all = Vec::new();
    report.superblocks = 2;
    for front in io.fronts() {
        let copies = [front, Pba(front.0 + 1)];
        let copies = copies.map(|at| io.read(at).ok().and_then(|b| Superblock::parse(&b).ok()));
        let intact = copies.iter().flatten().count() as u32;
        report.superblocks = report.superblocks.min(intact);
        all.extend(copies.into_iter().flatten());
    }
    let young = all.into_iter().max_by_key(|s| s.generation);
    let young = young.ok_or(OpenError::NotFormatted)?;
    match young.geometry.places.count() {
        count if count == io.sizes().len() => Ok(young),
        count => Err(OpenError::NotAssembled(count)),
    }
}

/// The headers of one segment, front to back.
pub(crate) fn chain(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    segment: SegmentId,
) -> Vec<(Pba, Header)> {
    chain_from(io, superblock, segment, 0, None)
}

/// First number of a segment's life, and the session it belongs to.
type Life = (HeaderNo, u64);

/// The headers of one segment from a position on, of a life if that is known.
fn chain_from(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    segment: SegmentId,
    mut position: u32,
    mut life: Option<Life>,
) -> Vec<(Pba, Header)> {
    let start = superblock.geometry.segment_start(segment);
    let mut chain: Vec<(Pba, Header)> = Vec::new();
    while position < superblock.geometry.segment_grains {
        let at = Pba(start.0 + u64::from(position));
        let Some(header) = io.read(at).ok().and_then(|b| Header::parse(&b).ok()) else {
            break;
        };
        let belongs = header.volume == superblock.volume_tag()
            && header.segment == segment
            && header.position == position
            && header.fits(superblock.geometry.segment_grains)
            && header.session <= superblock.session
            && superblock.fresh.admits(segment, header.no)
            && (position > 0 || header.epoch == header.no)
            && life.is_none_or(|life| life == (header.epoch, header.session));
        if !belongs {
            break;
        }
        life = Some((header.epoch, header.session));
        position += header.grains();
        chain.push((at, header));
    }
    chain
}

/// Headers that were found, and what they say of where others are.
#[derive(Default)]
struct Headers {
    all: Vec<(Pba, Header)>,
    /// The headers by number and session, and where the one before each lies. A session begins with the numbers that were
    /// cut off from the one before it, so several may have the same.
    backs: BTreeMap<(HeaderNo, u64), Option<Pba>>,
    lives: BTreeMap<SegmentId, Life>,
}

impl Headers {
    fn note(&mut self, chain: Vec<(Pba, Header)>) {
        for (at, header) in chain {
            let key = (header.no, header.session);
            if self.backs.insert(key, header.back).is_none() {
                self.lives
                    .insert(header.segment, (header.epoch, header.session));
                self.all.push((at, header));
            }
        }
    }

    /// Numbers that are missing before one that is there, and where they should be.
    fn gaps(&self) -> Vec<(HeaderNo, Pba)> {
        let is_there = |no| self.backs.range((no, 0)..=(no, u64::MAX)).next().is_some();
        let gaps = self.backs.iter().filter_map(|((no, _), back)| {
            let before = HeaderNo(no.0.checked_sub(1)?);
            (!is_there(before)).then_some((before, (*back)?))
        });
        gaps.collect()
    }
}

/// All headers that can be found. A chain ends at a header that is damaged; those behind it are pointed to by the headers
/// numbered after them, unless their segment has begun another life since.
fn all_headers(io: &mut MediaIo<'_>, superblock: &Superblock) -> Vec<(Pba, Header)> {
    let geometry = &superblock.geometry;
    let mut found = Headers::default();
    for segment in 0..geometry.segment_count {
        found.note(chain(io, superblock, SegmentId(segment)));
    }
    let mut tried = BTreeSet::new();
    loop {
        let mut gaps = found.gaps();
        gaps.retain(|&(_, at)| tried.insert(at));
        if gaps.is_empty() {
            return found.all;
        }
        for (no, at) in gaps {
            let Some((segment, position)) = geometry.locate(at) else {
                continue;
            };
            let life = found.lives.get(&segment).copied();
            let is_over = match life {
                Some((epoch, _)) => epoch > no,
                None => is_blank(io, geometry.segment_start(segment)),
            };
            if position > 0 && !is_over {
                found.note(chain_from(io, superblock, segment, position, life));
            }
        }
    }
}

/// Whether a segment was never written, or erased.
fn is_blank(io: &mut MediaIo<'_>, start: Pba) -> bool {
    let first = io.read(start);
    first.is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 0))
}

/// All headers that count, by number.
fn headers(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    report: &mut CheckReport,
) -> BTreeMap<HeaderNo, (Pba, Header)> {
    let mut counted = BTreeMap::new();
    let mut last_session = BTreeMap::new();
    let is_closed = |session| {
        session < superblock.session
            || superblock
                .sessions
                .ends
                .iter()
                .any(|e| e.session == session)
    };
    for (at, header) in all_headers(io, superblock) {
        if !is_closed(header.session) {
            last_session.insert(header.no, (at, header));
        } else if superblock.sessions.admits(header.session, header.no) {
            counted.insert(header.no, (at, header));
        } else {
            report.headers_cut += 1;
        }
    }
    let mut end = superblock.sessions.last();
    for (_, header) in last_session.values() {
        end = end.max(header.durable);
    }
    while let Some((at, header)) = last_session.get(&end.next()) {
        let mut pba = *at;
        let whole = header.records.iter().all(|record| match record.kind {
            RecordKind::Data { crc } => {
                pba = Pba(pba.0 + 1);
                io.read(pba).is_ok_and(|b| crc32fast::hash(&b[..]) == crc)
            }
            _ => true,
        });
        if !whole {
            break;
        }
        end = end.next();
    }
    report.headers_cut += last_session.split_off(&end.next()).len() as u64;
    counted.extend(last_session);
    counted
}

fn statements(headers: &BTreeMap<HeaderNo, (Pba, Header)>) -> Vec<Statement> {
    let mut all = Vec::new();
    for (at, header) in headers.values() {
        let mut pba = *at;
        for record in &header.records {
            let (count, said) = match record.kind {
                RecordKind::Data { crc } => {
                    pba = Pba(pba.0 + 1);
                    (1, Said::Data { pba, crc })
                }
                RecordKind::Trim { count } => (count, Said::Trim),
                RecordKind::Zero { count } => (count, Said::Zero),
                RecordKind::Alias { crc, .. } => (1, Said::Data { pba, crc }),
                RecordKind::Remap { count, .. } | RecordKind::Clone { count, .. } => {
                    let renaming = record.renaming().expect("one that renames");
                    (count, Said::Rename(renaming))
                }
            };
            all.push(Statement {
                version: record.version,
                header: header.no,
                range: LbaRange::new(record.lba, u64::from(count)),
                said,
            });
        }
    }
    all
}

/// Nobody reserves more than a volume has room for; one that was larger once may have, and has given up the rest since.
/// What remains of more is crafted, and not listed grain by grain.
fn possible(all: Vec<Statement>, capacity: u64, faults: &mut Vec<String>) -> Vec<Statement> {
    let is_large = |s: &Statement| matches!(s.said, Said::Zero) && s.range.count > capacity;
    let (large, mut kept): (Vec<Statement>, Vec<Statement>) = all.into_iter().partition(is_large);
    for statement in large {
        let trims = kept
            .iter()
            .filter(|s| matches!(s.said, Said::Trim) && s.version > statement.version);
        let left = statement.range.without(trims.map(|s| s.range));
        if left.iter().map(|range| range.count).sum::<u64>() > capacity {
            faults.push(format!(
                "header {} reserves more than there is room for",
                statement.header.0
            ));
            continue;
        }
        kept.extend(
            left.into_iter()
                .map(|range| Statement { range, ..statement }),
        );
    }
    kept
}

/// For each grain, what remains when everything said about it has been heard in order of version. Copies of one
/// version follow each other, the youngest last; a remap or clone is heard once, and before what has its version.
fn line_up(mut statements: Vec<Statement>) -> BTreeMap<Lba, Held> {
    let renames = |s: &Statement| matches!(s.said, Said::Rename(_));
    statements.sort_by_key(|s| (s.version, !renames(s), s.header));
    statements.dedup_by(|b, a| b.version == a.version && renames(a) && renames(b));
    let mut map: BTreeMap<Lba, Held> = BTreeMap::new();
    for statement in statements {
        let (range, header) = (statement.range, statement.header);
        let held = |checked| Held { checked, header };
        let lbas = (range.start.0..range.end().0).map(Lba);
        match statement.said {
            Said::Data { pba, crc } => {
                map.insert(range.start, held(Checked::Data { pba, crc }));
            }
            Said::Trim => drop(take(&mut map, range)),
            Said::Zero => lbas.for_each(|lba| {
                map.entry(lba).or_insert(held(Checked::Zero));
            }),
            Said::Rename(renaming) => {
                let to = renaming.ranges().to;
                drop(take(&mut map, LbaRange::new(to, range.count)));
                let held = take(&mut map, range);
                if !renaming.empties_source() {
                    map.extend(held.iter().copied());
                }
                let named = |lba: Lba| Lba(to.0 + (lba.0 - range.start.0));
                map.extend(held.into_iter().map(|(lba, held)| (named(lba), held)));
            }
        }
    }
    map
}

/// Takes what a range holds out of the map.
fn take(map: &mut BTreeMap<Lba, Held>, range: LbaRange) -> Vec<(Lba, Held)> {
    let inside = map.range(range.start..range.end());
    let inside: Vec<(Lba, Held)> = inside.map(|(&lba, &held)| (lba, held)).collect();
    for (lba, _) in &inside {
        map.remove(lba);
    }
    inside
}
