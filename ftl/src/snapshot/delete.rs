//! Giving back what a snapshot that is being deleted holds. See S8 of `docs/snapshots.md`.

use super::slot::{TABLE, imaged};
use super::table::State;
use super::{Host, SnapshotChange, SnapshotError, Snapshots};
use crate::addr::LbaRange;
use crate::batch::AtomicBatch;
use crate::snapshot::Slot;

/// Grains of a piece, and runs of them.
const PIECE: usize = 4096;
const RUNS_MAX: usize = 24;

impl Snapshots {
    /// Does a piece of what is to be done for snapshots that are being deleted. False: nothing is left to do.
    ///
    /// # Errors
    /// [`SnapshotError`]; it may be called again.
    pub fn sweep(&self, host: &dyn Host) -> Result<bool, SnapshotError> {
        let (slot, older) = {
            let table = self.table();
            let all = table.by_age();
            let Some(at) = all.iter().position(|e| e.state == State::Dying) else {
                return Ok(false);
            };
            (
                all[at].slot,
                at.checked_sub(1).map(|before| all[before].slot),
            )
        };
        let images = slot.images(LbaRange::ALL);
        host.load_map(images)?;
        if let Some(older) = older {
            host.load_map(older.images(LbaRange::ALL))?;
        }
        if sweep_images(host, slot, older)? {
            return Ok(true);
        }
        let mut batch = AtomicBatch::new();
        match older {
            Some(older) => move_marks(host, slot, older, &mut batch)?,
            None => {
                batch.trim(slot.marks());
            }
        }
        let mut table = self.table();
        let mut next = table.clone();
        next.remove(slot);
        batch.patch(TABLE, 0, next.emit().to_vec());
        host.commit_images(batch, Some(SnapshotChange::Forget(slot)))?;
        *table = next;
        Ok(true)
    }
}

/// Moves a piece of the images to the older snapshot, or trims what that does not need. False: there are none.
fn sweep_images(host: &dyn Host, slot: Slot, older: Option<Slot>) -> Result<bool, SnapshotError> {
    let engine = host.engine();
    let images = slot.images(LbaRange::ALL);
    let mut batch = AtomicBatch::new();
    let mut from = images.start;
    for _ in 0..PIECE {
        let rest = LbaRange::new(from, images.end().0 - from.0);
        let Some(image) = engine.next_mapped(rest) else {
            break;
        };
        from = image.offset(1);
        let lba = imaged(image);
        let heir = older.filter(|&older| !engine.has_own(older, lba));
        let is_full = batch.trims.len() + batch.remaps.len() == RUNS_MAX;
        match heir {
            Some(heir) => match batch.remaps.last_mut() {
                Some(run) if run.source().end() == image => run.count += 1,
                _ if is_full => break,
                _ => {
                    batch.remap(image, heir.image(lba), 1);
                }
            },
            None => match batch.trims.last_mut() {
                Some(run) if run.end() == image => run.count += 1,
                _ if is_full => break,
                _ => {
                    batch.trim(LbaRange::new(image, 1));
                }
            },
        }
    }
    let is_some = !batch.trims.is_empty() || !batch.remaps.is_empty();
    if is_some {
        host.commit_images(batch, None)?;
    }
    Ok(is_some)
}

/// What was nothing at a snapshot was nothing at the older one, unless that has an image of it: the grains of its marks
/// become those of the older one, which takes no space. The last of them go with `last`.
fn move_marks(
    host: &dyn Host,
    slot: Slot,
    older: Slot,
    last: &mut AtomicBatch,
) -> Result<(), SnapshotError> {
    let engine = host.engine();
    let marks = slot.marks();
    host.load_map(marks)?;
    let mut from = marks.start;
    loop {
        let mut batch = AtomicBatch::new();
        while batch.remaps.len() < RUNS_MAX && from < marks.end() {
            let rest = LbaRange::new(from, marks.end().0 - from.0);
            let Some(lba) = engine.next_mapped(rest) else {
                from = marks.end();
                break;
            };
            from = lba.offset(1);
            let to = engine
                .give_mark_grain(older)
                .ok_or(SnapshotError::NoSpace)?;
            batch.remap(lba, to, 1);
        }
        if from == marks.end() {
            last.remaps = batch.remaps;
            return Ok(());
        }
        host.commit_images(batch, None)?;
    }
}
