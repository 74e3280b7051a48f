//! A look at what is on the media, without opening the volume: nothing is recovered, nothing is written.

use crate::addr::{GRAIN_BYTES, Pba, SegmentId};
use crate::check::chain;
use crate::device::Device;
use crate::error::OpenError;
use crate::format::{Header, HeaderNo, ROOT_SLOTS, Root, Superblock, SuperblockFlaw, root_slot};
use crate::recover::io::MediaIo;
use std::fmt;

/// A device that holds a volume.
pub struct Inspector<'d> {
    io: MediaIo<'d>,
    superblock: Superblock,
}

impl fmt::Debug for Inspector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector")
            .field("superblock", &self.superblock)
            .finish_non_exhaustive()
    }
}

/// The root of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Counts the checkpoints of the volume.
    pub number: u64,
    /// Session that took it.
    pub session: u64,
    /// After a crash the log is read from behind this header.
    pub replay_from: HeaderNo,
    /// The youngest header that the saved map may know of.
    pub last: HeaderNo,
    /// Grains mapped.
    pub mapped: u64,
    /// Whether a shutdown took it.
    pub is_dump: bool,
    /// Checkpoints whose pages it needs, itself included.
    pub alive: usize,
    /// Bytes of these pages.
    pub bytes: u64,
}

impl<'d> Inspector<'d> {
    /// Looks at `device`.
    ///
    /// # Errors
    /// [`OpenError::NotFormatted`] if neither copy of the superblock is intact.
    pub fn new(device: &'d mut dyn Device) -> Result<Self, OpenError> {
        let mut io = MediaIo::new(device).map_err(OpenError::Memory)?;
        let copies = superblocks(&mut io);
        let young = copies.into_iter().filter_map(Result::ok);
        let superblock = young
            .max_by_key(|s| s.generation)
            .ok_or(OpenError::NotFormatted)?;
        let devices = superblock.geometry.places.count();
        if devices != io.sizes().len() {
            return Err(OpenError::NotAssembled(devices));
        }
        Ok(Self { io, superblock })
    }

    /// The younger copy of the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Both copies of each device, in order; one that can not be read counts as damaged.
    pub fn superblocks(&mut self) -> Vec<Result<Superblock, SuperblockFlaw>> {
        superblocks(&mut self.io)
    }

    /// Roots of checkpoints that are intact and of this volume, oldest first.
    pub fn checkpoints(&mut self) -> Vec<Checkpoint> {
        let area = self.superblock.geometry.area_grains;
        let mut found: Vec<Checkpoint> = (0..ROOT_SLOTS)
            .filter_map(|slot| self.io.read(root_slot(slot)).ok())
            .filter_map(|bytes| Root::parse(&bytes, area))
            .filter(|root| root.uuid == self.superblock.uuid)
            .map(|root| Checkpoint {
                number: root.number,
                session: root.session,
                replay_from: root.replay_from,
                last: root.last,
                mapped: root.mapped,
                is_dump: root.dump,
                alive: root.pieces.len(),
                bytes: (root.head() - root.tail()) * GRAIN_BYTES as u64,
            })
            .collect();
        found.sort_by_key(|checkpoint| checkpoint.number);
        found
    }

    /// The headers of the present life of a segment, front to back. Whether they count is another question, which
    /// [`crate::check()`] answers.
    pub fn headers(&mut self, segment: SegmentId) -> Vec<(Pba, Header)> {
        chain(&mut self.io, &self.superblock, segment)
    }
}

/// The copies of each device, one device after the other.
fn superblocks(io: &mut MediaIo<'_>) -> Vec<Result<Superblock, SuperblockFlaw>> {
    let fronts = io.fronts().into_iter();
    let copies = fronts.flat_map(|front| [front, Pba(front.0 + 1)]);
    let read = |at| match io.read(at) {
        Ok(bytes) => Superblock::parse(&bytes),
        Err(_) => Err(SuperblockFlaw::Checksum),
    };
    copies.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FormatOptions, Ftl, Lba, LbaRange, MemDevice, OpenOptions, Volume};

    /// What was written, synced and shut down is found on the media; nothing is changed by looking.
    #[test]
    fn finds_what_is_there() {
        let mut device = MemDevice::new(16 << 20).expect("memory");
        Ftl::format(&mut device, &FormatOptions::default()).expect("format");
        let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
        for n in 0..10 {
            volume.write(n * 4096, &[7; 4096]).expect("write");
        }
        volume.sync(LbaRange::ALL).expect("sync");
        volume.shutdown().expect("shutdown");
        let mut device = volume.into_device();
        let before = device.image().to_vec();
        let mut inspector = Inspector::new(&mut device).expect("a volume");
        assert!(inspector.superblocks().iter().all(Result::is_ok));
        assert!(inspector.superblock().clean);
        assert!(
            inspector
                .checkpoints()
                .iter()
                .any(|c| c.is_dump && c.mapped == 10)
        );
        let segments = inspector.superblock().geometry.segment_count;
        let mut lbas: Vec<Lba> = (0..segments)
            .flat_map(|s| inspector.headers(SegmentId(s)))
            .flat_map(|(_, header)| header.records)
            .map(|record| record.lba)
            .collect();
        lbas.sort();
        lbas.dedup();
        assert_eq!(lbas, (0..10).map(Lba).collect::<Vec<_>>());
        assert_eq!(device.image(), before);
    }

    /// What is no volume is refused.
    #[test]
    fn refuses_what_is_no_volume() {
        let mut device = MemDevice::new(1 << 20).expect("memory");
        assert!(matches!(
            Inspector::new(&mut device),
            Err(OpenError::NotFormatted)
        ));
    }
}
