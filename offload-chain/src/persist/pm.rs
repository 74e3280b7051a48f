//! Emulated persistent memory behind the real endpoint: what is visible, what is durable, and what it would cost.
//!
//! Its bytes are the pages of a region ([`PageStore`]) and the memory of the responder's program ([`Memory`]) at once.
//! What is stored is visible at once and durable when its lines were written back, or at once where the domain keeps
//! caches. A line leaves the cache on no other occasion: whoever forgets to write back is sure to lose data.
//!
//! There is no clock here. Writing back runs up a debt of time ([`EmulatedPm::take_debt`]) which the driver spends
//! before it lets an answer go out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use softrdma::{
    BackingId, GetPage, Intent, PAGE_BYTES, Page, PageError, PageRange, PageStore, Ticket,
};

use super::scenario::Domain;
use super::serve::Memory;

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;
/// Time to write back one changed line, of the order published for persistent memory modules on a memory bus. Lines that
/// have not changed cost nothing.
pub const LINE_COST: Duration = Duration::from_nanos(100);
/// Time that the store barrier behind the lines takes.
pub const BARRIER_COST: Duration = Duration::from_nanos(50);

/// Memory that several hold.
#[derive(Clone, Debug)]
pub struct EmulatedPm(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    domain: Domain,
    visible: Vec<u8>,
    /// Kept up to date only where caches are lost.
    written_back: Vec<u8>,
    lines: u64,
    debt: Duration,
    /// Requests for durability, carried out and not yet answered.
    synced: VecDeque<Ticket>,
}

impl EmulatedPm {
    /// Zeroed memory of whole pages, at least `len` bytes.
    #[must_use]
    pub fn new(domain: Domain, len: usize) -> Self {
        let zeros = vec![0; len.next_multiple_of(PAGE_BYTES)];
        Self::holding(domain, zeros)
    }

    /// What a restart finds: all of it durable.
    #[must_use]
    pub fn holding(domain: Domain, bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            domain,
            written_back: bytes.clone(),
            visible: bytes,
            lines: 0,
            debt: Duration::ZERO,
            synced: VecDeque::new(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that a power cut at this moment leaves of a range. Buffers of the endpoint are never kept, so WSP is MHP.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn after_cut(&self, at: usize, len: usize) -> Vec<u8> {
        let inner = self.inner();
        match inner.domain {
            Domain::Dmp => inner.written_back[at..at + len].to_vec(),
            Domain::Mhp | Domain::Wsp => inner.visible[at..at + len].to_vec(),
        }
    }

    /// Bytes of a range as readers see them now.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn visible(&self, at: usize, len: usize) -> Vec<u8> {
        self.inner().visible[at..at + len].to_vec()
    }

    /// Time that write-backs would have taken since the last call.
    #[must_use]
    pub fn take_debt(&self) -> Duration {
        std::mem::take(&mut self.inner().debt)
    }

    /// Changed lines written back so far.
    #[must_use]
    pub fn lines_written_back(&self) -> u64 {
        self.inner().lines
    }

    /// The next request for durability that is to be answered.
    #[must_use]
    pub fn poll_synced(&self) -> Option<Ticket> {
        self.inner().synced.pop_front()
    }
}

impl Inner {
    fn write_back(&mut self, at: usize, len: usize) {
        if self.domain != Domain::Dmp || len == 0 {
            return;
        }
        let begin = at / LINE_BYTES * LINE_BYTES;
        let end = (at + len)
            .next_multiple_of(LINE_BYTES)
            .min(self.visible.len());
        let lines = self.visible[begin..end].chunks(LINE_BYTES);
        let mut dirty = 0;
        for (line, kept) in lines.zip(self.written_back[begin..end].chunks_mut(LINE_BYTES)) {
            if line != kept {
                kept.copy_from_slice(line);
                dirty += 1;
            }
        }
        self.lines += u64::from(dirty);
        self.debt += LINE_COST * dirty + BARRIER_COST;
    }
}

impl Memory for EmulatedPm {
    fn len(&self) -> u64 {
        self.inner().visible.len() as u64
    }

    fn copy(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.inner().visible[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn flush(&mut self, at: u64, len: u64) {
        self.inner().write_back(at as usize, len as usize);
    }
}

/// A page of it.
#[derive(Debug)]
pub struct PmPage {
    pm: EmulatedPm,
    /// Its first byte.
    first: usize,
}

impl Page for PmPage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        let at = self.first + offset;
        to.copy_from_slice(&self.pm.inner().visible[at..at + to.len()]);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        let at = self.first + offset;
        self.pm.inner().visible[at..at + from.len()].copy_from_slice(from);
    }
}

/// One object, whatever its number.
impl PageStore for EmulatedPm {
    type Page = PmPage;

    fn get(&mut self, _: BackingId, page: u64, _: Intent, _: Ticket) -> GetPage<PmPage> {
        let pages = self.inner().visible.len() / PAGE_BYTES;
        match usize::try_from(page) {
            Ok(page) if page < pages => GetPage::Ready(PmPage {
                pm: self.clone(),
                first: page * PAGE_BYTES,
            }),
            _ => GetPage::Failed(PageError::Gone),
        }
    }

    fn sync(&mut self, ranges: &[PageRange], ticket: Ticket) {
        let mut inner = self.inner();
        for range in ranges {
            let (first, count) = (range.first as usize, range.count as usize);
            inner.write_back(first * PAGE_BYTES, count * PAGE_BYTES);
        }
        inner.synced.push_back(ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under DMP only what was written back survives, by lines; under MHP all that was stored.
    #[test]
    fn a_cut_keeps_what_the_domain_keeps() {
        for (domain, kept) in [(Domain::Dmp, 0), (Domain::Mhp, 7), (Domain::Wsp, 7)] {
            let mut pm = EmulatedPm::new(domain, 1);
            assert_eq!(pm.len(), PAGE_BYTES as u64);
            pm.copy(100, &[7; 100]);
            assert_eq!(pm.after_cut(100, 100), [kept; 100]);
            pm.flush(130, 10);
            assert_eq!(pm.after_cut(128, 64), [7; 64]);
            assert_eq!(pm.after_cut(100, 28), [kept; 28]);
            assert_eq!(pm.after_cut(192, 8), [kept; 8]);
            assert_eq!(pm.lines_written_back(), u64::from(kept == 0));
        }
    }

    #[test]
    fn writing_back_costs_time_once() {
        let mut pm = EmulatedPm::new(Domain::Dmp, PAGE_BYTES);
        pm.copy(60, &[1; 8]);
        pm.flush(0, 1024);
        assert_eq!(pm.take_debt(), LINE_COST * 2 + BARRIER_COST);
        pm.flush(0, 1024);
        assert_eq!(pm.take_debt(), BARRIER_COST);
        assert_eq!(pm.take_debt(), Duration::ZERO);
    }
}
