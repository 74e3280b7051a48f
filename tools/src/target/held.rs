//! A file that was found by its name, and is held by its number.
//!
//! The number of a file that goes is used again, perhaps at once. So between finding a file and opening its number it may have become
//! another one's, which its generation tells: another file is never opened in place of the one that was found.

use contigfs::{Attr, BlockStore, Fs, FsError, InodeNo};

/// A file that keeps its number until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a, S: BlockStore> {
    fs: &'a Fs<S>,
    /// What is known of it since it is held.
    pub attr: Attr,
}

impl<'a, S: BlockStore> Held<'a, S> {
    /// Holds a file that has been found; none if it has gone since.
    pub(super) fn of(fs: &'a Fs<S>, found: &Attr) -> Result<Option<Self>, FsError> {
        match fs.open(found.ino) {
            Err(FsError::NotFound) => return Ok(None),
            opened => opened?,
        }
        // From here on it is closed in any case.
        let mut held = Self { fs, attr: *found };
        let attr = fs.attr(found.ino)?;
        held.attr = attr;
        Ok((attr.generation == found.generation).then_some(held))
    }

    /// It stays open: closing it is the caller's from now on.
    pub(super) fn keep(self) -> InodeNo {
        let ino = self.attr.ino;
        std::mem::forget(self);
        ino
    }
}

impl<S: BlockStore> Drop for Held<'_, S> {
    fn drop(&mut self) {
        let ino = self.attr.ino;
        if let Err(error) = self.fs.close(ino) {
            tracing::debug!(%error, ?ino, "close");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::Arc;

    use contigfs::{FormatOptions, MemStore, NewNode};

    use super::*;

    /// Between finding and holding it a file goes, and its number is another's: that is not held in its place, nor kept open (I10).
    /// Who is held keeps its number.
    #[test]
    fn no_other_file_is_held() {
        let store = Arc::new(MemStore::new(8192));
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(store).unwrap();
        let make = |name: &str| {
            let name = OsStr::new(name);
            fs.create(InodeNo::ROOT, name, &NewNode::file()).unwrap()
        };
        let remove = |name: &str| fs.unlink(InodeNo::ROOT, OsStr::new(name)).unwrap();
        let found = make("found");
        remove("found");
        assert!(Held::of(&fs, &found).unwrap().is_none());
        let other = make("other");
        assert_eq!(other.ino, found.ino);
        assert!(Held::of(&fs, &found).unwrap().is_none());
        let held = Held::of(&fs, &other).unwrap().unwrap();
        remove("other");
        assert_ne!(make("third").ino, other.ino);
        drop(held);
        assert_eq!(make("fourth").ino, other.ino, "nobody has it open any more");
        let kept = Held::of(&fs, &make("kept")).unwrap().unwrap().keep();
        remove("kept");
        fs.close(kept).unwrap();
    }
}
