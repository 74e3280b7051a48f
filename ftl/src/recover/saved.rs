//! Finding checkpoints: roots, and the tables that the mount needs.

use super::io::{MediaIo, RUN_MAX};
use crate::addr::{LbaRange, Pba};
use crate::checkpoint::{ColdMap, PageWanted, Sheet};
use crate::format::{
    Fence, GrainBytes, MapEntry, PageEntry, PageKind, PageName, Piece, ROOT_SLOTS, Root, SavedKind,
    SavedRecord, SavedSegment, Superblock, root_slot,
};
use crate::placement::HeatMeaning;
use std::collections::HashSet;

/// No segment and no zero record has so many grains; beyond there is no room to count on.
const LIVE_END: u32 = 1 << 31;
const ZEROS_END: u64 = 1 << 56;
/// Zero records on their way, beside those that the capacity bounds.
const ZERO_IDS_MORE: u64 = 1 << 16;

/// A checkpoint, ready to be replayed on.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) root: Root,
    pub(crate) segments: Vec<SavedSegment>,
    pub(crate) records: Vec<SavedRecord>,
    pub(crate) cold: ColdMap,
}

/// The intact roots of a volume, youngest first, and the highest number of any.
pub(crate) fn roots(io: &mut MediaIo<'_>, superblock: &Superblock) -> (Vec<Root>, u64) {
    let area = superblock.geometry.area_grains;
    let mut found = Vec::new();
    if area == 0 {
        return (found, 0);
    }
    for slot in 0..ROOT_SLOTS {
        let root = io
            .read(root_slot(slot))
            .ok()
            .and_then(|b| Root::parse(&b, area));
        found.extend(root.filter(|r| r.uuid == superblock.uuid));
    }
    let highest = found.iter().map(|r| r.number).max().unwrap_or(0);
    found.retain(|r| r.number >= superblock.roots_from && r.session <= superblock.session);
    found.sort_by_key(|r| std::cmp::Reverse(r.number));
    (found, highest)
}

/// Reads what a root names, except the map itself. None: something of it is damaged or makes no sense.
pub(crate) fn load(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    root: Root,
    unit_pages: usize,
    meaning: HeatMeaning,
) -> Option<Saved> {
    let mut wanted = Vec::new();
    let volume = superblock.volume_tag();
    let mut ask = |kind, session, from: u64, count: u32| {
        let positions = from..from + u64::from(count);
        wanted.extend(positions.map(|position| PageName {
            kind,
            volume,
            session,
            position,
        }));
    };
    for piece in &root.pieces {
        let from = piece.end() - u64::from(piece.fence);
        ask(PageKind::Fence, piece.session, from, piece.fence);
    }
    let tables = root.pieces.last()?.end();
    ask(PageKind::Segment, root.session, tables, root.segment_pages);
    let records = tables + u64::from(root.segment_pages);
    ask(PageKind::Record, root.session, records, root.record_pages);
    let pages = read_pages(io, superblock, &wanted)?;
    let mut pages = pages.into_iter();

    let mut sheets = Vec::new();
    for piece in &root.pieces {
        let fences = entries::<Fence>(&mut pages, piece.fence)?;
        if !orderly(piece, &fences) {
            return None;
        }
        let piece = *piece;
        sheets.push(Sheet { piece, fences });
    }
    let segments = entries::<SavedSegment>(&mut pages, root.segment_pages)?;
    let records = entries::<SavedRecord>(&mut pages, root.record_pages)?;
    let geometry = &superblock.geometry;
    let sane = segments.len() == geometry.segment_count as usize
        && segments.iter().all(|s| {
            s.used <= geometry.segment_grains && s.epoch <= root.last && s.live < LIVE_END
        })
        && records.iter().all(|r| {
            let live = match r.what {
                SavedKind::Zero { live, .. } => live,
                SavedKind::Trim(_) | SavedKind::Rename(_) => 0,
            };
            r.home.segment.0 < geometry.segment_count && live < ZEROS_END
        });
    let mut ids = HashSet::new();
    let zeros = records.iter().filter_map(|r| match r.what {
        SavedKind::Zero { id, .. } => Some(id),
        SavedKind::Trim(_) | SavedKind::Rename(_) => None,
    });
    let unique = zeros.into_iter().all(|id| ids.insert(id));
    // Each stands for a grain at least, and numbers are used again.
    let ids_end = geometry.capacity_grains + ZERO_IDS_MORE;
    let few = ids.iter().all(|id| u64::from(id.0) < ids_end);
    if !sane || !unique || !few {
        return None;
    }
    Some(Saved {
        cold: ColdMap::new(volume, sheets, unit_pages, meaning),
        root,
        segments,
        records,
    })
}

