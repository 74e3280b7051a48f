//! Recovery: from a device to an open volume, by a checkpoint and the headers behind it, or by scanning all headers.
//! See `docs/checkpoint.md` and `docs/format.md` for the arguments.
//!
//! | found | done |
//! |---|---|
//! | header of a past session, within that session's end | counts |
//! | header of a past session, beyond its end | cut tail: erased, never counts |
//! | header of the last session, number at most D | counts; D is the highest `durable` any of its headers carries |
//! | above D: consecutive, intact, all data checksums fit | counts |
//! | above D: behind the first gap, damage or misfit | cut tail |
//! | number missing, at most D | its segment was reused (or the header is damaged, then it is reported) |
//! | one of the two youngest roots, tables intact, no header missing behind it | only headers above it are looked for |
//! | none such | all headers; the roots are disowned |
//!
//! Nothing is written before all of that has been decided. Then: flush (what counts must be durable before anything
//! says so), the superblock with the session's end and the next session's number in both copies, and only then the
//! cut tail is erased. A cut anywhere in this leads to the same decisions the next time.

mod ahead;
pub(crate) mod io;
mod replay;
mod saved;
mod scan;
mod tail;

use crate::addr::{GRAIN_BYTES, Pba, SegmentId};
use crate::core::Recovered;
use crate::crash_point::crash_point;
use crate::device::{Device, MediaError};
use crate::error::OpenError;
use crate::format::{
    HeaderNo, RecordKind, Root, SavedSegment, SessionEnd, Superblock, SuperblockFlaw, has_heat,
};
use crate::geometry::Geometry;
use crate::map::MapTable;
use crate::placement::{GcPolicy, HeatMeaning};
use crate::planted::Bug;
use io::MediaIo;
use replay::Replayed;
use saved::Saved;
use scan::{Behind, Scan, Scope, scan};
use std::collections::HashMap;

/// Roots, youngest first, that the log is sure to have everything behind: tombstones that an older one needs expire
/// (`docs/checkpoint.md`, C3).
const ROOTS_WHOLE: usize = 2;

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
    /// Headers that are not there either, in segments in which nothing that is known lives. They are lost as well, or were
    /// dead, and their segment was being written again or discarded when the power was cut.
    pub headers_unsure: u64,
    /// Devices of an array that are missing. What `headers_lost` counts then was on them, written since the checkpoint: its
    /// grains may read as they were before.
    pub devices_lost: u32,
    /// Superblock copies that were damaged (and are whole again now).
    pub superblocks_damaged: u32,
    /// Grains mapped; too high at most as long as a part of the map is cold.
    pub mapped: u64,
    /// The checkpoint that the volume stands on; none: all headers were read. Then the headers counted above are
    /// only those behind it.
    pub checkpoint: Option<u64>,
    /// Pages of the map that are read later, as they are needed.
    pub map_pages_cold: u64,
}

