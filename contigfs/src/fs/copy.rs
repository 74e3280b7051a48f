//! Copying between files: whole grains are cloned, which moves no data; what is left at the edges is read and written.

use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::data::{ReadOptions, WriteOptions, place};
use super::metadata_sync::MetadataSync;
use super::range::FILE_BYTES_MAX;
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::format::Range;
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr};

const GRAIN: u64 = GRAIN_BYTES as u64;
/// Bytes that one call clones: four batches.
const CLONED_MAX: u64 = 4 * AtomicBatch::MOVED_MAX * GRAIN;
/// Bytes that are read and written at a time.
const BUFFER_BYTES: u64 = 1 << 20;
/// Bytes that one call reads and writes.
const MOVED_MAX: u64 = 16 * BUFFER_BYTES;

/// What to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The file to copy from.
    pub from: InodeNo,
    /// First byte to copy.
    pub from_offset: u64,
    /// The file to copy to; may be the same.
    pub to: InodeNo,
    /// Where the first byte goes.
    pub to_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Whole grains at the beginning of a copy.
struct Grains {
    /// First grain of the source.
    first: u64,
    count: u64,
    /// Bytes of them that are copied; the last grain may hold fewer.
    bytes: u64,
}

impl CopyRange {
    /// What is left when `done` bytes have been copied.
    fn after(self, done: u64) -> Self {
        Self {
            from_offset: self.from_offset + done,
            to_offset: self.to_offset + done,
            len: self.len - done,
            ..self
        }
    }

    /// Bytes to the next border between grains, which both files must reach at once; `None` when they do not.
    fn to_border(self) -> Option<u64> {
        let to_border = |offset: u64| offset.next_multiple_of(GRAIN) - offset;
        let from = to_border(self.from_offset);
        (from == to_border(self.to_offset)).then_some(from)
    }
}

