//! Extended attributes: those that can not be read, and what is left of some.

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::{Done, Surgeon, put_record};
use crate::acl::Acl;
use crate::check::{Problem, read_xattrs};
use crate::error::FsError;
use crate::format::{emit_xattrs, xattr_grain, xattr_head, xattr_rest};
use crate::inode::InodeNo;
use crate::store::BlockStore;
use crate::xattr::XattrName;

impl<S: BlockStore> Surgeon<'_, S> {
    /// Removes what nobody owns, and attributes that can not be read.
    pub(super) fn attributes(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            let mut batch = AtomicBatch::new();
            match problem {
                Problem::XattrsLeft { ino, lba } if self.knows_inodes() => {
                    let rest = xattr_rest(ino);
                    // What is behind it is left over as well.
                    let count = match rest.contains(lba) {
                        true => rest.end().0 - lba.0,
                        false => 1,
                    };
                    batch.trim(LbaRange::new(lba, count));
                }
                Problem::Xattrs { ino, .. } if self.is_full() => {
                    batch.trim(LbaRange::new(xattr_head(ino), 1));
                    batch.trim(xattr_rest(ino));
                }
                Problem::AccessList { ino } if self.is_full() => {
                    let Some(agreed) = self.agree(ino) else {
                        continue;
                    };
                    batch = agreed;
                }
                _ => continue,
            }
            done.note(problem, self.commit(batch))?;
        }
        Ok(done)
    }

    /// Makes a legal access control list and the mode say the same: what both allow. Nothing for an illegal list, or
    /// one of the wrong kind.
    fn agree(&self, ino: InodeNo) -> Option<AtomicBatch> {
        let mut record = self.record(ino).ok()?;
        let (mut set, _) = read_xattrs(self.store, ino, record.generation).ok()?;
        let acl = Acl::parse(set.get(&XattrName::access_acl())?).ok()??;
        if acl.perm_bits() == record.perm & 0o777 {
            return None;
        }
        record.perm &= acl.perm_bits() | !0o777;
        let agreed = acl.with_perm_bits(record.perm).emit();
        set.put(XattrName::access_acl(), &agreed);
        let mut batch = AtomicBatch::new();
        let bytes = emit_xattrs(ino, record.generation, &set);
        for (at, grain) in bytes.chunks(GRAIN_BYTES).enumerate() {
            batch.patch(xattr_grain(ino, at), 0, grain);
        }
        put_record(ino, &record, &mut batch);
        Some(batch)
    }
}
