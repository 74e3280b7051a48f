//! Regions and windows that end with their owners.

use std::ops::Range;
use std::sync::Arc;

use super::domain::ProtectionDomain;
use crate::addr::{RemoteAddr, Stag};
use crate::mem::{self, Buffer, RegionSpec, RegisterError, Rights};
use crate::wqe::LocalSlice;

/// Memory that peers of its domain may use; `ibv_dereg_mr` when dropped (V1).
#[derive(Debug)]
pub struct MemoryRegion {
    domain: ProtectionDomain,
    buffer: Arc<Buffer>,
    spec: RegionSpec,
    names: mem::MemoryRegion,
}

impl MemoryRegion {
    pub(super) fn register(
        domain: &ProtectionDomain,
        buffer: &Arc<Buffer>,
        spec: RegionSpec,
    ) -> Result<Self, RegisterError> {
        Ok(Self {
            domain: domain.clone(),
            buffer: Arc::clone(buffer),
            names: domain.table().register(spec.clone())?,
            spec,
        })
    }

    /// What to tell a peer: the address `offset` bytes into the region.
    #[must_use]
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        self.names.remote(offset)
    }

    /// STag, base and length: everything a peer has to know.
    #[must_use]
    pub fn names(&self) -> mem::MemoryRegion {
        self.names
    }

    /// The `rkey`.
    #[must_use]
    pub fn stag(&self) -> Stag {
        self.names.stag
    }

    /// The memory, for the local program.
    #[must_use]
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Bytes of the region for a work request. Checked against the buffer when posted.
    #[must_use]
    pub fn slice(&self, bytes: Range<usize>) -> LocalSlice {
        let start = (self.spec.offset as usize).saturating_add(bytes.start);
        LocalSlice::new(&self.buffer, start, bytes.end.saturating_sub(bytes.start))
    }

    /// `ibv_rereg_mr` with other rights: the STag changes, and the old one is dead when this returned (I11).
    ///
    /// # Errors
    /// If the rights cannot be granted; then nothing has changed.
    pub fn reregister(&mut self, rights: Rights) -> Result<(), RegisterError> {
        let spec = RegionSpec {
            rights,
            ..self.spec.clone()
        };
        let table = self.domain.table();
        self.names = table.reregister(self.names.stag, spec.clone())?;
        self.spec = spec;
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.domain.table().deregister(self.names.stag);
    }
}

/// A window of type 2, for the queue pair on which it is bound; `ibv_dealloc_mw` when dropped (V1).
#[derive(Debug)]
pub struct MemoryWindow {
    domain: ProtectionDomain,
    window: mem::MemoryWindow,
}

impl MemoryWindow {
    pub(super) fn allocate(domain: &ProtectionDomain) -> Result<Self, RegisterError> {
        Ok(Self {
            domain: domain.clone(),
            window: domain.table().allocate_window(domain.number())?,
        })
    }

    /// The STag it has while it is bound with this key.
    #[must_use]
    pub fn stag(&self, key: u8) -> Stag {
        self.window.stag(key)
    }

    pub(super) fn inner(&self) -> mem::MemoryWindow {
        self.window
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.domain.table().deallocate_window(self.window);
    }
}

/// A window of type 1, for all queue pairs of its domain; `ibv_dealloc_mw` when dropped (V1). A
/// [`BindDomainWindow`](super::request::BindDomainWindow) binds it.
#[derive(Debug)]
pub struct DomainWindow {
    domain: ProtectionDomain,
    window: mem::DomainWindow,
}

impl DomainWindow {
    pub(super) fn allocate(domain: &ProtectionDomain) -> Result<Self, RegisterError> {
        Ok(Self {
            domain: domain.clone(),
            window: domain.table().allocate_domain_window(domain.number())?,
        })
    }

    pub(super) fn inner(&mut self) -> &mut mem::DomainWindow {
        &mut self.window
    }
}

impl Drop for DomainWindow {
    fn drop(&mut self) {
        self.domain.table().deallocate_domain_window(&self.window);
    }
}
