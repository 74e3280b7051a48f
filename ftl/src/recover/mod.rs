//! Recovery: from a device to an open volume, by scanning headers. See `docs/format.md` for the crash argument.
//!
//! | found | done |
//! |---|---|
//! | header of a past session, within that session's end | counts |
//! | header of a past session, beyond its end | cut tail: erased, never counts |
//! | header of the last session, number at most D | counts; D is the highest `durable` any of its headers carries |
//! | above D: consecutive, intact, all data checksums fit | counts |
//! | above D: behind the first gap, damage or misfit | cut tail |
//! | number missing, at most D | its segment was reused (or the header is damaged, then it is reported) |
//!
//! Nothing is written before all of that has been decided. Then: flush (what counts must be durable before anything
//! says so), the superblock with the session's end and the next session's number in both copies, and only then the
//! cut tail is erased. A cut anywhere in this leads to the same decisions the next time.

pub(crate) mod io;
mod replay;
mod scan;

use crate::addr::{GRAIN_BYTES, Pba};
use crate::core::Recovered;
use crate::device::{Device, MediaError};
use crate::error::OpenError;
use crate::format::{HeaderNo, RecordKind, SessionEnd, Superblock, SuperblockFlaw};
use crate::map::MapTable;
use crate::planted::Bug;
use io::MediaIo;
use scan::{Scan, Scope, scan};

/// What recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The last session ended with a shutdown.
    pub clean: bool,
    /// Number of the new session.
    pub session: u64,
    /// Headers that count.
    pub headers: u64,
    /// Headers that were cut: written, never acknowledged, incomplete.
    pub headers_cut: u64,
    /// Headers or header places that are damaged or unreadable (a torn end of the log counts here too).
    pub headers_damaged: u64,
    /// Headers that are certainly lost, though they had been durable: their grains may be old or gone.
    pub headers_lost: u64,
    /// Superblock copies that were damaged (and are whole again now).
    pub superblocks_damaged: u32,
    /// Grains mapped.
    pub mapped: u64,
}

/// Reads the superblock copies and chooses the younger.
pub(crate) fn read_superblock(io: &mut MediaIo<'_>) -> Result<(Superblock, u32), OpenError> {
    let mut best: Option<Superblock> = None;
    let mut damaged = 0;
    let mut version = None;
    let mut nonsense = None;
    let mut media = None;
    for at in 0..2 {
        match io.read(Pba(at)).map(|bytes| Superblock::parse(&bytes)) {
            Ok(Ok(found)) => {
                if best
                    .as_ref()
                    .is_none_or(|b| b.generation < found.generation)
                {
                    best = Some(found);
                }
                continue;
            }
            Ok(Err(SuperblockFlaw::Version(v))) => version = Some(v),
            Ok(Err(SuperblockFlaw::Nonsense(what))) => nonsense = Some(what),
            Ok(Err(_)) => {}
            Err(error) => media = Some(error),
        }
        damaged += 1;
    }
    match (best, version, nonsense, media) {
        (Some(found), ..) => Ok((found, damaged)),
        (None, Some(version), ..) => Err(OpenError::Version(version)),
        (None, None, Some(what), _) => Err(OpenError::Nonsense(what)),
        (None, None, None, Some(error)) => Err(OpenError::Media(error)),
        (None, None, None, None) => Err(OpenError::NotFormatted),
    }
}

/// Writes the superblock as the next generation, over the older copy and then over the other.
pub(crate) fn write_superblock(
    io: &mut MediaIo<'_>,
    superblock: &mut Superblock,
) -> Result<(), MediaError> {
    for _ in 0..2 {
        superblock.generation += 1;
        io.write(Pba(superblock.generation % 2), &superblock.emit())?;
        io.flush()?;
    }
    Ok(())
}