impl<S: BlockStore> Fs<S> {
    /// Copies a range of bytes and answers how many: as many as there are before the end of the source, at most 1 GiB
    /// of clones and 16 MiB of data in one call. Grains that have the same position in both ranges are cloned, and are
    /// durable at the new place on return, with the size. Each grain is copied at once; the whole is not.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if the ranges overlap or one is no file, [`FsError::IsDirectory`],
    /// [`FsError::FileTooLarge`]; or as for a write, if nothing was copied before.
    pub fn copy_range(&self, copy: &CopyRange) -> Result<u64, FsError> {
        let from = self.inode(copy.from)?;
        from.live_file()?;
        self.inode(copy.to)?.live_file()?;
        let ends = (
            copy.from_offset.checked_add(copy.len),
            copy.to_offset.checked_add(copy.len),
        );
        let (Some(from_end), Some(to_end)) = ends else {
            return Err(FsError::FileTooLarge);
        };
        if copy.from == copy.to && copy.from_offset < to_end && copy.to_offset < from_end {
            return Err(FsError::Invalid);
        }
        // The end of the source is where it is now, also if the copy makes this very file longer.
        let size = from.state().size;
        let copy = CopyRange {
            len: copy.len.min(size.saturating_sub(copy.from_offset)),
            ..*copy
        };
        self.find_stores_in(&from)?;
        if copy.len > 0 && to_end <= FILE_BYTES_MAX {
            // Mode bits are the business of who knows the caller; the kernel sees to them.
            self.end_privileges(&self.inode(copy.to)?, WriteOptions::default())?;
        }
        let (mut cloned, mut moved) = (0, 0);
        while cloned + moved < copy.len && cloned < CLONED_MAX && moved < MOVED_MAX {
            let rest = copy.after(cloned + moved);
            let result = match self.clone_grains(&rest) {
                Ok(0) => self.move_bytes(&rest).inspect(|n| moved += n),
                clone => clone.inspect(|n| cloned += n),
            };
            match result {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if cloned + moved > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(cloned + moved)
    }

    /// Reads and writes up to where cloning can begin, or up to the end.
    fn move_bytes(&self, copy: &CopyRange) -> Result<u64, FsError> {
        let len = match copy.to_border() {
            Some(bytes) if bytes > 0 => bytes.min(copy.len),
            _ => copy.len.min(BUFFER_BYTES),
        };
        let mut buf = vec![0; len as usize];
        // As a clone, which reads nothing: the kernel would not hear of another time of access, nor say whether one is wanted.
        let reading = ReadOptions {
            keep_atime: true,
            ..ReadOptions::default()
        };
        let n = self.read_with(copy.from, copy.from_offset, &mut buf, reading)?;
        let options = WriteOptions::default();
        Ok(self.write(copy.to, copy.to_offset, &buf[..n], options)? as u64)
    }

    /// Clones the grains at the beginning of the ranges, as far as one batch does, and answers how many bytes that are;
    /// zero if there are no whole grains.
    fn clone_grains(&self, copy: &CopyRange) -> Result<u64, FsError> {
        if copy.to_border() != Some(0) {
            return Ok(0);
        }
        let (from, to) = (self.inode(copy.from)?, self.inode(copy.to)?);
        // In ascending order of number; of one and the same file once. Nobody writes to the source, or holds a page of it to read:
        // the batch, and all behind it, would wait for that to end.
        let before = (from.ino < to.ino).then(|| from.change_content());
        let _to_content = to.change_content();
        let after = (from.ino > to.ino).then(|| from.change_content());
        let _from_content = before.or(after);
        from.live_file()?;
        to.live_file()?;
        if self.is_shared(&to) {
            // Its pages have to stay where mappings have them.
            return Ok(0);
        }
        let grains = self.whole_grains(copy, &from, &to)?;
        if grains.count > 0 {
            self.clone_into(&from, &grains, &to, copy.to_offset)?;
        }
        Ok(grains.bytes)
    }

    /// The grains that one batch can clone. The last grain of the source is one of them if the target ends with it, too.
    fn whole_grains(&self, copy: &CopyRange, from: &Inode, to: &Inode) -> Result<Grains, FsError> {
        let (range, size) = place(from)?;
        let bytes = size.saturating_sub(copy.from_offset).min(copy.len);
        let takes_tail = !bytes.is_multiple_of(GRAIN)
            && copy.from_offset + bytes == size
            && copy.to_offset + bytes >= to.state().size
            && self.is_zero_behind(range, size)?;
        let count = (bytes / GRAIN + u64::from(takes_tail)).min(AtomicBatch::MOVED_MAX);
        Ok(Grains {
            first: copy.from_offset / GRAIN,
            count,
            bytes: bytes.min(count * GRAIN),
        })
    }

    /// Clones grains of `from` to `offset` in `to`. The caller holds `content` of both exclusively.
    fn clone_into(
        &self,
        from: &Arc<Inode>,
        grains: &Grains,
        to: &Arc<Inode>,
        offset: u64,
    ) -> Result<(), FsError> {
        let end = offset + grains.bytes;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        let target = self.ensure_range(to, end)?;
        let grows = end > to.state().size;
        if grows {
            self.clean_tail(to)?;
        }
        // Of one and the same file the source may just have been relocated.
        let (source, _) = place(from)?;
        let now = self.now();
        let _change = lock(&to.change);
        let mut txn = Txn::default();
        txn.batch.clone_range(
            source.start.offset(grains.first),
            target.start.offset(offset / GRAIN),
            grains.count,
        );
        txn.edit(to, |record| {
            record.mtime = now;
            record.ctime = now;
            // Also where the file is as long already, and the media do not know yet.
            record.size = record.size.max(end);
        });
        {
            // Nor does anybody past the file system, for as long as he likes.
            let _held_still = self.moves(from);
            self.commit(txn)?;
        }
        {
            let mut state = to.state();
            if grows {
                state.size = end;
            }
            state.count_anew();
        }
        if grows {
            self.has_grown(to);
        }
        if self.metadata_sync == MetadataSync::Strict {
            // What was written to the source and not durable may have been lost with a device of an array before the batch was. A
            // sync of the new names tells, and leaves it to one of the old ones to tell who wrote.
            let first = target.start.offset(offset / GRAIN);
            self.store.sync(LbaRange::new(first, grains.count))?;
        }
        Ok(())
    }

    /// Whether the last grain of a file holds nothing but zeros behind the end.
    fn is_zero_behind(&self, range: Range, size: u64) -> Result<bool, FsError> {
        let last = LbaRange::new(range.start.offset(size / GRAIN), 1);
        if self.store.next_mapped(last).is_none() {
            return Ok(true);
        }
        let mut behind = vec![0; (size.next_multiple_of(GRAIN) - size) as usize];
        self.store
            .read(ByteAddr::new(range.start, size), &mut behind)?;
        Ok(behind.iter().all(|&byte| byte == 0))
    }
}
