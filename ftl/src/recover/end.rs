//! Where the log ends.

use super::gaps::is_behind_lost;
use super::io::MediaIo;
use super::scan::{Found, Scan};
use crate::addr::Pba;
use crate::format::{HeaderNo, RecordKind, Superblock};
use crate::geometry::Geometry;
use crate::planted::Bug;

/// Finds the last header that counts and moves those above it to the cut. `known_durable` is
/// a header that is durable for sure.
pub(super) fn find_end(
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
) -> Option<&'a Found> {
    let (_, next) = found.headers.range(end.next()..).next()?;
    let follows = next.header.no == end.next() || is_behind_lost(next, geometry, lost);
    follows.then_some(next)
}

/// Whether every data grain of a write-out is on the media as its header says.
fn data_fits(io: &mut MediaIo<'_>, found: &Found) -> bool {
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
