//! Contexts and protection domains: who may touch what.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::completion_queue::CompletionQueue;
use super::queue_pair::{QueuePair, Reset};
use super::region::{DomainWindow, MemoryRegion, MemoryWindow};
use crate::addr::{self, TaggedOffset};
use crate::config::Config;
use crate::mem::{Buffer, RegionSpec, RegionTable, RegisterError, Rights};

/// What `ibv_open_device` gives: a table of regions, and the numbers of its protection domains.
#[derive(Clone, Debug)]
pub struct Context {
    table: Arc<RegionTable>,
    domains: Arc<AtomicU32>,
}

impl Context {
    /// A context of its own. STags are drawn from a generator with this seed, which a real program takes from the system.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self::over(RegionTable::new(seed), addr::ProtectionDomain(0))
    }

    /// A context over a table that others use too; `first` and the domains above it are its own.
    #[must_use]
    pub fn over(table: Arc<RegionTable>, first: addr::ProtectionDomain) -> Self {
        let domains = Arc::new(AtomicU32::new(first.0));
        Self { table, domains }
    }

    /// `ibv_alloc_pd`.
    ///
    /// # Panics
    /// After 2^32 of them: a number that is used again would let old connections touch new regions.
    #[must_use]
    pub fn allocate_domain(&self) -> ProtectionDomain {
        let next = |number: u32| number.checked_add(1);
        let number = self
            .domains
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        ProtectionDomain {
            table: Arc::clone(&self.table),
            number: addr::ProtectionDomain(number.expect("fewer than 2^32 protection domains")),
        }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }
}

/// A protection domain: its regions are open to its queue pairs and to no others. A handle; it has no end of its own.
#[derive(Clone)]
pub struct ProtectionDomain {
    table: Arc<RegionTable>,
    number: addr::ProtectionDomain,
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

impl ProtectionDomain {
    /// `ibv_reg_mr` of all of a buffer, addressed from 0.
    ///
    /// # Errors
    /// If the table is full, or the rights cannot be granted.
    pub fn register(
        &self,
        buffer: &Arc<Buffer>,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        self.register_range(buffer, 0..buffer.len(), TaggedOffset(0), rights)
    }

    /// `ibv_reg_mr` of a part of a buffer, whose first byte has the tagged offset `base`:
    /// [`Buffer::address`] plus its place where peers expect virtual addresses.
    ///
    /// # Errors
    /// As `register`, or if the range is not inside the buffer.
    pub fn register_range(
        &self,
        buffer: &Arc<Buffer>,
        bytes: Range<usize>,
        base: TaggedOffset,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let len = bytes.end.checked_sub(bytes.start);
        let spec = RegionSpec {
            offset: bytes.start as u64,
            len: len.ok_or(RegisterError::OutOfBounds)? as u64,
            base,
            ..RegionSpec::memory(self.number, rights, buffer)
        };
        MemoryRegion::register(self, buffer, spec)
    }

    /// `ibv_alloc_mw`: a window of type 2, not bound.
    ///
    /// # Errors
    /// If the table is full.
    pub fn allocate_window(&self) -> Result<MemoryWindow, RegisterError> {
        MemoryWindow::allocate(self)
    }

    /// `ibv_alloc_mw`: a window of type 1, not bound.
    ///
    /// # Errors
    /// If the table is full.
    pub fn allocate_domain_window(&self) -> Result<DomainWindow, RegisterError> {
        DomainWindow::allocate(self)
    }

    /// `ibv_create_qp`. The domain in `config` is set to this one.
    #[must_use]
    pub fn queue_pair(&self, config: Config, completions: &CompletionQueue) -> QueuePair<Reset> {
        let config = Config {
            protection_domain: self.number,
            ..config
        };
        QueuePair::new(Arc::clone(&self.table), config, completions.clone())
    }

    /// Its number, as the core knows it.
    #[must_use]
    pub fn number(&self) -> addr::ProtectionDomain {
        self.number
    }

    pub(super) fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }
}