/// Fences of run and base ascend and are as many as there are pages.
fn orderly(piece: &Piece, fences: &[Fence]) -> bool {
    if fences.len() != (piece.run + piece.base) as usize {
        return false;
    }
    let (run, base) = fences.split_at(piece.run as usize);
    [run, base]
        .iter()
        .all(|part| part.windows(2).all(|w| w[0].last < w[1].first))
}

type Page = (PageName, Box<GrainBytes>);

/// Reads pages, all of them or nothing. They come in the order of `names`.
pub(super) fn read_pages(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    names: &[PageName],
) -> Option<Vec<Page>> {
    let (start, area) = (
        superblock.geometry.area_start(),
        superblock.geometry.area_grains,
    );
    // Pages that lie behind one another are read together.
    let place = |name: &PageName| name.position % area;
    let mut tag = 0;
    for run in names.chunk_by(|a, b| place(a) + 1 == place(b)) {
        for run in run.chunks(RUN_MAX) {
            io.want_run(tag, Pba(start.0 + place(&run[0])), run.len());
            tag += run.len() as u64;
        }
    }
    let mut pages: Vec<Option<Page>> = names.iter().map(|_| None).collect();
    while let Some((index, bytes)) = io.next() {
        let index = index as usize;
        pages[index] = bytes.ok().map(|b| (names[index], b));
    }
    pages.into_iter().collect()
}

/// The entries of the next `count` pages.
fn entries<E: PageEntry>(pages: &mut impl Iterator<Item = Page>, count: u32) -> Option<Vec<E>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let (name, bytes) = pages.next()?;
        all.extend(name.parse::<E>(&bytes)?);
    }
    Some(all)
}

/// Reads the map of a checkpoint: all of it, or what is tied together. False: a page is damaged.
pub(super) fn warm(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    cold: &mut ColdMap,
    all: bool,
    mut install: impl FnMut(&crate::checkpoint::UnitContent) -> bool,
) -> bool {
    if cold.has_ties() {
        let mut read = Vec::new();
        for unit in cold.tied() {
            let Some(pages) = read_unit(io, superblock, cold, unit) else {
                return false;
            };
            read.push((unit, pages));
        }
        let content = cold.assemble_tied(&read);
        if !install(&content) {
            return false;
        }
    }
    while all && let Some(unit) = cold.first_cold(LbaRange::SPACE) {
        let Some(read) = read_unit(io, superblock, cold, unit) else {
            return false;
        };
        let content = cold.assemble(unit, &read);
        if !install(&content) {
            return false;
        }
    }
    true
}

/// The pages of a unit of the map. None: one is damaged.
fn read_unit(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    cold: &ColdMap,
    unit: usize,
) -> Option<Vec<(PageWanted, Vec<MapEntry>)>> {
    let wanted = cold.pages_of(unit);
    let names: Vec<PageName> = wanted.iter().map(|w| w.name).collect();
    let pages = read_pages(io, superblock, &names)?;
    let all = wanted.into_iter().zip(pages);
    all.map(|(wanted, (name, bytes))| Some((wanted, name.parse_map(&bytes)?)))
        .collect()
}
