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
mod decide;
mod end;
mod gaps;
pub(crate) mod io;
mod replay;
mod report;
mod saved;
mod scan;
mod session;
mod superblock;
mod tail;

use crate::core::Recovered;
use crate::device::Device;
use crate::error::OpenError;
use crate::format::has_heat;
use crate::geometry::Geometry;
use crate::map::MapTable;
use crate::placement::GcPolicy;
use crate::planted::Bug;
use decide::{Decided, decide};
use io::MediaIo;
pub use report::RecoveryReport;
use session::{refuse_failed, refuse_unread};
pub(crate) use superblock::{read_superblock, write_superblock};

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
    refuse_other_devices(&io, &geometry)?;
    let meaning = how.policy.build(&geometry, 0).meaning();
    let (roots, highest) = saved::roots(&mut io, &superblock);
    let roots = (&roots[..], highest);
    let mut decided = decide(&mut io, &mut superblock, table, roots, how, meaning, lost)?;
    settle(&mut decided, &geometry, lost);
    let report = RecoveryReport {
        superblocks_damaged,
        ..RecoveryReport::of(&decided, &superblock, lost)
    };
    refuse_failed(&io, lost)?;
    refuse_unread(&mut io, how.unreadable_max)?;

    session::make_durable(&mut io, &superblock, lost)?;
    superblock.heat |= has_heat(meaning, &geometry);
    superblock.suspect |= report.headers_lost > 0;
    session::begin(&mut io, &mut superblock, &decided, lost)?;
    let Decided {
        replayed,
        saved,
        previous,
        ..
    } = decided;
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

/// The devices are those that the volume was made on, and as large.
fn refuse_other_devices(io: &MediaIo<'_>, geometry: &Geometry) -> Result<(), OpenError> {
    if geometry.places.count() != io.sizes().len() {
        return Err(OpenError::NotAssembled(geometry.places.count()));
    }
    if io.device_grains() < geometry.device_grains {
        return Err(OpenError::DeviceShrunk {
            expected: geometry.device_grains,
            actual: io.device_grains(),
        });
    }
    Ok(())
}

/// What follows for segments: those of `lost` devices are gone, and what no checkpoint that may count needs is free.
fn settle(decided: &mut Decided, geometry: &Geometry, lost: u16) {
    let segments = &mut decided.replayed.segments;
    for device in (0..geometry.places.count()).filter(|device| lost >> device & 1 == 1) {
        segments.lose(device);
    }
    if let Some(saved) = &decided.saved {
        let floor = decided.previous.as_ref().unwrap_or(&saved.root).replay_from;
        decided.replayed.finish_tail(floor);
    }
}
