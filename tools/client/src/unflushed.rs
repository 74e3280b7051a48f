//! What was acknowledged and is not durable, by region: what a flush may promise.
//!
//! A target that was killed has lost what was in its memory, and the next one does not know what that was. So what was
//! acknowledged in an earlier life is *in doubt*, and a flush must not promise it. A region may be open several times, and who asks for a
//! flush need not be who has written: he is told, and so is who has.
//!
//! # Invariants
//! - A flush is promised only if everything of its region that was acknowledged before it was asked for is durable, or a flush that was
//!   asked for earlier has told of the doubt by then.
//! - An open file through which something was written that is in doubt is told so once, whoever else was told of it.

use std::collections::HashMap;

use softrdma::Stag;

use crate::channel::FileNo;

/// Regions that are remembered, though no file of theirs is open, because of what was written to them. A tenant has no more at once, so
/// with more of them most are no regions any more.
const CLOSED_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Region {
    /// The life of the target in which the first was acknowledged that is not durable.
    since: Option<u64>,
    /// So often something was found to be in doubt.
    doubts: u64,
    /// So many files are open.
    files: usize,
}

#[derive(Debug)]
struct Open {
    region: Stag,
    /// As of the region, of what was written through this file.
    since: Option<u64>,
    /// Something was in doubt that was written through it, and others were told.
    is_in_doubt: bool,
}

/// How often something had been in doubt when a flush was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked(u64);

/// The open files of a client, and what was written to their regions.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    regions: HashMap<Stag, Region>,
    files: HashMap<FileNo, Open>,
}

impl Unflushed {
    /// A file was opened.
    pub(crate) fn open(&mut self, file: FileNo, region: Stag) {
        self.regions.entry(region).or_default().files += 1;
        let open = Open {
            region,
            since: None,
            is_in_doubt: false,
        };
        self.files.insert(file, open);
    }

    /// It was closed. What is not durable is remembered for who opens the region next.
    pub(crate) fn close(&mut self, file: FileNo) {
        let Some(Open { region, .. }) = self.files.remove(&file) else {
            return;
        };
        if let Some(entry) = self.regions.get_mut(&region) {
            entry.files -= 1;
            if entry.files == 0 && entry.since.is_none() {
                self.regions.remove(&region);
            }
        }
        if self.regions.len() > self.files.len() + CLOSED_MAX {
            self.regions.retain(|_, entry| entry.files > 0);
        }
    }

    /// Something was acknowledged in this life of the target, and is not durable.
    pub(crate) fn written(&mut self, file: FileNo, life: u64) {
        let Some(open) = self.files.get_mut(&file) else {
            return;
        };
        open.since.get_or_insert(life);
        if let Some(entry) = self.regions.get_mut(&open.region) {
            entry.since.get_or_insert(life);
        }
    }

    /// A flush is asked for.
    pub(crate) fn asked(&self, file: FileNo) -> Asked {
        let open = self.files.get(&file);
        let entry = open.and_then(|open| self.regions.get(&open.region));
        Asked(entry.map_or(0, |entry| entry.doubts))
    }

    /// It was carried out in this life. Whether it can be promised.
    pub(crate) fn flushed(&mut self, file: FileNo, asked: Asked, life: u64) -> bool {
        let Some(region) = self.files.get(&file).map(|open| open.region) else {
            return true;
        };
        let Some(entry) = self.regions.get_mut(&region) else {
            return true;
        };
        let is_earlier = |since: Option<u64>| since.is_some_and(|since| since != life);
        if let Some(since) = entry.since.take() {
            entry.doubts += u64::from(is_earlier(Some(since)));
            for open in self.files.values_mut().filter(|open| open.region == region) {
                open.is_in_doubt |= is_earlier(open.since.take());
            }
        }
        let was_told = entry.doubts == asked.0;
        let open = self.files.get_mut(&file);
        let is_in_doubt = open.is_some_and(|open| std::mem::take(&mut open.is_in_doubt));
        was_told && !is_in_doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Stag = Stag(7);
    const ONE: FileNo = FileNo(0);
    const OTHER: FileNo = FileNo(1);

    fn flush(unflushed: &mut Unflushed, file: FileNo, life: u64) -> bool {
        let asked = unflushed.asked(file);
        unflushed.flushed(file, asked, life)
    }

    /// I1, I8: who asks for a flush is told of what is in doubt, whoever had asked by then, and whoever has written it.
    #[test]
    fn a_doubt_is_told_to_all_whom_it_concerns() {
        let mut unflushed = Unflushed::default();
        unflushed.open(ONE, REGION);
        unflushed.open(OTHER, REGION);
        unflushed.written(ONE, 1);
        assert!(flush(&mut unflushed, OTHER, 1));
        assert!(flush(&mut unflushed, ONE, 2), "it was made durable");
        unflushed.written(ONE, 2);
        let (early, late) = (unflushed.asked(ONE), unflushed.asked(ONE));
        assert!(!unflushed.flushed(ONE, early, 3));
        assert!(!unflushed.flushed(ONE, late, 3));
        assert!(flush(&mut unflushed, ONE, 3));
        assert!(flush(&mut unflushed, OTHER, 3), "it has written nothing");
        unflushed.written(ONE, 3);
        assert!(!flush(&mut unflushed, OTHER, 4));
        assert!(flush(&mut unflushed, OTHER, 4));
        assert!(!flush(&mut unflushed, ONE, 4), "it has");
        assert!(flush(&mut unflushed, ONE, 4));
    }

    /// I1: what is not durable when its file is closed is in doubt for who opens the region next. I16: such regions are bounded.
    #[test]
    fn what_was_closed_is_remembered_for_a_while() {
        let mut unflushed = Unflushed::default();
        unflushed.open(ONE, REGION);
        unflushed.written(ONE, 1);
        unflushed.close(ONE);
        unflushed.open(OTHER, REGION);
        assert!(!flush(&mut unflushed, OTHER, 2));
        unflushed.close(OTHER);
        assert!(unflushed.regions.is_empty());
        for number in 0..3 * CLOSED_MAX as u32 {
            unflushed.open(ONE, Stag(number));
            unflushed.written(ONE, 1);
            unflushed.close(ONE);
            assert!(unflushed.regions.len() <= CLOSED_MAX);
        }
        assert!(unflushed.files.is_empty());
    }
}
