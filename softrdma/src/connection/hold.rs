//! Holding answers to READs, for an owner who may not always answer them.
//!
//! A member of a replicated group answers READs while it has a lease, and may not let bytes go that it took when the lease was
//! over already. So it does two things around [`poll_transmit`](Connection::poll_transmit): before, it says whether READs are to
//! wait; after, it learns whether bytes were taken for one, looks at its lease again, and if that is over throws the output away
//! and aborts. Looking before alone is not enough: the thread may be paused between looking and taking.

use crate::connection::Connection;
use crate::page::PageStore;

impl<S: PageStore> Connection<S> {
    /// Whether READs and VERIFYs of the peer wait from now on. A READ that waits asks for no pages; answers behind it wait for
    /// their turn. One that was answered in part goes on where it stopped, and until then no other message goes out, since none
    /// goes inside another.
    pub fn hold_reads(&mut self, held: bool) {
        self.responses.hold(held);
    }

    /// Does a READ or VERIFY wait because of [`hold_reads`](Self::hold_reads), and nothing else?
    #[must_use]
    pub fn holds_read(&self) -> bool {
        self.responses.holds()
    }

    /// How often bytes were taken from memory to answer a READ or VERIFY. When it has grown over a call of
    /// [`poll_transmit`](Self::poll_transmit), what that call appended tells of memory.
    #[must_use]
    pub fn reads_taken(&self) -> u64 {
        self.responses.taken()
    }
}
