//! What counts: by a checkpoint and the headers behind it, or by all headers.

use super::How;
use super::end::find_end;
use super::gaps::missing;
use super::io::MediaIo;
use super::replay::{self, Replayed};
use super::saved::{self, Saved};
use super::scan::{Behind, Scan, Scope, scan};
use super::session::refuse_failed;
use super::tail;
use crate::error::OpenError;
use crate::format::{HeaderNo, Root, SavedSegment, Superblock};
use crate::map::MapTable;
use crate::placement::HeatMeaning;
use crate::planted::Bug;

/// Roots, youngest first, that the log is sure to have everything behind: tombstones that an older one needs expire
/// (`docs/checkpoint.md`, C3).
const ROOTS_WHOLE: usize = 2;

/// The log as far as it was looked at, decided.
pub(super) struct Decided {
    pub(super) found: Scan,
    pub(super) end: HeaderNo,
    pub(super) replayed: Replayed,
    /// The checkpoint it stands on, and what of it is still cold.
    pub(super) saved: Option<Saved>,
    /// The checkpoint before that.
    pub(super) previous: Option<Root>,
    /// Headers that are not there behind a checkpoint that was passed over.
    pub(super) missing_behind_roots: u64,
}

impl Decided {
    /// By a checkpoint or by all headers.
    fn new(found: Scan, end: HeaderNo, replayed: Replayed, saved: Option<Saved>) -> Self {
        Self {
            found,
            end,
            replayed,
            saved,
            previous: None,
            missing_behind_roots: 0,
        }
    }
}

/// Decides by the youngest of `roots` that everything fits with, or by all headers, which disowns the roots, the highest
/// of which is `highest`. `lost` are devices of an array that were missing from the start.
pub(super) fn decide(
    io: &mut MediaIo<'_>,
    superblock: &mut Superblock,
    table: &MapTable,
    (roots, highest): (&[Root], u64),
    how: How,
    meaning: HeatMeaning,
    lost: u16,
) -> Result<Decided, OpenError> {
    let mut missing_behind_roots = 0;
    if !how.rebuild || lost != 0 {
        // Where headers alone do not do, an older one is better than nothing.
        let tried = if lost == 0 { ROOTS_WHOLE } else { roots.len() };
        for (index, root) in roots.iter().enumerate().take(tried) {
            match from_root(io, superblock, table, root.clone(), how, meaning) {
                Ok(decided) => {
                    let previous = roots.get(index + 1).cloned();
                    return Ok(Decided {
                        previous,
                        ..decided
                    });
                }
                Err(PassedOver { missing }) => {
                    missing_behind_roots = missing.max(missing_behind_roots);
                }
            }
            tracing::warn!(number = root.number, "checkpoint passed over");
            table.clear();
        }
    }
    refuse_failed(io, lost)?;
    // Headers alone do not tell what was newer where they are not there.
    if let Some(member) = io.lost() {
        return Err(OpenError::NoCheckpoint(member.name().to_owned()));
    }
    if !roots.is_empty() {
        tracing::info!("scanning all headers");
    }
    superblock.roots_from = highest + 1;
    Ok(Decided {
        missing_behind_roots,
        ..from_scan(io, superblock, table, how.planted)
    })
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
    Decided::new(found, end, replayed, None)
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
    Ok(Decided::new(found, end, replayed, Some(saved)))
}
