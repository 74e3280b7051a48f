//! Atomic operations of the peer: executed where they stand in the stream, answered in the order of the requests.
//!
//! An atomic operation takes effect like a WRITE: after everything before it, before anything behind it, and with the
//! inbound side parked while its page comes. Only its answer waits in the inbound read queue, behind those of earlier
//! READs. A READ that is not answered yet may therefore see a later atomic operation, as it may see a later WRITE
//! (RFC 7306 §5.4: reads touch memory in any order). Executing it only when its turn to be answered comes would order
//! the two, but then an operation through a sync STag would stop the inbound side until the peer has taken its answers;
//! two endpoints that do so to each other would wait for ever.

use std::sync::Arc;

use crate::addr::{Ticket, Time};
use crate::connection::inbound::Inbound;
use crate::connection::place::Placer;
use crate::connection::ticket::TicketKind;
use crate::connection::{Connection, Fault};
use crate::mem::access::{Access, AccessError, AccessKind, Accessor, Request, check};
use crate::mem::region::{Backing, Region};
use crate::mem::{ATOMIC_BYTES, Atomic};
use crate::page::{GetPage, Intent, PAGE_BYTES, Page, PageError, PageStore, PutPage};
use crate::planted::Bug;
use crate::stream::Step;
use crate::wire::atomic::{ATOMIC_REQUEST_BYTES, AtomicError, AtomicRequest, AtomicResponse};
use crate::wire::ddp::{UNTAGGED_BYTES, Untagged};
use crate::wire::fpdu::LENGTH_BYTES;
use crate::wire::terminate::TerminateCode;

/// An operation whose page is awaited, or others to be told of it.
#[derive(Debug)]
pub(super) struct Execution {
    region: Arc<Region>,
    request: AtomicRequest,
    ticket: Ticket,
    /// The old value, once it has been executed.
    original: Option<u64>,
    /// When its turn came.
    since: Time,
}

impl<S: PageStore> Connection<S> {
    pub(super) fn take_atomic(
        &mut self,
        pages: &mut S,
        segment: &Untagged<'_>,
        ulpdu: &[u8],
        total: usize,
    ) -> Step {
        if self.close_if_unanswerable() {
            return Step::Discard;
        }
        // An atomic operation takes effect after every earlier FLUSH.
        if self.responses.is_flushing() && !self.is_planted(Bug::AtomicOvertakesFlush) {
            self.inbound = Inbound::AwaitFlush;
            return Step::Park(0);
        }
        match self.start_atomic(pages, segment) {
            Ok(Some(executed)) => {
                if self.answer_atomic(executed) {
                    Step::Took(total)
                } else {
                    self.barrier(pages, total)
                }
            }
            Ok(None) => {
                self.inbound = Inbound::Executing { total };
                Step::Park(0)
            }
            Err(fault) => self.fail(fault, Some(ulpdu)),
        }
    }

    /// Executes the operation, if its page is there and nobody has to be told; otherwise remembers it.
    fn start_atomic(
        &mut self,
        pages: &mut S,
        segment: &Untagged<'_>,
    ) -> Result<Option<Executed>, Fault> {
        self.responses
            .admit(self.ird, segment, ATOMIC_REQUEST_BYTES)
            .map_err(Fault::Peer)?;
        let request = AtomicRequest::parse_as(segment.payload, self.profile).map_err(|error| {
            Fault::Peer(match error {
                AtomicError::Length => TerminateCode::OperationUnspecified,
                AtomicError::Code => TerminateCode::OperationUnexpectedOpcode,
            })
        })?;
        let request = match request.op {
            Atomic::FetchAdd { add, .. } if self.is_planted(Bug::CarryKept) => AtomicRequest {
                op: Atomic::FetchAdd { add, mask: 0 },
                ..request
            },
            _ => request,
        };
        let since = pages.now();
        let who = self.accessor();
        let found = self.regions.find(request.target.stag);
        let region = found.ok_or_else(|| refused(kind(&request), AccessError::InvalidStag))?;
        let access = permit(region, who, &request)?;
        let backing = match &region.spec.backing {
            Backing::Memory(buffer) => {
                let original = buffer.atomic(access.offset as usize, request.op);
                self.outcomes
                    .note(told(request.op, original), self.config.atomics_kept);
                return Ok(Some(Executed {
                    request,
                    original,
                    since,
                }));
            }
            Backing::Pages(backing) => *backing,
        };
        let ticket = self.tickets.next(TicketKind::Write);
        let number = access.offset / PAGE_BYTES as u64;
        let original = match pages.get(backing, number, Intent::Write, ticket) {
            GetPage::Ready(mut page) => {
                let original = execute(&mut page, access.offset, request.op);
                self.outcomes
                    .note(told(request.op, original), self.config.atomics_kept);
                if pages.put(page, ticket) == PutPage::Done {
                    note_dirty(&mut self.placer, region, access.offset, &request);
                    return Ok(Some(Executed {
                        request,
                        original,
                        since,
                    }));
                }
                Some(original)
            }
            GetPage::Pending => None,
            GetPage::Failed(error) => return Err(Fault::Storage(error)),
        };
        drop(access);
        self.execution = Some(Execution {
            region: Arc::clone(region),
            request,
            ticket,
            original,
            since,
        });
        Ok(None)
    }

