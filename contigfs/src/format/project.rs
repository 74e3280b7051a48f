//! The table of projects with limits: one record for each, at a place of its own. See `docs/quotas.md`.

use ftl::{GRAIN_BYTES, Lba};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{INODES_MAX, PROJECT_RANGE};
use crate::error::Corruption;
use crate::inode::{InodeNo, Limits, ProjectId};

/// Size of a record.
pub(crate) const PROJECT_BYTES: usize = 64;
/// Records in a grain.
pub(crate) const PROJECTS_PER_GRAIN: u32 = (GRAIN_BYTES / PROJECT_BYTES) as u32;
/// Most projects with limits.
pub(crate) const PROJECTS_MAX: u32 = PROJECT_RANGE.order.grains() as u32 * PROJECTS_PER_GRAIN;
/// No limit.
const ENDLESS: u64 = u64::MAX;

/// A record. All zero: the slot is free.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawProject {
    id: U32,
    reserved: U32,
    /// Limits; all ones: none.
    bytes: U64,
    inodes: U64,
    /// The directory that was made a project, and its generation.
    top: U64,
    generation: U64,
    reserved2: [u8; 20],
    /// CRC-32 of the number of the slot (8 bytes) and the 60 bytes before.
    crc: U32,
}
const _: () = assert!(size_of::<RawProject>() == PROJECT_BYTES);

/// A project with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProjectRecord {
    pub(crate) id: ProjectId,
    pub(crate) limits: Limits,
    /// The directory that was made a project.
    pub(crate) top: InodeNo,
    /// Of that directory.
    pub(crate) generation: u64,
}

/// Where the record in a slot lies.
pub(crate) fn project_place(slot: u32) -> (Lba, u16) {
    let lba = PROJECT_RANGE
        .start
        .offset(u64::from(slot / PROJECTS_PER_GRAIN));
    let at = slot % PROJECTS_PER_GRAIN * PROJECT_BYTES as u32;
    (lba, at as u16)
}

impl ProjectRecord {
    /// Judges the record in a slot; `None` when the slot is free.
    pub(crate) fn parse(
        slot: u32,
        bytes: &[u8; PROJECT_BYTES],
    ) -> Result<Option<Self>, Corruption> {
        let wrong = |what| Corruption::Project { slot, what };
        if bytes == &[0; PROJECT_BYTES] {
            return Ok(None);
        }
        let raw = RawProject::ref_from_bytes(bytes).map_err(|_| wrong("record length"))?;
        if crc(slot, &bytes[..PROJECT_BYTES - 4]) != raw.crc.get() {
            return Err(wrong("checksum"));
        }
        let top = raw.top.get();
        if top == InodeNo::TABLE.0 || top >= INODES_MAX {
            return Err(wrong("impossible directory"));
        }
        let limit = |raw: u64| (raw != ENDLESS).then_some(raw);
        Ok(Some(Self {
            id: ProjectId::new(raw.id.get()).ok_or(wrong("no project"))?,
            limits: Limits {
                bytes: limit(raw.bytes.get()),
                inodes: limit(raw.inodes.get()),
            },
            top: InodeNo(top),
            generation: raw.generation.get(),
        }))
    }

    /// The bytes on media.
    pub(crate) fn emit(&self, slot: u32) -> [u8; PROJECT_BYTES] {
        let mut raw = RawProject {
            id: U32::new(self.id.get()),
            reserved: U32::ZERO,
            bytes: U64::new(self.limits.bytes.unwrap_or(ENDLESS)),
            inodes: U64::new(self.limits.inodes.unwrap_or(ENDLESS)),
            top: U64::new(self.top.0),
            generation: U64::new(self.generation),
            reserved2: [0; 20],
            crc: U32::ZERO,
        };
        raw.crc = U32::new(crc(slot, &raw.as_bytes()[..PROJECT_BYTES - 4]));
        let mut bytes = [0; PROJECT_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

fn crc(slot: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&u64::from(slot).to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ProjectRecord {
        ProjectRecord {
            id: ProjectId::new(7).unwrap(),
            limits: Limits {
                bytes: Some(0x1234),
                inodes: None,
            },
            top: InodeNo(5),
            generation: 9,
        }
    }

    #[test]
    fn golden_and_round_trip() {
        let bytes = sample().emit(3);
        assert_eq!(
            &bytes[..40],
            b"\x07\0\0\0\0\0\0\0\x34\x12\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0"
        );
        assert_eq!(ProjectRecord::parse(3, &bytes), Ok(Some(sample())));
        assert_eq!(ProjectRecord::parse(3, &[0; PROJECT_BYTES]), Ok(None));
    }

    /// I4: neither a damaged record nor one of another slot nor an impossible one is taken for good.
    #[test]
    fn damage_and_misplacement_are_noticed() {
        let bytes = sample().emit(3);
        assert!(ProjectRecord::parse(4, &bytes).is_err());
        for at in 0..PROJECT_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert!(ProjectRecord::parse(3, &damaged).is_err(), "byte {at}");
        }
        let of_table = ProjectRecord {
            top: InodeNo::TABLE,
            ..sample()
        };
        assert!(ProjectRecord::parse(3, &of_table.emit(3)).is_err());
    }

    /// Slots lie apart, in the place that is theirs.
    #[test]
    fn places() {
        assert_eq!(project_place(0), (PROJECT_RANGE.start, 0));
        assert_eq!(project_place(65), (PROJECT_RANGE.start.offset(1), 64));
        let (last, _) = project_place(PROJECTS_MAX - 1);
        assert!(PROJECT_RANGE.lbas().contains(last));
    }
}
