//! FLUSH of the private profile at the responder.
//!
//! When a FLUSH is taken everything before it in the stream is placed, so it asks the store at once, and later WRITEs,
//! SENDs and READs go on beside it. Its answer leaves in its turn, and not before the store said that the bytes are
//! durable. Atomic operations and ATOMIC WRITEs behind it stop the inbound side until then: nothing that the peer
//! ordered behind the FLUSH by one of them may survive without what was flushed (persistence recipe C4).

use crate::addr::Ticket;
use crate::connection::inbound::Inbound;
use crate::connection::ticket::TicketKind;
use crate::connection::{Connection, Fault};
use crate::mem::access::{AccessError, AccessKind, Request, check};
use crate::mem::region::Backing;
use crate::page::{PAGE_BYTES, PageError, PageRange, PageStore};
use crate::planted::Bug;
use crate::wire::ddp::Untagged;
use crate::wire::profile::{FLUSH_REQUEST_BYTES, FlushRequest, Placement, Selectivity};
use crate::wire::terminate::TerminateCode;

impl<S: PageStore> Connection<S> {
    pub(super) fn take_flush(
        &mut self,
        pages: &mut S,
        segment: &Untagged<'_>,
    ) -> Result<(), TerminateCode> {
        if self.close_if_unanswerable() {
            return Ok(());
        }
        self.responses
            .admit(self.ird, segment, FLUSH_REQUEST_BYTES)?;
        let request =
            FlushRequest::parse(segment.payload).ok_or(TerminateCode::OperationUnspecified)?;
        let range = self.flush_range(&request)?;
        // What is placed is visible; only pages can be anything more.
        let range = range.filter(|_| request.placement == Placement::Persistent);
        let range = range.filter(|_| !self.is_planted(Bug::FlushUnawaited));
        let ticket = range.map(|range| {
            let ticket = self.tickets.next(TicketKind::Flush);
            pages.sync(&[range], ticket);
            ticket
        });
        self.responses
            .push_flush(request.request, ticket, pages.now());
        Ok(())
    }

    /// The pages that a FLUSH names; none if it names no bytes, or memory.
    fn flush_range(&mut self, request: &FlushRequest) -> Result<Option<PageRange>, TerminateCode> {
        let kind = match request.placement {
            Placement::Visible => AccessKind::FlushVisible,
            Placement::Persistent => AccessKind::FlushPersistent,
        };
        let refused = |error: AccessError| error.terminate(kind);
        // As with a READ, STag and address of an empty range are not looked at.
        if request.selectivity == Selectivity::Range(0) {
            return Ok(None);
        }
        let who = self.accessor();
        let stag = request.target.stag;
        let found = self.regions.find(stag).ok_or(AccessError::InvalidStag);
        let region = found.map_err(refused)?;
        let (to, len) = match request.selectivity {
            Selectivity::Range(len) => (request.target.to, len),
            Selectivity::Region => (region.spec.base, 0),
        };
        let what = Request {
            kind,
            stag,
            to,
            len,
        };
        let access = check(region, who, what).map_err(refused)?;
        let offset = access.offset;
        let end = match request.selectivity {
            Selectivity::Range(len) => offset + u64::from(len),
            // All that peers reach of it.
            Selectivity::Region => access.reach_end(),
        };
        let Backing::Pages(backing) = region.spec.backing else {
            return Ok(None);
        };
        let page = PAGE_BYTES as u64;
        let first = offset / page;
        let count = end.div_ceil(page) - first;
        Ok(Some(PageRange {
            backing,
            first,
            count,
        })
        .filter(|range| range.count > 0))
    }

    /// What a FLUSH waited for is durable, or will never be.
    pub(super) fn handle_flushed(
        &mut self,
        pages: &mut S,
        ticket: Ticket,
        result: Result<(), PageError>,
    ) {
        if !self.responses.flushed(ticket) {
            return;
        }
        if let Err(error) = result {
            self.fail(Fault::Storage(error), None);
        } else if self.inbound == Inbound::AwaitFlush && !self.responses.is_flushing() {
            self.inbound = Inbound::Open;
            self.resume(pages);
        }
    }
}
