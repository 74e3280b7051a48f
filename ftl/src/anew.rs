//! A volume of which the log does not say everything any more is made whole again.
//!
//! What a damaged header said may still be known, from a checkpoint: the volume opens and works, but the next full scan
//! of the headers would not find it. So what log and map do not agree about is said once more.

use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::blocking::{Volume, VolumeError};
use crate::check::{CheckReport, Checked};
use crate::device::Device;
use crate::ids::Intent;

const GRAIN: u64 = GRAIN_BYTES as u64;

impl<D: Device> Volume<D> {
    /// Grains of which the log, by its judge, says something else than the map of this volume, which has just been opened
    /// from the same media.
    ///
    /// # Errors
    /// If a part of the map can not be read.
    pub fn differing(&self, log: &CheckReport) -> Result<Vec<Lba>, VolumeError> {
        self.load(LbaRange::SPACE)?;
        let map = self.ftl().listing();
        let here = map
            .iter()
            .filter(|(lba, held)| log.map.get(lba) != Some(held));
        let there = log.map.keys().filter(|lba| !map.contains_key(lba));
        let mut all: Vec<Lba> = here.map(|(lba, _)| lba).chain(there).copied().collect();
        all.sort_unstable();
        Ok(all)
    }

    /// Says anew what the map says of some grains, and answers those whose data can not be read: they are left alone.
    ///
    /// # Errors
    /// If the volume takes no more changes.
    pub fn write_anew(&self, lbas: &[Lba]) -> Result<Vec<Lba>, VolumeError> {
        self.load(LbaRange::SPACE)?;
        let map = self.ftl().listing();
        let mut unreadable = Vec::new();
        for &lba in lbas {
            let range = LbaRange::new(lba, 1);
            let mut grain = [0; GRAIN_BYTES];
            if lba >= Lba::END {
                unreadable.extend(self.write_image_anew(lba, map.get(&lba).copied())?);
                continue;
            }
            match map.get(&lba) {
                Some(Checked::Data { .. }) => match self.read(lba.0 * GRAIN, &mut grain) {
                    Ok(()) => self.write(lba.0 * GRAIN, &grain)?,
                    Err(VolumeError::Damaged { .. } | VolumeError::Media { .. }) => {
                        unreadable.push(lba);
                    }
                    Err(error) => return Err(error),
                },
                Some(Checked::Zero) => {
                    let mut batch = AtomicBatch::new();
                    batch.trim(range);
                    self.commit(batch)?;
                    self.zero(range)?;
                }
                // A trim says something only where something is.
                None => {
                    self.write(lba.0 * GRAIN, &grain)?;
                    self.sync(range)?;
                    self.trim(range)?;
                }
            }
        }
        self.sync(LbaRange::SPACE)?;
        Ok(unreadable)
    }

    /// The same of something that snapshots have. Answers it if it can not be read.
    fn write_image_anew(
        &self,
        lba: Lba,
        held: Option<Checked>,
    ) -> Result<Option<Lba>, VolumeError> {
        let range = LbaRange::new(lba, 1);
        let mut grain = vec![0; GRAIN_BYTES];
        if let Some(Checked::Data { .. }) = held {
            match self.page(lba, Intent::Read) {
                Ok(page) => page.copy_out(0, &mut grain),
                Err(VolumeError::Damaged { .. } | VolumeError::Media { .. }) => {
                    return Ok(Some(lba));
                }
                Err(error) => return Err(error),
            }
        }
        let mut patch = AtomicBatch::new();
        patch.patch(lba, 0, grain);
        self.commit_snapshot(patch, None)?;
        if !matches!(held, Some(Checked::Data { .. })) {
            let mut trim = AtomicBatch::new();
            trim.trim(range);
            self.commit_snapshot(trim, None)?;
        }
        if let Some(Checked::Zero) = held {
            let mut zero = AtomicBatch::new();
            zero.zero(range);
            self.commit_snapshot(zero, None)?;
        }
        Ok(None)
    }
}
