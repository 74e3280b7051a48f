//! The one access check (RELIABILITY I10).
//!
//! Every inbound segment that names a tagged buffer, and every page of a READ, passes `check` right before its bytes
//! are copied. Order of the tests: full STag, stream, protection domain, liveness, range (wrap, then bounds), rights.
//! The first that fails decides; which Terminate it becomes is in [`AccessError::terminate`].
//!
//! The check hands out an `Access` that has entered the region's gate, and that of the region behind a window. Who ends
//! or cuts a region takes the gate for itself, so when that returned no copy is under way and none will start (I11).

use crate::addr::{ProtectionDomain, Stag, StreamId, TaggedOffset};
use crate::mem::gate::Passage;
use crate::mem::region::{Region, Rights};
use crate::planted::Bug;
use crate::wire::terminate::TerminateCode;

/// What the peer wants to do with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A WRITE segment.
    Write,
    /// Source of a READ.
    Read,
    /// Target of an atomic operation.
    Atomic,
    /// Target of an ATOMIC WRITE of the private profile.
    AtomicWrite,
    /// FLUSH up to visibility.
    FlushVisible,
    /// FLUSH up to persistence.
    FlushPersistent,
    /// Send with Invalidate.
    Invalidate,
}

/// Who wants to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(crate) stream: StreamId,
    pub(crate) domain: ProtectionDomain,
    pub(crate) planted: Option<Bug>,
}

/// Which bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: AccessKind,
    pub(crate) stag: Stag,
    pub(crate) to: TaggedOffset,
    pub(crate) len: u32,
}

/// Why the peer may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AccessError {
    /// Unknown, wrong key, invalidated or deregistered.
    #[error("invalid STag")]
    InvalidStag,
    /// Bound to another stream, or of another protection domain.
    #[error("STag does not belong to this stream")]
    NotOfStream,
    /// Address plus length passes 2^64.
    #[error("address wraps around")]
    Wrap,
    /// Outside of the region.
    #[error("base or bounds violation")]
    Bounds,
    /// The region does not grant it.
    #[error("access right missing")]
    Rights,
}

impl AccessError {
    /// The code for it. DDP has no "access rights" code: a WRITE without the right is told "invalid STag", as by `siw`.
    #[must_use]
    pub const fn terminate(self, kind: AccessKind) -> TerminateCode {
        match (kind, self) {
            (AccessKind::Write, Self::InvalidStag | Self::Rights) => {
                TerminateCode::TaggedInvalidStag
            }
            (AccessKind::Write, Self::NotOfStream) => TerminateCode::TaggedNotOfStream,
            (AccessKind::Write, Self::Wrap) => TerminateCode::TaggedWrap,
            (AccessKind::Write, Self::Bounds) => TerminateCode::TaggedBounds,
            (AccessKind::Invalidate, Self::Rights) => TerminateCode::ProtectionCannotInvalidate,
            (_, Self::InvalidStag) => TerminateCode::ProtectionInvalidStag,
            (_, Self::NotOfStream) => TerminateCode::ProtectionNotOfStream,
            (_, Self::Wrap) => TerminateCode::ProtectionWrap,
            (_, Self::Bounds) => TerminateCode::ProtectionBounds,
            (_, Self::Rights) => TerminateCode::ProtectionRights,
        }
    }
}

/// Permission to copy, as long as it is held.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    /// Offset of the first byte in the backing.
    pub(crate) offset: u64,
    /// Offset in the backing of the first byte that peers do not reach.
    reach_end: u64,
    _passage: Passage<'a>,
    _parent: Option<Passage<'a>>,
}

impl Access<'_> {
    /// Offset in the backing of the first byte that peers do not reach through the region, or through the window and the
    /// region behind it.
    pub(crate) fn reach_end(&self) -> u64 {
        self.reach_end
    }
}

/// May `who` do `what` with `region`? See the module's description for the order.
pub(crate) fn check<'a>(
    region: &'a Region,
    who: Accessor,
    what: Request,
) -> Result<Access<'a>, AccessError> {
    if !region.answers_to(what.stag) {
        return Err(AccessError::InvalidStag);
    }
    if region
        .spec
        .stream
        .is_some_and(|stream| stream != who.stream)
        && who.planted != Some(Bug::StreamUnchecked)
    {
        return Err(AccessError::NotOfStream);
    }
    if region.spec.domain != who.domain {
        return Err(AccessError::NotOfStream);
    }
    let passage = region.passage();
    if !passage.is_live() && who.planted != Some(Bug::LivenessUnchecked) {
        return Err(AccessError::InvalidStag);
    }
    let mut reach = passage.reach();
    let parent = match region.parent() {
        None => None,
        Some(parent) => {
            let passage = parent.passage();
            if !passage.is_live() && who.planted != Some(Bug::WindowOutlivesRegion) {
                return Err(AccessError::InvalidStag);
            }
            // A window lies inside of its region.
            let before = region.spec.offset - parent.spec.offset;
            reach = reach.min(passage.reach().saturating_sub(before));
            Some(passage)
        }
    };
    let len = u64::from(what.len);
    let end = what.to.checked_add(len).ok_or(AccessError::Wrap)?;
    let base = region.spec.base;
    // `base + len` does not wrap: registration checked it.
    if (what.to < base || end.0 - base.0 > reach)
        && (who.planted != Some(Bug::BoundsByOne) || end.0 != base.0 + reach + 1)
    {
        return Err(AccessError::Bounds);
    }
    let right = match what.kind {
        AccessKind::Write | AccessKind::AtomicWrite => Rights::REMOTE_WRITE,
        AccessKind::Read => Rights::REMOTE_READ,
        AccessKind::Atomic => Rights::REMOTE_ATOMIC,
        AccessKind::FlushVisible => Rights::FLUSH_GLOBAL,
        AccessKind::FlushPersistent => Rights::FLUSH_PERSISTENT,
        AccessKind::Invalidate => Rights::REMOTE_INVALIDATE,
    };
    // A region that several streams share must not be invalidated by one of them (RFC 5042 §6.2.3).
    let shared = what.kind == AccessKind::Invalidate && region.spec.stream.is_none();
    let granted = region.spec.rights.contains(right) && !shared;
    if !granted && !is_planted_right(who, what.kind) {
        return Err(AccessError::Rights);
    }
    Ok(Access {
        offset: region.spec.offset + (what.to.0 - base.0),
        reach_end: region.spec.offset + reach,
        _passage: passage,
        _parent: parent,
    })
}

#[cold]
fn is_planted_right(who: Accessor, kind: AccessKind) -> bool {
    let bug = match kind {
        AccessKind::Invalidate => Bug::SharedInvalidated,
        _ => Bug::RightsUnchecked,
    };
    who.planted == Some(bug)
}
