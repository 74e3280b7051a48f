//! Inode records: 32 hot bytes that say where the data are, 128 cold bytes with everything else.

use ftl::{GRAIN_BYTES, Lba, LbaRange};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::relocation::{RawRelocation, Relocation};
use super::{HOT_RANGE, INODES_MAX, ROOT_DIR_RANGE};
use crate::buddy::Order;
use crate::error::Corruption;
use crate::inode::{FileKind, InodeNo, ProjectId};
use crate::time::Timestamp;

/// Size of a hot record.
pub(crate) const HOT_BYTES: usize = 32;
/// Hot records in a grain.
pub(crate) const HOT_PER_GRAIN: u64 = (GRAIN_BYTES / HOT_BYTES) as u64;
/// Size of a cold record.
pub(crate) const COLD_BYTES: usize = 128;
/// Where the number of the project stands in a cold record, 0 for none.
pub(crate) const COLD_PROJECT: usize = std::mem::offset_of!(RawCold, project);
/// Cold records in a grain.
pub(crate) const COLD_PER_GRAIN: u64 = (GRAIN_BYTES / COLD_BYTES) as u64;
/// What fills a record of which only that is known that it is lost: no checksum fits.
pub(crate) const LOST_RECORD: u8 = 0xff;

/// The inode waits for its last close; it has no name any more.
const FLAG_ORPHAN: u8 = 1;
/// Grains behind the end of the file were reserved on request; they are not leftovers of a crash.
const FLAG_RESERVED: u8 = 2;
/// Part of the file is in another range already: the cold record says which.
const FLAG_RELOCATING: u8 = 4;
/// It belongs to a project: the cold record says which.
const FLAG_PROJECT: u8 = 8;
const FLAGS: u8 = FLAG_ORPHAN | FLAG_RESERVED | FLAG_RELOCATING | FLAG_PROJECT;
/// `order` of inodes without data.
const NO_RANGE: u8 = 0xff;
/// Kind bits of record 0, the table itself.
const KIND_TABLE: u16 = 15;

/// Hot record. All zero: the inode is free.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHot {
    /// First grain of the range.
    lba: U64,
    size: U64,
    generation: U64,
    /// As `st_mode`: kind and permissions.
    mode: U16,
    /// The range has 2^order grains.
    order: u8,
    flags: u8,
    /// CRC-32 of the inode number (8 bytes) and the 28 bytes before.
    crc: U32,
}
const _: () = assert!(size_of::<RawHot>() == HOT_BYTES);

/// A time on media.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawTime {
    secs: I64,
    nanos: U32,
}

/// Cold record. All zero: the inode is free.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawCold {
    generation: U64,
    /// Parent of a directory; 0 otherwise.
    parent: U64,
    uid: U32,
    gid: U32,
    nlink: U32,
    rdev: U32,
    atime: RawTime,
    mtime: RawTime,
    ctime: RawTime,
    btime: RawTime,
    /// 0 unless the hot record says that it belongs to a project.
    project: U32,
    reserved: [u8; 12],
    /// All zero unless the hot record says that the file is relocating.
    relocation: RawRelocation,
    /// CRC-32 of the inode number (8 bytes) and the 124 bytes before.
    crc: U32,
}
const _: () = assert!(size_of::<RawCold>() == COLD_BYTES);

/// A buddy range: 2^order grains at a multiple of 2^order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// First grain.
    pub(crate) start: Lba,
    /// Binary logarithm of the length.
    pub(crate) order: Order,
}

impl Range {
    /// The grains.
    pub(crate) const fn lbas(self) -> LbaRange {
        LbaRange::new(self.start, self.order.grains())
    }

    /// Length in bytes.
    pub(crate) const fn bytes(self) -> u64 {
        self.order.grains() * GRAIN_BYTES as u64
    }
}

/// Everything the media know about an inode: hot and cold record together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    pub(crate) kind: FileKind,
    /// Lower twelve bits of `st_mode`.
    pub(crate) perm: u16,
    /// Present for files, directories and symbolic links, and only there.
    pub(crate) range: Option<Range>,
    pub(crate) size: u64,
    pub(crate) generation: u64,
    /// Without a name, but still open when the record was written.
    pub(crate) orphan: bool,
    /// Grains behind the end are reserved.
    pub(crate) reserved: bool,
    /// On the way to another range; `range` and `size` are still the old ones.
    pub(crate) relocation: Option<Relocation>,
    /// Who is charged for it.
    pub(crate) project: Option<ProjectId>,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    /// Parent directory of a directory.
    pub(crate) parent: Option<InodeNo>,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
}