    /// The page of the waiting operation came. Access is checked anew: it may have been revoked.
    pub(super) fn handle_atomic_page(
        &mut self,
        pages: &mut S,
        ticket: Ticket,
        page: Result<S::Page, PageError>,
    ) {
        let who = self.accessor();
        let Some(execution) = &mut self.execution else {
            return;
        };
        if execution.ticket != ticket || execution.original.is_some() {
            return;
        }
        let Execution {
            region, request, ..
        } = execution;
        // Access first, because the page of a region that has ended may fail for that.
        let result = permit(region, who, request).and_then(|access| {
            let mut page = page.map_err(Fault::Storage)?;
            let original = execute(&mut page, access.offset, request.op);
            if who.planted == Some(Bug::AtomicTwice) {
                execute(&mut page, access.offset, request.op);
            }
            Ok((page, original))
        });
        match result {
            Ok((page, original)) => {
                execution.original = Some(original);
                let told = told(execution.request.op, original);
                self.outcomes.note(told, self.config.atomics_kept);
                if pages.put(page, ticket) == PutPage::Done {
                    self.finish_execution(pages);
                }
            }
            Err(fault) => {
                let Inbound::Executing { total } = self.inbound else {
                    return;
                };
                let length = LENGTH_BYTES + UNTAGGED_BYTES + ATOMIC_REQUEST_BYTES;
                let ulpdu = self.rx.kept()[LENGTH_BYTES..length.min(total)].to_vec();
                self.fail(fault, Some(&ulpdu));
            }
        }
    }

    /// Everybody sees what the waiting operation wrote.
    pub(super) fn handle_atomic_put(&mut self, pages: &mut S, ticket: Ticket) {
        let executed =
            |execution: &Execution| execution.ticket == ticket && execution.original.is_some();
        if self.execution.as_ref().is_some_and(executed) {
            self.finish_execution(pages);
        }
    }

    fn finish_execution(&mut self, pages: &mut S) {
        let (Some(execution), Inbound::Executing { total }) = (self.execution.take(), self.inbound)
        else {
            return;
        };
        let Execution {
            region,
            request,
            original,
            since,
            ..
        } = execution;
        // The range was checked not to wrap and to lie inside.
        let offset = region.spec.offset + (request.target.to.0 - region.spec.base.0);
        note_dirty(&mut self.placer, &region, offset, &request);
        self.rx.consume(total);
        self.inbound = Inbound::Open;
        let original = original.unwrap_or_default();
        let executed = Executed {
            request,
            original,
            since,
        };
        if self.answer_atomic(executed) {
            self.resume(pages);
        } else {
            self.barrier(pages, 0);
        }
    }

    /// Queues the answer. False if it went through a sync STag: then the answer is held until it is durable.
    fn answer_atomic(&mut self, executed: Executed) -> bool {
        let held = !self.placer.dirty().is_empty();
        let Executed {
            request: AtomicRequest { request, op, .. },
            original,
            since,
        } = executed;
        let original = told(op, original);
        let response = AtomicResponse { request, original };
        self.responses.push_atomic(response, held, since);
        !held
    }
}

/// What the peer is told. Writing does not entitle to read.
fn told(op: Atomic, original: u64) -> u64 {
    match op {
        Atomic::Write { .. } => 0,
        _ => original,
    }
}

/// An operation that has taken effect.
struct Executed {
    request: AtomicRequest,
    original: u64,
    /// When its turn came.
    since: Time,
}

fn kind(request: &AtomicRequest) -> AccessKind {
    match request.op {
        Atomic::Write { .. } => AccessKind::AtomicWrite,
        _ => AccessKind::Atomic,
    }
}

fn refused(kind: AccessKind, error: AccessError) -> Fault {
    Fault::Peer(error.terminate(kind))
}

/// The access check, and that both the tagged offset and the memory behind it are aligned (RFC 7306 §5.1).
fn permit<'a>(
    region: &'a Region,
    who: Accessor,
    request: &AtomicRequest,
) -> Result<Access<'a>, Fault> {
    let what = Request {
        kind: kind(request),
        stag: request.target.stag,
        to: request.target.to,
        len: ATOMIC_BYTES as u32,
    };
    let access = check(region, who, what).map_err(|error| refused(what.kind, error))?;
    let unit = ATOMIC_BYTES as u64;
    if access.offset.is_multiple_of(unit) && what.to.0.is_multiple_of(unit) {
        Ok(access)
    } else {
        Err(Fault::Peer(TerminateCode::OperationCatastrophicStream))
    }
}

/// Aligned bytes lie in one page.
fn execute<P: Page>(page: &mut P, offset: u64, op: Atomic) -> u64 {
    page.atomic((offset % PAGE_BYTES as u64) as usize, op)
}

fn note_dirty(placer: &mut Placer, region: &Region, offset: u64, request: &AtomicRequest) {
    if let Backing::Pages(backing) = region.spec.backing
        && request.target.stag.is_sync()
    {
        placer.note_dirty(backing, offset, ATOMIC_BYTES);
    }
}
