//! Pages: getting and putting them, and the memory they lie in.

use super::{Ftl, Get};
use crate::addr::{Lba, LbaRange};
use crate::error::GetError;
use crate::ids::{Intent, Port, Token};
use crate::map::{FrameId, Location, State};
use crate::page::{Hold, PageRef};
use crate::shared::Shared;
use std::sync::atomic::Ordering;

impl Ftl {
    /// Pins a page if that takes no lock: a resident page, or zeros for reading what is not written. `None` means:
    /// use [`Ftl::get`].
    pub fn try_get(&self, lba: Lba, intent: Intent) -> Option<PageRef> {
        self.pin(Shared::BACKGROUND, lba, intent)
    }

    fn pin(&self, port: Port, lba: Lba, intent: Intent) -> Option<PageRef> {
        if lba >= Self::end(intent) {
            return None;
        }
        let shared = &self.shared;
        let writable = intent != Intent::Read;
        if writable
            && (shared.closed.load(Ordering::Relaxed) || shared.keeping.load(Ordering::Relaxed))
        {
            return None;
        }
        // Before looking. A map that is warm is whole; of one that is not a leaf may be missing, or be filled just now.
        let is_cold = shared.map_cold.load(Ordering::SeqCst);
        let seen = shared.moves.look();
        let leaf = shared.map.leaf(lba);
        if let Some(leaf) = leaf.filter(|leaf| leaf.found(lba).is_some()) {
            if let Some(frame) = leaf.entry(lba).pin() {
                // A snapshot that has come into being in between has seen the pin, or is seen here.
                if writable && shared.keeping.load(Ordering::SeqCst) {
                    shared.unpin(leaf.entry(lba), lba, frame, false, port);
                    return None;
                }
                let hold = Hold::Shared { leaf, writable };
                return Some(PageRef::new(shared, hold, frame, lba, port));
            }
            let state = leaf.entry(lba).state();
            let is_blank = matches!(state, State::Away(Location::Nowhere | Location::Zero(_)));
            if !is_blank {
                return None;
            }
        }
        // Nothing was found. That may be so for a moment only; the core knows.
        if is_cold || !shared.moves.is_still(seen) {
            return None;
        }
        (intent == Intent::Read).then(|| PageRef::new(shared, Hold::Zeros, FrameId(0), lba, port))
    }

    /// Pins a page, reading it if need be. See [`Intent`] for what may be done with it.
    pub fn get(&self, port: Port, lba: Lba, intent: Intent, token: Token) -> Get {
        if lba >= Self::end(intent) {
            return Get::Failed(GetError::OutOfRange);
        }
        if let Some(page) = self.pin(port, lba, intent) {
            return Get::Ready(page);
        }
        let got = self.core(port, |core, cx| core.get(cx, lba, intent, token));
        got.map_or(Get::Pending, Get::from)
    }

    /// Images of snapshots can be looked at.
    fn end(intent: Intent) -> Lba {
        match intent {
            Intent::Read => Lba::SPACE_END,
            Intent::Write | Intent::Overwrite => Lba::END,
        }
    }

    /// As [`get`](Self::get) for several pages, with one look at what all share; `token` gives the `n`-th its token. Whoever
    /// holds pages to be overwritten waits for others one by one, so of these it ends behind the first that is pending.
    pub fn get_all(
        &self,
        port: Port,
        lbas: &[Lba],
        intent: Intent,
        token: impl Fn(usize) -> Token,
    ) -> Vec<Get> {
        let in_turn = intent == Intent::Overwrite;
        let mut got: Vec<Option<Get>> = Vec::with_capacity(lbas.len());
        for &lba in lbas {
            let page = self.pin(port, lba, intent);
            let ends = in_turn && page.is_none();
            got.push(page.map(Get::Ready));
            if ends {
                break;
            }
        }
        if got.iter().any(Option::is_none) {
            got.resize_with(lbas.len(), || None);
            let missing = (0..lbas.len()).filter(|&n| got[n].is_none());
            let missing: Vec<usize> = missing.collect();
            self.core(port, |core, cx| {
                core.expect_gets(missing.len());
                for n in missing {
                    let answer = match lbas[n] < Self::end(intent) {
                        true => core.get(cx, lbas[n], intent, token(n)),
                        false => Some(Err(GetError::OutOfRange)),
                    };
                    let is_pending = answer.is_none();
                    got[n] = Some(answer.map_or(Get::Pending, Get::from));
                    if in_turn && is_pending {
                        break;
                    }
                }
                core.expect_gets(0);
            });
        }
        got.into_iter().flatten().collect()
    }

    /// Puts several pages of this volume.
    pub fn put_all(&self, pages: Vec<PageRef>) {
        PageRef::put_all(pages);
    }

    /// Where [`OpenOptions::write_out_apart`](crate::OpenOptions::write_out_apart) holds: whether there is something to be
    /// written out because many pages are dirty. The driver of port 0 asks before it sleeps.
    pub fn has_write_out_due(&self) -> bool {
        self.shared.write_out_due.load(Ordering::SeqCst)
    }

    /// Begins a write-out if there is one due, for the driver of port 0; others get at the volume before the next.
    pub fn write_out_some(&self) {
        if self.has_write_out_due() {
            self.core(Shared::BACKGROUND, |core, cx| core.write_out_some(cx));
        }
    }

    /// Puts a page and asks to be told when what was written to it is durable.
    pub fn put_durable(&self, port: Port, page: PageRef, token: Token) {
        let range = LbaRange::new(page.lba(), 1);
        drop(page);
        self.sync(port, range, token);
    }

    /// Start and length of the memory that every media operation and page lies in, for registration with a ring.
    pub fn memory(&self) -> (*mut u8, usize) {
        self.shared.pool.arena.region()
    }

    /// Frames of the page pool.
    pub fn pool_frames(&self) -> usize {
        self.shared.pool.frames()
    }
}