impl InodeRecord {
    /// Judges the two records of `ino`; `None` when the inode is free.
    pub(crate) fn parse(
        ino: InodeNo,
        hot: &[u8; HOT_BYTES],
        cold: &[u8; COLD_BYTES],
    ) -> Result<Option<Self>, Corruption> {
        let wrong = |what| Corruption::Inode { ino, what };
        let hot = match (HotRecord::parse(ino, hot)?, cold == &[0; COLD_BYTES]) {
            (None, true) => return Ok(None),
            (Some(hot), false) => hot,
            _ => return Err(wrong("hot and cold record disagree whether it exists")),
        };
        let raw = RawCold::ref_from_bytes(cold).map_err(|_| wrong("cold record length"))?;
        if crc(ino, &cold[..COLD_BYTES - 4]) != raw.crc.get() {
            return Err(wrong("cold record checksum"));
        }
        if raw.generation.get() != hot.generation {
            return Err(wrong("hot and cold record are of different generations"));
        }
        let time = |raw: RawTime| {
            let time = Timestamp {
                secs: raw.secs.get(),
                nanos: raw.nanos.get(),
            };
            (time.nanos < 1_000_000_000)
                .then_some(time)
                .ok_or(wrong("time"))
        };
        let parent = match (raw.parent.get(), hot.kind) {
            (parent, FileKind::Directory) if 0 < parent && parent < INODES_MAX => {
                Some(InodeNo(parent))
            }
            (0, FileKind::Directory) => return Err(wrong("directory without parent")),
            (0, _) => None,
            _ => return Err(wrong("parent")),
        };
        let relocation = match (hot.relocating, hot.range) {
            (false, _) if raw.relocation.is_zero() => None,
            (true, Some(range)) => Some(
                Relocation::parse(&raw.relocation, range, hot.size)
                    .ok_or(wrong("impossible relocation"))?,
            ),
            _ => {
                return Err(wrong(
                    "hot and cold record disagree whether it is relocating",
                ));
            }
        };
        let project = ProjectId::new(raw.project.get());
        if project.is_some() != hot.in_project {
            return Err(wrong(
                "hot and cold record disagree whether it belongs to a project",
            ));
        }
        Ok(Some(Self {
            kind: hot.kind,
            perm: hot.perm,
            range: hot.range,
            size: hot.size,
            generation: hot.generation,
            orphan: hot.orphan,
            reserved: hot.reserved,
            relocation,
            project,
            nlink: raw.nlink.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            rdev: raw.rdev.get(),
            parent,
            atime: time(raw.atime)?,
            mtime: time(raw.mtime)?,
            ctime: time(raw.ctime)?,
            btime: time(raw.btime)?,
        }))
    }

    /// Whether it can be that of the root directory, which has one place.
    pub(crate) fn is_of_root(&self) -> bool {
        self.kind == FileKind::Directory && self.range == Some(ROOT_DIR_RANGE)
    }

    /// The hot record of `ino`.
    pub(crate) fn emit_hot(&self, ino: InodeNo) -> [u8; HOT_BYTES] {
        emit_hot(
            ino,
            RawHot {
                lba: U64::new(self.range.map_or(0, |range| range.start.0)),
                size: U64::new(self.size),
                generation: U64::new(self.generation),
                mode: U16::new(u16::from(self.kind.code()) << 12 | self.perm & 0o7777),
                order: self.range.map_or(NO_RANGE, |range| range.order.0),
                flags: if self.orphan { FLAG_ORPHAN } else { 0 }
                    | if self.reserved { FLAG_RESERVED } else { 0 }
                    | match self.relocation {
                        Some(_) => FLAG_RELOCATING,
                        None => 0,
                    }
                    | match self.project {
                        Some(_) => FLAG_PROJECT,
                        None => 0,
                    },
                crc: U32::ZERO,
            },
        )
    }

