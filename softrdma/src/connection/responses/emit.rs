//! Building answers, strictly in the order of the requests.

use crate::addr::{Msn, Stag};
use crate::connection::Fault;
use crate::connection::responses::{Body, Digest, Entry, Responses, State};
use crate::connection::segment::cut;
use crate::mem::ATOMIC_BYTES;
use crate::mem::access::{AccessError, AccessKind, Accessor, check};
use crate::mem::region::Backing;
use crate::page::{PAGE_BYTES, Page, PageStore, Served};
use crate::wire::ddp::{TAGGED_BYTES, Tagged, Untagged};
use crate::wire::marker::Framer;
use crate::wire::profile::{VerifyRequest, VerifyResponse};
use crate::wire::rdmap::Opcode;

/// Bytes that go into a digest at once.
const DIGEST_BYTES: u32 = 64 << 10;

impl<P: Page> Responses<P> {
    /// Appends the first answer, or one segment of it; only when `is_ready`.
    pub(in crate::connection) fn emit<S: PageStore<Page = P>>(
        &mut self,
        pages: &mut S,
        who: Accessor,
        ulpdu_max: u16,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let read = match self.entries.front() {
            Some(Entry::Read(read)) => read,
            Some(Entry::Answer(_)) => {
                self.emit_answer(pages, framer, out);
                return Ok(());
            }
            None => return Ok(()),
        };
        self.taken += 1;
        if let Some(digest) = read.digest {
            return self.emit_digest(pages, who, digest, framer, out);
        }
        let sink = read.request.sink;
        let to = sink.to.wrapping_add(u64::from(read.sent));
        let remaining = read.request.size - read.sent;
        let mut len = cut(remaining, u64::from(read.sent), ulpdu_max, TAGGED_BYTES);
        let mut header = Tagged {
            opcode: Opcode::ReadResponse,
            last: len == remaining,
            stag: sink.stag,
            to,
            payload: &[],
        };
        let mut done_slots = 0;
        match &read.source {
            None => {
                let at = framer.open(out);
                header.emit_header(out);
                framer.seal(out, at);
            }
            Some((region, base)) => {
                let offset = base + u64::from(read.sent);
                let refused = |error: AccessError| Fault::Peer(error.terminate(AccessKind::Read));
                let access = |len| check(region, who, read.access(len)).map_err(refused);
                if matches!(region.spec.backing, Backing::Pages(_)) {
                    // The pages of a region that has ended may fail for that; the peer is told of its end.
                    let ready = self.ready_bytes(offset, len);
                    len = ready.or_else(|fault| access(len).and(Err(fault)))?;
                    header.last = len == remaining;
                }
                let access = access(len)?;
                let at = framer.open(out);
                header.emit_header(out);
                match &region.spec.backing {
                    Backing::Memory(buffer) => buffer.append_to(offset as usize, len as usize, out),
                    Backing::Pages(_) => {
                        done_slots = self.append_pages(offset, len, header.last, out)
                    }
                }
                drop(access);
                framer.seal(out, at);
            }
        }
        let last = header.last;
        let (size, since) = (read.request.size, read.since);
        self.drop_slots(done_slots);
        if last {
            self.pop();
            pages.served(Served::Read, size.into(), since);
        } else if let Some(Entry::Read(read)) = self.entries.front_mut() {
            read.sent += len;
        }
        Ok(())
    }