/// Recovers the volume on `device` into `table` and begins a new session.
pub(crate) fn recover(
    device: &mut dyn Device,
    table: &MapTable,
    planted: Option<Bug>,
) -> Result<(Recovered, RecoveryReport), OpenError> {
    let mut io = MediaIo::new(device).map_err(OpenError::Memory)?;
    let (mut superblock, superblocks_damaged) = read_superblock(&mut io)?;
    let geometry = superblock.geometry;
    if io.device_grains() < geometry.device_grains {
        return Err(OpenError::DeviceShrunk {
            expected: geometry.device_grains,
            actual: io.device_grains(),
        });
    }
    let scope = Scope {
        geometry,
        volume: superblock.volume_tag(),
        session: superblock.session,
        sessions: &superblock.sessions,
        planted,
    };
    let mut found = scan(&mut io, &scope);
    let end = find_end(&mut io, &superblock, &mut found, planted)?;
    let mut report = RecoveryReport {
        clean: superblock.clean,
        session: superblock.session + 1,
        headers: found.headers.len() as u64,
        headers_cut: found.cut.len() as u64,
        headers_damaged: found.damaged,
        headers_lost: count_lost(&found, &superblock),
        superblocks_damaged,
        mapped: 0,
    };
    let mut replayed = replay::replay(&geometry, &found.headers, end, table, planted);
    replayed.keep_checksums(&found.headers);
    report.mapped = replayed.mapped;

    // Everything is decided; from here on the media is changed.
    io.flush()?;
    let ended = superblock.session;
    let known = superblock.sessions.ends.iter().any(|s| s.session == ended);
    if ended > 0 && !known {
        let this = SessionEnd {
            session: ended,
            first: superblock.sessions.last().next(),
            end,
        };
        superblock
            .sessions
            .push(this, |s| found.sessions.contains(&s));
    }
    superblock.session += 1;
    superblock.clean = false;
    write_superblock(&mut io, &mut superblock)?;
    for &at in &found.cut {
        io.write(at, &[0; GRAIN_BYTES])?;
    }
    if !found.cut.is_empty() {
        io.flush()?;
    }
    let recovered = Recovered {
        superblock,
        log: replayed.log,
        segments: replayed.segments,
        records: replayed.records,
        index: replayed.index,
        crcs: replayed.crcs,
        mapped: replayed.mapped,
    };
    Ok((recovered, report))
}

/// Finds the last header that counts and moves those above it to the cut.
fn find_end(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    found: &mut Scan,
    planted: Option<Bug>,
) -> Result<HeaderNo, OpenError> {
    let past = superblock.sessions.last();
    let ended = superblock.session;
    let is_known = superblock.sessions.ends.iter().any(|s| s.session == ended);
    let mut end = past;
    if !is_known {
        let last_session = found.headers.range(past.next()..);
        let durable = last_session.map(|(_, f)| f.header.durable).max();
        end = past.max(durable.unwrap_or(past));
        while let Some(next) = found.headers.get(&end.next()) {
            let trusted = planted == Some(Bug::MappingBeforeData);
            if !trusted && !data_fits(io, next) {
                break;
            }
            end = end.next();
        }
    }
    if planted == Some(Bug::StaleHeaderAccepted) {
        return Ok(found.headers.keys().last().copied().unwrap_or(end).max(end));
    }
    let beyond = found.headers.split_off(&end.next());
    found.cut.extend(beyond.values().map(|f| f.at));
    Ok(end)
}

/// Whether every data grain of a write-out is on the media as its header says.
fn data_fits(io: &mut MediaIo<'_>, found: &scan::Found) -> bool {
    let data = found.header.records.iter().filter_map(|r| match r.kind {
        RecordKind::Data { crc } => Some(crc),
        RecordKind::Trim { .. } | RecordKind::Zero { .. } => None,
    });
    let crcs: Vec<u32> = data.collect();
    for index in 0..crcs.len() as u64 {
        io.want(index, Pba(found.at.0 + 1 + index));
    }
    let mut fits = true;
    while let Some((index, bytes)) = io.next() {
        fits &= bytes.is_ok_and(|b| crc32fast::hash(&b[..]) == crcs[index as usize]);
    }
    fits
}

/// Headers that a present header points back to, that lie in a segment that has not been reused since, and that are
/// not there.
fn count_lost(found: &Scan, superblock: &Superblock) -> u64 {
    let mut lives = std::collections::HashMap::new();
    for f in found.headers.values() {
        lives.insert(f.header.segment, f.header.epoch);
    }
    let lost = found.headers.values().filter(|f| {
        let before = HeaderNo(f.header.no.0 - 1);
        let at = f.header.back.and_then(|at| superblock.geometry.locate(at));
        let Some((segment, _)) = at else { return false };
        let life = lives.get(&segment);
        before.0 > 0
            && !found.headers.contains_key(&before)
            && life.is_some_and(|&epoch| epoch <= before)
    });
    lost.count() as u64
}