    /// The cold record of `ino`.
    pub(crate) fn emit_cold(&self, ino: InodeNo) -> [u8; COLD_BYTES] {
        let time = |time: Timestamp| RawTime {
            secs: I64::new(time.secs),
            nanos: U32::new(time.nanos),
        };
        let mut raw = RawCold {
            generation: U64::new(self.generation),
            parent: U64::new(self.parent.map_or(0, |parent| parent.0)),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            nlink: U32::new(self.nlink),
            rdev: U32::new(self.rdev),
            atime: time(self.atime),
            mtime: time(self.mtime),
            ctime: time(self.ctime),
            btime: time(self.btime),
            project: U32::new(self.project.map_or(0, ProjectId::get)),
            reserved: [0; 12],
            relocation: self
                .relocation
                .map_or(RawRelocation::ZERO, |relocation| relocation.emit()),
            crc: U32::ZERO,
        };
        raw.crc = U32::new(crc(ino, &raw.as_bytes()[..COLD_BYTES - 4]));
        let mut bytes = [0; COLD_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

/// What the hot record says; enough to rebuild the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HotRecord {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) range: Option<Range>,
    pub(crate) size: u64,
    pub(crate) generation: u64,
    pub(crate) orphan: bool,
    pub(crate) reserved: bool,
    /// Part of the file is in another range; the cold record knows which.
    pub(crate) relocating: bool,
    /// It belongs to a project; the cold record knows which.
    pub(crate) in_project: bool,
}

impl HotRecord {
    /// As [`InodeRecord::is_of_root`].
    pub(crate) fn is_of_root(&self) -> bool {
        self.kind == FileKind::Directory && self.range == Some(ROOT_DIR_RANGE)
    }

    /// Judges the hot record of `ino`; `None` when the inode is free.
    pub(crate) fn parse(ino: InodeNo, hot: &[u8; HOT_BYTES]) -> Result<Option<Self>, Corruption> {
        let wrong = |what| Corruption::Inode { ino, what };
        if hot == &[0; HOT_BYTES] {
            return Ok(None);
        }
        let raw = RawHot::ref_from_bytes(hot).map_err(|_| wrong("hot record length"))?;
        if crc(ino, &hot[..HOT_BYTES - 4]) != raw.crc.get() {
            return Err(wrong("hot record checksum"));
        }
        if raw.flags & !FLAGS != 0 {
            return Err(wrong("unknown flags"));
        }
        let mode = raw.mode.get();
        let kind = FileKind::from_code((mode >> 12) as u8).ok_or(wrong("unknown kind"))?;
        let wants_range = matches!(
            kind,
            FileKind::File | FileKind::Directory | FileKind::Symlink
        );
        let range = match (raw.order, wants_range) {
            (NO_RANGE, false) => None,
            (order, true) => {
                Some(parse_range(raw.lba.get(), order).ok_or(wrong("impossible range"))?)
            }
            _ => return Err(wrong("range does not fit the kind")),
        };
        if raw.flags & FLAG_RELOCATING != 0 && kind != FileKind::File {
            return Err(wrong("only files relocate"));
        }
        let size = raw.size.get();
        if size > range.map_or(0, Range::bytes) {
            return Err(wrong("size exceeds the range"));
        }
        if kind == FileKind::Symlink && size > super::TARGET_MAX as u64 {
            return Err(wrong("link target too long"));
        }
        Ok(Some(Self {
            kind,
            perm: mode & 0o7777,
            range,
            size,
            generation: raw.generation.get(),
            orphan: raw.flags & FLAG_ORPHAN != 0,
            reserved: raw.flags & FLAG_RESERVED != 0,
            relocating: raw.flags & FLAG_RELOCATING != 0,
            in_project: raw.flags & FLAG_PROJECT != 0,
        }))
    }
}

/// Record 0: the inode table as a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRecord {
    /// Number of hot grains in use; all records behind them are free.
    pub(crate) grains: u64,
}

impl TableRecord {
    /// Judges the hot record 0.
    pub(crate) fn parse(hot: &[u8; HOT_BYTES]) -> Result<Self, Corruption> {
        let wrong = |what| Corruption::Inode {
            ino: InodeNo::TABLE,
            what,
        };
        let raw = RawHot::ref_from_bytes(hot).map_err(|_| wrong("record length"))?;
        if crc(InodeNo::TABLE, &hot[..HOT_BYTES - 4]) != raw.crc.get() {
            return Err(wrong("checksum"));
        }
        let range = (Lba(raw.lba.get()), raw.order);
        if raw.mode.get() != KIND_TABLE << 12 || range != (HOT_RANGE.start, HOT_RANGE.order.0) {
            return Err(wrong("not the inode table"));
        }
        let size = raw.size.get();
        if size == 0 || size > HOT_RANGE.bytes() || !size.is_multiple_of(GRAIN_BYTES as u64) {
            return Err(wrong("impossible size of the inode table"));
        }
        Ok(Self {
            grains: size / GRAIN_BYTES as u64,
        })
    }