    /// Goes on with the first entry, a VERIFY, as far as its pages are there; appends its answer at the end.
    fn emit_digest<S: PageStore<Page = P>>(
        &mut self,
        pages: &mut S,
        who: Accessor,
        digest: Digest,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let Some(Entry::Read(read)) = self.entries.front() else {
            return Ok(());
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let mut len = read.request.size - read.sent;
        let mut done_slots = 0;
        if let Some((region, base)) = &read.source {
            let offset = base + u64::from(read.sent);
            len = len.min(DIGEST_BYTES);
            let refused = |error: AccessError| Fault::Peer(error.terminate(AccessKind::Read));
            let access = |len| check(region, who, read.access(len)).map_err(refused);
            if read.is_paged() {
                // As for a READ: the peer is told that the region has ended.
                let ready = self.ready_bytes(offset, len);
                len = ready.or_else(|fault| access(len).and(Err(fault)))?;
            }
            let last = read.sent + len == read.request.size;
            let access = access(len)?;
            match &region.spec.backing {
                Backing::Memory(buffer) => {
                    buffer.append_to(offset as usize, len as usize, &mut scratch);
                }
                Backing::Pages(_) => {
                    done_slots = self.append_pages(offset, len, last, &mut scratch);
                }
            }
            drop(access);
        }
        let crc = crc32c::crc32c_append(digest.crc, &scratch);
        self.digested += scratch.len();
        self.scratch = scratch;
        self.drop_slots(done_slots);
        let Some(Entry::Read(read)) = self.entries.front_mut() else {
            return Ok(());
        };
        read.sent += len;
        if read.sent < read.request.size {
            read.digest = Some(Digest { crc, ..digest });
            return Ok(());
        }
        let (size, since) = (read.request.size, read.since);
        self.pop();
        pages.served(Served::Verify, size.into(), since);
        let request = digest.request;
        let response = VerifyResponse { request, crc };
        self.emit_queue_3(Opcode::VerifyResponse, framer, out, |out| {
            response.emit(out)
        });
        Ok(())
    }

    fn pop(&mut self) -> Option<Entry> {
        self.asking = self.asking.saturating_sub(1);
        self.entries.pop_front()
    }

    fn emit_answer<S: PageStore<Page = P>>(
        &mut self,
        pages: &mut S,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) {
        let Some(Entry::Answer(answer)) = self.pop() else {
            return;
        };
        let (opcode, what, bytes) = match answer.body {
            Body::Atomic(_) => (Opcode::AtomicResponse, Served::Atomic, ATOMIC_BYTES),
            Body::Flush(_) => (Opcode::FlushResponse, Served::Flush, 0),
        };
        pages.served(what, bytes as u64, answer.since);
        self.emit_queue_3(opcode, framer, out, |out| match answer.body {
            Body::Atomic(response) => response.emit(out),
            Body::Flush(request) => out.extend_from_slice(&request.to_be_bytes()),
        });
    }

    fn emit_queue_3(
        &mut self,
        opcode: Opcode,
        framer: &mut Framer,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let at = framer.open(out);
        header(opcode, self.answer_msn).emit_header(out);
        body(out);
        framer.seal(out, at);
        self.answer_msn = self.answer_msn.next();
    }

    /// How many of the `wanted` bytes at `offset` lie in the ready prefix of the window.
    fn ready_bytes(&self, offset: u64, wanted: u32) -> Result<u32, Fault> {
        let mut ready = 0;
        for slot in &self.slots {
            match &slot.state {
                State::Ready(_) if ready < wanted => {
                    let in_page = PAGE_BYTES as u32
                        - ((offset + u64::from(ready)) % PAGE_BYTES as u64) as u32;
                    ready = wanted.min(ready + in_page);
                }
                State::Failed(error) if ready == 0 => return Err(Fault::Storage(*error)),
                _ => break,
            }
        }
        assert!(ready > 0, "called only when the first page is there");
        Ok(ready)
    }

    /// Copies `len` bytes at `offset` out of the window; returns how many slots are done with.
    fn append_pages(&self, offset: u64, len: u32, last: bool, out: &mut Vec<u8>) -> usize {
        let (mut copied, mut done) = (0, 0);
        for slot in &self.slots {
            let State::Ready(page) = &slot.state else {
                break;
            };
            if copied == len as usize {
                break;
            }
            let in_page = ((offset + copied as u64) % PAGE_BYTES as u64) as usize;
            let count = (PAGE_BYTES - in_page).min(len as usize - copied);
            page.append_to(in_page, count, out);
            copied += count;
            if in_page + count == PAGE_BYTES || (last && copied == len as usize) {
                done += 1;
            }
        }
        assert_eq!(copied, len as usize, "only ready bytes are sent");
        done
    }

    /// The Read Request being answered, advanced to where it stopped, as a Terminate encloses it (RFC 5040 §4.8).
    pub(in crate::connection) fn offending_ulpdu(&self) -> Option<Vec<u8>> {
        let Some(Entry::Read(read)) = self.entries.front() else {
            return None;
        };
        let mut ulpdu = Vec::new();
        if let Some(digest) = read.digest {
            // Of it the header is enclosed, and how long all of it was.
            header(Opcode::VerifyRequest, read.msn).emit_header(&mut ulpdu);
            let (request, len) = (digest.request, read.request.size);
            let source = read.request.source;
            let verify = VerifyRequest {
                request,
                source,
                len,
            };
            verify.emit(&mut ulpdu);
            return Some(ulpdu);
        }
        header(Opcode::ReadRequest, read.msn).emit_header(&mut ulpdu);
        let mut request = read.request;
        request.sink.to = request.sink.to.wrapping_add(u64::from(read.sent));
        request.source.to = request.source.to.wrapping_add(u64::from(read.sent));
        request.size -= read.sent;
        request.emit(&mut ulpdu);
        Some(ulpdu)
    }
}

/// Header of a message of one segment.
fn header(opcode: Opcode, msn: Msn) -> Untagged<'static> {
    Untagged {
        opcode,
        last: true,
        invalidate: Stag(0),
        msn,
        offset: 0,
        payload: &[],
    }
}
