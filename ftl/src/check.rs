//! The judge: reads a whole device and says what a volume on it holds, without any of the recovery code.
//!
//! Slow and simple on purpose (I5). It reads every header of every segment in order, decides which count by the
//! rules of `docs/format.md`, lines up everything the log says about each grain by version, and reads and checks
//! every data grain that is live. It never writes.

use crate::addr::{Lba, LbaRange, Pba, SegmentId};
use crate::device::Device;
use crate::error::OpenError;
use crate::format::{Header, HeaderNo, RecordKind, Superblock, Version};
use crate::recover::io::MediaIo;
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
    /// Superblock copies that are intact (2 is best).
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
    /// Live data grains of each segment.
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
}

/// Something the log says about a range, by version and header.
struct Statement {
    version: Version,
    header: HeaderNo,
    range: LbaRange,
    said: Said,
}

/// Judges the volume on `device`.
pub fn check(device: &mut dyn Device) -> Result<CheckReport, OpenError> {
    let mut io = MediaIo::new(device).map_err(OpenError::Memory)?;
    let mut report = CheckReport::default();
    let superblock = superblock(&mut io, &mut report)?;
    let headers = headers(&mut io, &superblock, &mut report);
    let statements = statements(&headers);
    report.headers = headers.len() as u64;
    report.clean = superblock.clean;
    report.capacity = superblock.geometry.capacity_grains;
    report.map = line_up(statements);
    report.live = vec![0; superblock.geometry.segment_count as usize];
    let mut places = BTreeSet::new();
    for (&lba, &checked) in &report.map {
        let Checked::Data { pba, crc } = checked else {
            continue;
        };
        if !places.insert(pba) {
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
    if report.map.len() as u64 > report.capacity {
        report
            .faults
            .push("more grains mapped than the capacity".into());
    }
    Ok(report)
}

fn superblock(io: &mut MediaIo<'_>, report: &mut CheckReport) -> Result<Superblock, OpenError> {
    let copies =
        [Pba(0), Pba(1)].map(|at| io.read(at).ok().and_then(|b| Superblock::parse(&b).ok()));
    report.superblocks = copies.iter().flatten().count() as u32;
    let young = copies.into_iter().flatten().max_by_key(|s| s.generation);
    young.ok_or(OpenError::NotFormatted)
}

/// The headers of one segment, front to back.
pub(crate) fn chain(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    segment: SegmentId,
) -> Vec<(Pba, Header)> {
    let start = superblock.geometry.segment_start(segment);
    let mut chain: Vec<(Pba, Header)> = Vec::new();
    let mut position = 0;
    while position < superblock.geometry.segment_grains {
        let at = Pba(start.0 + u64::from(position));
        let Some(header) = io.read(at).ok().and_then(|b| Header::parse(&b).ok()) else {
            break;
        };
        let first = chain.first().map_or(&header, |(_, first)| first);
        let belongs = header.volume == superblock.volume_tag()
            && header.segment == segment
            && header.position == position
            && header.session <= superblock.session
            && header.session == first.session
            && header.epoch == first.no;
        if !belongs {
            break;
        }
        position += header.grains();
        chain.push((at, header));
    }
    chain
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
    for segment in 0..superblock.geometry.segment_count {
        for (at, header) in chain(io, superblock, SegmentId(segment)) {
            if !is_closed(header.session) {
                last_session.insert(header.no, (at, header));
            } else if superblock.sessions.admits(header.session, header.no) {
                counted.insert(header.no, (at, header));
            } else {
                report.headers_cut += 1;
            }
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
            RecordKind::Trim { .. } | RecordKind::Zero { .. } => true,
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

/// For each grain, what remains when everything said about it has been heard in order of version. Copies of one
/// version follow each other, the youngest last.
fn line_up(mut statements: Vec<Statement>) -> BTreeMap<Lba, Checked> {
    statements.sort_by_key(|s| (s.version, s.header));
    let mut edges: BTreeMap<Lba, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (index, statement) in statements.iter().enumerate() {
        edges
            .entry(statement.range.start)
            .or_default()
            .0
            .push(index);
        edges
            .entry(statement.range.end())
            .or_default()
            .1
            .push(index);
    }
    let mut map = BTreeMap::new();
    let mut heard: BTreeSet<usize> = BTreeSet::new();
    let mut stops = edges.iter().peekable();
    while let Some((&from, (begin, end))) = stops.next() {
        for index in end {
            heard.remove(index);
        }
        heard.extend(begin);
        let Some(&(&until, _)) = stops.peek() else {
            break;
        };
        let mut outcome = None;
        for &index in &heard {
            outcome = match (statements[index].said, outcome) {
                (Said::Data { pba, crc }, _) => Some(Checked::Data { pba, crc }),
                (Said::Trim, _) => None,
                (Said::Zero, None) => Some(Checked::Zero),
                (Said::Zero, before) => before,
            };
        }
        if let Some(checked) = outcome {
            map.extend((from.0..until.0).map(|lba| (Lba(lba), checked)));
        }
    }
    map
}