    /// The bytes on media.
    pub(crate) fn emit(&self) -> [u8; HOT_BYTES] {
        emit_hot(
            InodeNo::TABLE,
            RawHot {
                lba: U64::new(HOT_RANGE.start.0),
                size: U64::new(self.grains * GRAIN_BYTES as u64),
                generation: U64::ZERO,
                mode: U16::new(KIND_TABLE << 12),
                order: HOT_RANGE.order.0,
                flags: 0,
                crc: U32::ZERO,
            },
        )
    }
}

fn emit_hot(ino: InodeNo, mut raw: RawHot) -> [u8; HOT_BYTES] {
    raw.crc = U32::new(crc(ino, &raw.as_bytes()[..HOT_BYTES - 4]));
    let mut bytes = [0; HOT_BYTES];
    bytes.copy_from_slice(raw.as_bytes());
    bytes
}

/// A range that the buddy allocator could have handed out.
pub(super) fn parse_range(lba: u64, order: u8) -> Option<Range> {
    let order = Order::new(order)?;
    let grains = order.grains();
    let outside_metadata = lba >= super::METADATA_ORDER.grains();
    let inside_space = lba.checked_add(grains)? <= Lba::END.0;
    (lba.is_multiple_of(grains) && outside_metadata && inside_space).then_some(Range {
        start: Lba(lba),
        order,
    })
}

fn crc(ino: InodeNo, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ino.0.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Splice;

    fn sample() -> InodeRecord {
        let time = |secs| Timestamp { secs, nanos: 7 };
        InodeRecord {
            kind: FileKind::File,
            perm: 0o4755,
            range: Some(Range {
                start: Lba(1 << 33),
                order: Order(24),
            }),
            size: 0x1234,
            generation: 99,
            orphan: false,
            reserved: false,
            relocation: None,
            project: None,
            nlink: 2,
            uid: 1000,
            gid: 100,
            rdev: 0,
            parent: None,
            atime: time(1),
            mtime: time(-2),
            ctime: time(3),
            btime: time(4),
        }
    }

    #[test]
    fn golden_hot_record() {
        let bytes = sample().emit_hot(InodeNo(5));
        assert_eq!(
            &bytes[..28],
            b"\0\0\0\0\x02\0\0\0\x34\x12\0\0\0\0\0\0\x63\0\0\0\0\0\0\0\xed\x89\x18\0"
        );
    }

    #[test]
    fn golden_cold_record() {
        let bytes = sample().emit_cold(InodeNo(5));
        assert_eq!(
            &bytes[..32],
            b"\x63\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xe8\x03\0\0\x64\0\0\0\x02\0\0\0\0\0\0\0"
        );
        assert_eq!(
            &bytes[44..56],
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\x07\0\0\0"
        );
    }

    #[test]
    fn round_trip() {
        let record = sample();
        let ino = InodeNo(5);
        assert_eq!(
            InodeRecord::parse(ino, &record.emit_hot(ino), &record.emit_cold(ino)),
            Ok(Some(record))
        );
        assert_eq!(
            InodeRecord::parse(ino, &[0; HOT_BYTES], &[0; COLD_BYTES]),
            Ok(None)
        );
        let table = TableRecord { grains: 3 };
        assert_eq!(TableRecord::parse(&table.emit()), Ok(table));
    }

    /// A relocation is in the cold record, and the hot one says so: neither without the other.
    #[test]
    fn relocation_and_its_flag_belong_together() {
        let (mut record, ino) = (sample(), InodeNo(5));
        let (hot_at_rest, cold_at_rest) = (record.emit_hot(ino), record.emit_cold(ino));
        record.relocation = Some(Relocation {
            to: Range {
                start: Lba(1 << 34),
                order: Order(25),
            },
            splice: Splice::Insert { at: 1, count: 2 },
        });
        let (hot, cold) = (record.emit_hot(ino), record.emit_cold(ino));
        assert_eq!(InodeRecord::parse(ino, &hot, &cold), Ok(Some(record)));
        assert_eq!((hot[27], cold[121]), (4, 2));
        assert!(HotRecord::parse(ino, &hot).is_ok_and(|hot| hot.is_some_and(|r| r.relocating)));
        assert!(InodeRecord::parse(ino, &hot, &cold_at_rest).is_err());
        assert!(InodeRecord::parse(ino, &hot_at_rest, &cold).is_err());
    }

    /// A project is in the cold record, and the hot one says so: neither without the other.
    #[test]
    fn project_and_its_flag_belong_together() {
        let (mut record, ino) = (sample(), InodeNo(5));
        let (hot_alone, cold_alone) = (record.emit_hot(ino), record.emit_cold(ino));
        record.project = ProjectId::new(0x102);
        let (hot, cold) = (record.emit_hot(ino), record.emit_cold(ino));
        assert_eq!(InodeRecord::parse(ino, &hot, &cold), Ok(Some(record)));
        assert_eq!((hot[27], &cold[80..84]), (8, &b"\x02\x01\0\0"[..]));
        assert!(InodeRecord::parse(ino, &hot, &cold_alone).is_err());
        assert!(InodeRecord::parse(ino, &hot_alone, &cold).is_err());
    }

    /// A record read at another inode's place, or with any damaged byte, is not taken for good.
    #[test]
    fn damage_and_misplacement_are_noticed() {
        let (record, ino) = (sample(), InodeNo(5));
        let (hot, cold) = (record.emit_hot(ino), record.emit_cold(ino));
        assert!(InodeRecord::parse(InodeNo(6), &hot, &cold).is_err());
        for at in 0..HOT_BYTES {
            let mut damaged = hot;
            damaged[at] ^= 1;
            assert!(
                InodeRecord::parse(ino, &damaged, &cold).is_err(),
                "hot byte {at}"
            );
        }
        for at in 0..COLD_BYTES {
            let mut damaged = cold;
            damaged[at] ^= 1;
            assert!(
                InodeRecord::parse(ino, &hot, &damaged).is_err(),
                "cold byte {at}"
            );
        }
    }

    /// A record with a good checksum but impossible values (a crafted image) is refused.
    #[test]
    fn crafted_values_are_refused() {
        let ino = InodeNo(5);
        let refused = |change: fn(&mut InodeRecord)| {
            let mut record = sample();
            change(&mut record);
            assert!(
                InodeRecord::parse(ino, &record.emit_hot(ino), &record.emit_cold(ino)).is_err()
            );
        };
        refused(|r| r.size = (1 << 36) + 1);
        refused(|r| r.range = None);
        refused(|r| {
            r.range = Some(Range {
                start: Lba(1 << 20),
                order: Order(4),
            })
        });
        refused(|r| {
            r.range = Some(Range {
                start: Lba((1 << 33) + 1),
                order: Order(4),
            })
        });
        refused(|r| {
            r.range = Some(Range {
                start: Lba(1 << 52),
                order: Order(4),
            })
        });
        refused(|r| {
            r.range = Some(Range {
                start: Lba(1 << 33),
                order: Order(60),
            })
        });
        refused(|r| r.mtime.nanos = 1_000_000_000);
        refused(|r| r.kind = FileKind::Socket);
        refused(|r| r.kind = FileKind::Directory);
        refused(|r| r.parent = Some(InodeNo(7)));
        let onto_itself = |r: &mut InodeRecord| {
            r.relocation = r.range.map(|to| Relocation {
                to,
                splice: Splice::None,
            })
        };
        refused(onto_itself);
    }
}
