//! Faults to inject: which operations they hit, and what happens to these.

use std::ops::Range;

use super::MediaError;

/// Kinds of media operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// [`super::MediaOp::Read`].
    Read,
    /// [`super::MediaOp::Write`].
    Write,
    /// [`super::MediaOp::Flush`].
    Flush,
    /// [`super::MediaOp::Discard`].
    Discard,
}

/// What happens to an operation that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails. Of a write any sectors may have been stored or ruined. After a failed flush no later flush makes
    /// the writes before it durable any more, though they are still read back.
    Fail(MediaError),
    /// A write: reported as done, never stored. (Of other operations: nothing happens, success.)
    Lose,
    /// A write is stored at, or a read fetched from, this byte offset instead.
    Misdirect(u64),
    /// One bit of the bytes read, or of the bytes stored, is flipped: the bit of this number, modulo the length.
    FlipBit(u64),
    /// It completes this many steps of device time later than it would.
    Delay(u64),
}

/// A fault: a filter, a countdown and an effect.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Hits only this kind; `None` hits every kind.
    pub kind: Option<OpKind>,
    /// Hits only operations that touch this byte range; `None` hits all. Flushes touch no range.
    pub range: Option<Range<u64>>,
    /// Matching operations that pass unharmed first.
    pub skip: u64,
    /// Matching operations that are hit then; [`Fault::FOR_EVER`] for all.
    pub times: u64,
    /// What happens.
    pub effect: Effect,
}

impl Fault {
    /// Value of `times` for a fault that does not end.
    pub const FOR_EVER: u64 = u64::MAX;

    /// Hits every operation of a kind, from the first on, for ever.
    pub const fn every(kind: OpKind, effect: Effect) -> Self {
        Self {
            kind: Some(kind),
            range: None,
            skip: 0,
            times: Self::FOR_EVER,
            effect,
        }
    }

    /// Hits the `n`-th operation (from 0) of a kind, or of any kind, once.
    pub const fn nth(kind: Option<OpKind>, n: u64, effect: Effect) -> Self {
        Self {
            kind,
            range: None,
            skip: n,
            times: 1,
            effect,
        }
    }

    /// Restricts the fault to operations that touch a byte range.
    #[must_use]
    pub const fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Makes the fault last.
    #[must_use]
    pub const fn for_ever(mut self) -> Self {
        self.times = Self::FOR_EVER;
        self
    }

    /// Ends the fault after some hits.
    #[must_use]
    pub const fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Counts one operation; whether it is hit.
    pub(super) fn hits(&mut self, kind: OpKind, touched: Option<&Range<u64>>) -> bool {
        let kind_fits = self.kind.is_none_or(|wanted| wanted == kind);
        let range_fits = match (&self.range, touched) {
            (None, _) => true,
            (Some(wanted), Some(touched)) => {
                wanted.start < touched.end && touched.start < wanted.end
            }
            (Some(_), None) => false,
        };
        if !kind_fits || !range_fits || self.times == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.times != Self::FOR_EVER {
            self.times -= 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The countdown counts matching operations only, and ends.
    #[test]
    fn countdown() {
        let mut fault =
            Fault::nth(Some(OpKind::Write), 1, Effect::Fail(MediaError::Io)).within(0..4096);
        assert!(!fault.hits(OpKind::Read, Some(&(0..4096))), "kind");
        assert!(!fault.hits(OpKind::Write, Some(&(4096..8192))), "range");
        assert!(!fault.hits(OpKind::Write, Some(&(0..512))), "skipped");
        assert!(fault.hits(OpKind::Write, Some(&(0..512))));
        assert!(!fault.hits(OpKind::Write, Some(&(0..512))), "once");

        let mut fault = Fault::every(OpKind::Flush, Effect::Fail(MediaError::Io));
        assert!(fault.hits(OpKind::Flush, None));
        assert!(fault.hits(OpKind::Flush, None));
        let mut ranged = fault.within(0..1);
        assert!(!ranged.hits(OpKind::Flush, None), "a flush has no range");
    }
}