/// Reads the superblock copies of all devices and chooses the youngest.
pub(crate) fn read_superblock(io: &mut MediaIo<'_>) -> Result<(Superblock, u32), OpenError> {
    let mut best: Option<Superblock> = None;
    let mut damaged = 0;
    let mut version = None;
    let mut nonsense = None;
    let mut media = None;
    let fronts = io.fronts();
    let copies = fronts.iter().flat_map(|front| [*front, Pba(front.0 + 1)]);
    for at in copies {
        match io.read(at).map(|bytes| Superblock::parse(&bytes)) {
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

/// Writes the superblock as the next generation, over the older copy and then over the other. The array does so on
/// each device.
pub(crate) fn write_superblock(
    io: &mut MediaIo<'_>,
    superblock: &mut Superblock,
) -> Result<(), MediaError> {
    for _ in 0..2 {
        superblock.generation += 1;
        io.write(Pba(superblock.generation % 2), &superblock.emit())?;
        crash_point!("superblock.copy");
        io.flush()?;
    }
    Ok(())
}

/// How to recover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Scan everything, whatever checkpoints say.
    pub(crate) rebuild: bool,
    /// No more grains than this may be unreadable.
    pub(crate) unreadable_max: u64,
    /// Maps of up to so many pages are read at once.
    pub(crate) pages_eager: usize,
    /// Pages that are read together when one is needed.
    pub(crate) unit_pages: usize,
    /// What it remembers of grains is taken over.
    pub(crate) policy: GcPolicy,
    pub(crate) planted: Option<Bug>,
}

/// The log as far as it was looked at, decided.
struct Decided {
    found: Scan,
    end: HeaderNo,
    replayed: Replayed,
    /// The checkpoint it stands on, and what of it is still cold.
    saved: Option<Saved>,
}

/// Recovers the volume on `device` into `table` and begins a new session.
pub(crate) fn recover(
    device: &mut dyn Device,
    table: &MapTable,
    how: How,
) -> Result<(Recovered, RecoveryReport), OpenError> {
    let mut io = MediaIo::new(device).map_err(OpenError::Memory)?;
    let lost = io.lost_mask();
    let (mut superblock, superblocks_damaged) = read_superblock(&mut io)?;
    let geometry = superblock.geometry;
    if geometry.places.count() != io.sizes().len() {
        return Err(OpenError::NotAssembled(geometry.places.count()));
    }
    if io.device_grains() < geometry.device_grains {
        return Err(OpenError::DeviceShrunk {
            expected: geometry.device_grains,
            actual: io.device_grains(),
        });
    }
    let meaning = how.policy.build(&geometry, 0).meaning();
    let (roots, highest) = saved::roots(&mut io, &superblock);
    let mut decided = None;
    let mut previous = None;
    let mut missing_behind_root = 0;
    if !how.rebuild || lost != 0 {
        // Where headers alone do not do, an older one is better than nothing.
        let tried = if lost == 0 { ROOTS_WHOLE } else { roots.len() };
        for (index, root) in roots.iter().enumerate().take(tried) {
            previous = roots.get(index + 1).cloned();
            match from_root(&mut io, &superblock, table, root.clone(), how, meaning) {
                Ok(found) => {
                    decided = Some(found);
                    break;
                }
                Err(PassedOver { missing }) => {
                    missing_behind_root = missing.max(missing_behind_root);
                }
            }
            tracing::warn!(number = root.number, "checkpoint passed over");
            table.clear();
        }
    }
    let decided = match decided {
        Some(decided) => decided,
        None => {
            refuse_failed(&io, lost)?;
            // Headers alone do not tell what was newer where they are not there.
            if let Some(member) = io.lost() {
                return Err(OpenError::NoCheckpoint(member.name().to_owned()));
            }
            if !roots.is_empty() {
                tracing::info!("scanning all headers");
            }
            superblock.roots_from = highest + 1;
            previous = None;
            from_scan(&mut io, &superblock, table, how.planted)
        }
    };
    let Decided {
        found,
        end,
        mut replayed,
        saved,
    } = decided;
    let floor = previous.as_ref().or(saved.as_ref().map(|s| &s.root));
    let floor = floor.map_or(HeaderNo(u64::MAX - 1), |root| root.replay_from);
    let places = geometry.places;
    for device in (0..places.count()).filter(|device| lost >> device & 1 == 1) {
        replayed.segments.lose(device);
    }
    if saved.is_some() {
        replayed.finish_tail(floor);
    }
    let (headers_lost, headers_unsure) = match &saved {
        Some(saved) => (
            count_gone(&found, &geometry, saved.root.replay_from, lost),
            0,
        ),
        None => {
            let missing = missing(&found, &geometry, HeaderNo(0), &[], 0);
            let in_use = |id: &&SegmentId| replayed.segments.get(**id).live > 0;
            let lost = missing.iter().filter(in_use).count() as u64;
            (lost, missing_behind_root.max(missing.len() as u64) - lost)
        }
    };
    let report = RecoveryReport {
        clean: superblock.clean,
        session: superblock.session + 1,
        headers: found.headers.len() as u64,
        headers_cut: found.cut.len() as u64,
        headers_damaged: found.damaged,
        headers_lost,
        headers_unsure,
        devices_lost: lost.count_ones(),
        superblocks_damaged,
        mapped: replayed.mapped,
        checkpoint: saved.as_ref().map(|s| s.root.number),
        map_pages_cold: saved.as_ref().map_or(0, |s| {
            if s.cold.is_warm() {
                0
            } else {
                s.cold.pages() as u64
            }
        }),
    };

    refuse_failed(&io, lost)?;
    let unread = io.given_up();
    if unread > how.unreadable_max || (unread > 0 && !is_there(&mut io)) {
        return Err(OpenError::Unreadable(unread));
    }
    if unread > 0 {
        tracing::warn!(
            grains = unread,
            "the device does not read some grains: they are taken for damaged, or for the end of the log"
        );
    }

    // Everything is decided; from here on the media is changed.
    crash_point!("recover.decided");
    prove_writable(&mut io, &superblock)?;
    io.flush()?;
    refuse_failed(&io, lost)?;
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
    superblock.heat |= has_heat(meaning, &geometry);
    superblock.suspect |= report.headers_lost > 0;
    superblock.failed |= lost;
    write_superblock(&mut io, &mut superblock)?;
    crash_point!("recover.session");
    for &at in &found.cut {
        io.write(at, &[0; GRAIN_BYTES])?;
    }
    if !found.cut.is_empty() {
        crash_point!("recover.cut");
        io.flush()?;
    }
    refuse_failed(&io, lost)?;
    let recovered = Recovered {
        superblock,
        log: replayed.log,
        segments: replayed.segments,
        records: replayed.records,
        index: replayed.index,
        mapped: replayed.mapped,
        root_number: highest,
        time: saved.as_ref().map_or(0, |s| s.root.time),
        previous,
        root: saved.as_ref().map(|s| s.root.clone()),
        changed: replayed.changed,
        cold: saved.map(|s| s.cold).unwrap_or_default(),
    };
    Ok((recovered, report))
}

/// Of an array, what others have done as well is no error of the operation: whether a device has failed since it was
/// assembled, beside those that were `lost` then.
fn refuse_failed(io: &MediaIo<'_>, lost: u16) -> Result<(), OpenError> {
    let failed = io.lost_mask() & !lost;
    match io.members() {
        Some(members) if failed != 0 => {
            let member = &members.list()[failed.trailing_zeros() as usize];
            Err(OpenError::DeviceLost(member.name().to_owned()))
        }
        _ => Ok(()),
    }
}

/// Whether each device still reads a superblock: one that does not is away, and what else it does not read no bad sectors.
fn is_there(io: &mut MediaIo<'_>) -> bool {
    let fronts = io.fronts();
    let mut each = fronts.into_iter();
    each.all(|front| (0..2).any(|copy| io.read(Pba(front.0 + copy)).is_ok()))
}

/// Writes what the superblock says over the older copy, on all devices of an array. One that does not take it would be a
/// generation behind the others for each time that somebody tries to open the volume, and soon out of date.
fn prove_writable(io: &mut MediaIo<'_>, superblock: &Superblock) -> Result<(), MediaError> {
    match superblock.geometry.places.count() {
        1 => Ok(()),
        _ => io.write(Pba((superblock.generation + 1) % 2), &superblock.emit()),
    }
}

/// The judge of everything else: all headers.
fn from_scan(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    table: &MapTable,
    planted: Option<Bug>,
) -> Decided {
    let scope = Scope {
        geometry: superblock.geometry,
        volume: superblock.volume_tag(),
        session: superblock.session,
        sessions: &superblock.sessions,
        fresh: &superblock.fresh,
        planted,
        lost: 0,
        tail: None,
    };
    let mut found = scan(io, &scope);
    let end = find_end(io, superblock, &mut found, HeaderNo(0), planted);
    let replayed = replay::replay(&superblock.geometry, &found.headers, end, table, planted);
    Decided {
        found,
        end,
        replayed,
        saved: None,
    }
}

/// A checkpoint that something does not fit with.
#[derive(Debug, Default)]
struct PassedOver {
    /// Headers behind it that are not there.
    missing: u64,
}

/// A checkpoint and the log behind it. Where something does not fit, the next best has to do.
fn from_root(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    table: &MapTable,
    root: Root,
    how: How,
    meaning: HeatMeaning,
) -> Result<Decided, PassedOver> {
    let geometry = superblock.geometry;
    let saved = saved::load(io, superblock, root, how.unit_pages, meaning);
    let mut saved = saved.ok_or_else(PassedOver::default)?;
    let root = &saved.root;
    let is_dump = superblock.clean
        && root.dump
        && root.session == superblock.session
        && root.replay_from == root.last
        && root.last == superblock.sessions.last();
    let is_dump = is_dump || (root.dump && how.planted == Some(Bug::StaleDumpAccepted));
    let scope = Scope {
        geometry,
        volume: superblock.volume_tag(),
        session: superblock.session,
        sessions: &superblock.sessions,
        fresh: &superblock.fresh,
        planted: how.planted,
        lost: io.lost_mask(),
        tail: Some(Behind {
            after: root.replay_from,
            session: root.session,
            segments: &saved.segments,
        }),
    };
    let mut found = if is_dump {
        Scan::default()
    } else {
        scan(io, &scope)
    };
    let end = find_end(io, superblock, &mut found, root.last, how.planted);
    let lost = io.lost_mask();
    let missing = missing(&found, &geometry, root.replay_from, &saved.segments, lost);
    if !missing.is_empty() {
        // A segment that was being reused looks the same. Where a device is not there, there is no better judge.
        if lost == 0 {
            let missing = missing.len() as u64;
            return Err(PassedOver { missing });
        }
        let headers_lost = missing.len();
        tracing::warn!(headers_lost, "headers behind the checkpoint are not there");
    }
    for end in &superblock.sessions.ends {
        let of_session = |s: &SavedSegment| end.first <= s.epoch && s.epoch <= end.end;
        if saved.segments.iter().any(of_session) {
            found.sessions.insert(end.session);
        }
    }
    let mut replayed = tail::replay_tail(&geometry, &mut saved, &found.headers, end, table);
    // What remaps of the tail tie together is read together, and now.
    let all = saved.cold.pages() <= how.pages_eager;
    if all || saved.cold.has_ties() {
        let cold = &mut saved.cold;
        let warm = saved::warm(io, superblock, cold, all, |content| {
            let mut books = replayed.books(&geometry, table);
            let sane = books.are_sane(content);
            if sane {
                books.install(content);
                replayed.changed.extend(content.changed());
            }
            sane
        });
        if !warm || (all && !replayed.are_counted(&geometry)) {
            return Err(PassedOver::default());
        }
    }
    Ok(Decided {
        found,
        end,
        replayed,
        saved: Some(saved),
    })
}

/// Finds the last header that counts and moves those above it to the cut. `known_durable` is
/// a header that is durable for sure.
fn find_end(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    found: &mut Scan,
    known_durable: HeaderNo,
    planted: Option<Bug>,
) -> HeaderNo {
    let past = superblock.sessions.last();
    let ended = superblock.session;
    let is_known = superblock.sessions.ends.iter().any(|s| s.session == ended);
    let mut end = past.max(known_durable);
    if !is_known {
        let last_session = found.headers.range(past.next()..);
        let durable = last_session.map(|(_, f)| f.header.durable).max();
        end = end.max(durable.unwrap_or(past));
        let lost = io.lost_mask();
        while let Some(next) = next_header(found, &superblock.geometry, end, lost) {
            let trusted = planted == Some(Bug::MappingBeforeData);
            if !trusted && !data_fits(io, next) {
                break;
            }
            end = next.header.no;
        }
    }
    if planted == Some(Bug::StaleHeaderAccepted) {
        return found.headers.keys().last().copied().unwrap_or(end).max(end);
    }
    let beyond = found.headers.split_off(&end.next());
    found.cut.extend(beyond.values().map(|f| f.at));
    end
}

/// The header behind `end`. Where a device is not there, one that says that the header before it lies on that device is
/// taken for the next: it may have been acknowledged.
fn next_header<'a>(
    found: &'a Scan,
    geometry: &Geometry,
    end: HeaderNo,
    lost: u16,
) -> Option<&'a scan::Found> {
    let (_, next) = found.headers.range(end.next()..).next()?;
    let follows = next.header.no == end.next() || is_behind_lost(next, geometry, lost);
    follows.then_some(next)
}

