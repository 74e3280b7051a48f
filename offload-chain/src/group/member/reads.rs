//! READs and the lease: looked at before bytes are taken, so that READs wait; and after, so that none of them is a lie.

use std::time::Duration;

use softrdma::Time;
use softrdma::offload::LinkId;

use super::Member;
use crate::group::lease::ReadLease;
use crate::group::node::Store;

/// While READs wait, the lease is looked at so often. They wait only where a store is not reached or an epoch ends, so this
/// is no delay that anybody would notice; a member on which none waits sleeps as long as before.
const LOOK: Duration = Duration::from_millis(10);

impl<S: Store> Member<S> {
    /// Appends bytes to send. If some of them tell of memory, and the lease is over now, nothing is known of when they were
    /// taken: they are thrown away and the link ends, since what was appended counts as sent.
    pub(super) fn transmit_leased(
        &mut self,
        lease: &ReadLease,
        link: LinkId,
        now: Time,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> usize {
        self.engine.hold_reads(link, !lease.holds());
        let (start, taken) = (out.len(), self.engine.reads_taken(link));
        let pages = &mut self.pages;
        let count = self.engine.poll_transmit(link, now, pages, out, limit);
        if self.engine.reads_taken(link) != taken && !lease.still_holds() {
            out.truncate(start);
            self.engine.abort(link);
            return 0;
        }
        if self.engine.holds_read(link) && !self.broken {
            self.look_at = self.look_at.or(Some(now + LOOK));
        }
        count
    }
}
