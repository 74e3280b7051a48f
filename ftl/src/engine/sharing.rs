//! Pages whose memory is that of files which others map. See `docs/sharing.md`.

use super::Ftl;
use crate::addr::{GRAIN_BYTES, LbaRange};
use crate::error::ShareError;
use crate::shared::Shared;
use std::fs::File;

impl Ftl {
    /// Grains of a range get the pages of a memory file, from page `at` on, as the memory of their pages: whoever maps the
    /// file sees and makes changes at once, as if holding the page. The file must be long enough, and may get shorter only
    /// when the grains are not shared any more and [`Ftl::let_leave`] has said so. The ranges of one file follow one
    /// another; whoever shares [gathers](Ftl::gather) the pages, then gets each of them, before anybody maps the file.
    ///
    /// # Errors
    /// [`ShareError`], and nothing has been changed.
    pub fn share(&self, memory: &File, at: u64, range: LbaRange) -> Result<(), ShareError> {
        let needed = (at + range.count) * GRAIN_BYTES as u64;
        let has = memory.metadata().map_or(0, |file| file.len());
        if has < needed {
            return Err(ShareError::Memory(libc::EINVAL));
        }
        self.core(Shared::BACKGROUND, |core, cx| {
            core.share(cx, memory, at, range)
        })
    }

    /// Pages of a shared range that lie elsewhere leave memory. False: some can not leave yet, because somebody holds them
    /// or they are not on the media. The map of the range must be in memory, see [`Ftl::load`].
    pub fn gather(&self, range: LbaRange) -> bool {
        self.aside(|core, cx| core.gather(cx, range))
    }

    /// Looks for stores to shared pages of a range that mappings have made, which tell nobody: what was stored before is
    /// put when this returns. Returns how many pages it has found.
    pub fn find_stores(&self, range: LbaRange) -> u64 {
        /// Grains that are looked at under the lock in one go: about 20 microseconds.
        const PIECE: u64 = 32;
        let mut found = 0;
        let mut from = range.start;
        while from < range.end() {
            let piece = LbaRange::new(from, PIECE.min(range.end().0 - from.0));
            found += self.core(Shared::BACKGROUND, |core, cx| core.find_stores(cx, piece));
            from = piece.end();
        }
        found
    }

    /// The grains of a range, which is what is shared of a file or its end, are not shared any more: pages got from now on
    /// lie elsewhere. Those that there are leave by [`Ftl::let_leave`].
    pub fn unshare(&self, range: LbaRange) {
        self.core(Shared::BACKGROUND, |core, _| core.unshare(range));
    }

    /// Pages that are not shared any more leave their memory, as far as they are on the media and nobody holds them. True:
    /// nothing is left of `range` there.
    pub fn let_leave(&self, range: LbaRange) -> bool {
        self.aside(|core, cx| core.let_leave(cx, range))
    }

    /// Most grains that may be shared at once.
    pub fn shared_frames(&self) -> usize {
        self.shared.pool.shared_frames()
    }
}