/// Whether the header before this one lies on a device that is not there.
fn is_behind_lost(found: &scan::Found, geometry: &Geometry, lost: u16) -> bool {
    let device = found
        .header
        .back
        .and_then(|at| geometry.places.device_of(at));
    device.is_some_and(|device| lost >> device & 1 == 1)
}

/// Headers behind a checkpoint that certainly lie on a device that is not there: what they held may read as it was
/// before.
fn count_gone(found: &Scan, geometry: &Geometry, after: HeaderNo, lost: u16) -> u64 {
    let gone = found.headers.values().filter(|f| {
        let before = HeaderNo(f.header.no.0 - 1);
        before > after && !found.headers.contains_key(&before) && is_behind_lost(f, geometry, lost)
    });
    gone.count() as u64
}

/// Whether every data grain of a write-out is on the media as its header says.
fn data_fits(io: &mut MediaIo<'_>, found: &scan::Found) -> bool {
    let data = found.header.records.iter().filter_map(|r| match r.kind {
        RecordKind::Data { crc } => Some(crc),
        _ => None,
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

/// Segments of the headers that a present header points back to, that lie in a segment that has not been reused since, and
/// that are not there. `saved` are the lives at a checkpoint that covers everything up to `after`. A segment that begins
/// with zeros has been free since, and discarded.
fn missing(
    found: &Scan,
    geometry: &Geometry,
    after: HeaderNo,
    saved: &[SavedSegment],
    lost: u16,
) -> Vec<SegmentId> {
    let mut lives = HashMap::new();
    for (index, segment) in saved.iter().enumerate() {
        let id = SegmentId(index as u32);
        if !found.blank.contains(&id) {
            lives.insert(id, segment.epoch);
        }
    }
    for f in found.headers.values() {
        lives.insert(f.header.segment, f.header.epoch);
    }
    let missing = found.headers.values().filter_map(|f| {
        let before = HeaderNo(f.header.no.0 - 1);
        let (segment, _) = f.header.back.and_then(|at| geometry.locate(at))?;
        let life = lives.get(&segment);
        let is_missing = before > after
            && !found.headers.contains_key(&before)
            && !is_behind_lost(f, geometry, lost)
            && life.is_some_and(|&epoch| epoch <= before);
        is_missing.then_some(segment)
    });
    missing.collect()
}
