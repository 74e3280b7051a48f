//! The log's own knowledge: header numbers, which of them are written, durable, and known as such on the media.
//!
//! # Invariants
//! - Numbers are consecutive; `durable <= written <= last`, and `recorded <= durable`.
//! - `durable` only grows by a flush that was submitted after every write up to it had completed, or by the completion
//!   of a write that goes through the caches, of headers before which everything is durable (I1, I8).
//! - `recorded` is the highest number that a durable header calls durable: recovery counts on nothing else to be
//!   present, so what it does not count on may be overwritten (see `docs/format.md`, reuse).

use crate::addr::Pba;
use crate::format::HeaderNo;
use std::collections::VecDeque;

/// Write-outs that go through the caches at the same time; more of them would be smaller.
const AWAITED_MAX: usize = 2;

#[derive(Debug)]
struct Assembled {
    no: HeaderNo,
    carries: HeaderNo,
    at: Pba,
    written: bool,
    /// Somebody waits for it.
    awaited: bool,
    /// Durable on completion, if everything before it is.
    through: bool,
}

/// Numbers of the log.
#[derive(Debug)]
pub(crate) struct Log {
    last: HeaderNo,
    /// Where header `last` lies.
    back: Option<Pba>,
    /// Where the header before it lies.
    previous: Option<Pba>,
    written: HeaderNo,
    durable: HeaderNo,
    /// As far as flushes have come; more than `durable` only while a loss is being healed.
    flushed: HeaderNo,
    /// The first header that was lost with its device before it was durable: nothing from here on is called durable.
    hold: Option<HeaderNo>,
    recorded: HeaderNo,
    /// Headers above `durable`.
    tail: VecDeque<Assembled>,
    flushing: bool,
}

impl Log {
    /// A log whose last header is `last`, all of it durable; `recorded` because the superblock says so.
    pub(crate) fn new(last: HeaderNo, back: Option<Pba>) -> Self {
        Self {
            last,
            back,
            previous: None,
            written: last,
            durable: last,
            flushed: last,
            hold: None,
            recorded: last,
            tail: VecDeque::new(),
            flushing: false,
        }
    }

    pub(crate) fn last(&self) -> HeaderNo {
        self.last
    }
    /// Where the header before the youngest lies: the back-pointer of the youngest.
    pub(crate) fn previous(&self) -> Option<Pba> {
        self.previous
    }
    /// Where the youngest header lies.
    pub(crate) fn last_at(&self) -> Option<Pba> {
        self.back
    }
    /// Where the headers above `written` lie.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = Pba> + '_ {
        let above = self.tail.iter().filter(|a| a.no > self.written);
        above.map(|a| a.at)
    }
    pub(crate) fn written(&self) -> HeaderNo {
        self.written
    }
    pub(crate) fn durable(&self) -> HeaderNo {
        self.durable
    }
    pub(crate) fn flushed(&self) -> HeaderNo {
        self.flushed
    }
    pub(crate) fn recorded(&self) -> HeaderNo {
        self.recorded
    }
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing
    }

    /// What the youngest assembled header calls durable.
    pub(crate) fn last_carries(&self) -> HeaderNo {
        self.tail.back().map_or(self.recorded, |a| a.carries)
    }

    /// Takes the next number for a header at `at`; it will carry the present `durable`.
    pub(crate) fn assemble(&mut self, at: Pba) -> HeaderNo {
        self.last = self.last.next();
        self.previous = self.back.replace(at);
        self.tail.push_back(Assembled {
            no: self.last,
            carries: self.durable,
            at,
            written: false,
            awaited: false,
            through: false,
        });
        self.last
    }

    /// Somebody waits for the youngest header. It is to be written through the caches of the device if everything
    /// before it is durable or will be without a flush: then completion is all that durability takes.
    pub(crate) fn write_through_if_no_flush(&mut self) {
        if let Some(last) = self.tail.back_mut() {
            last.awaited = true;
        }
        let before = self.tail.len().saturating_sub(1);
        if self.tail.iter().take(before).all(|a| a.through) {
            self.write_through();
        }
    }

    /// The youngest header is to be written through.
    pub(crate) fn write_through(&mut self) {
        if let Some(last) = self.tail.back_mut() {
            last.through = true;
        }
    }

    /// Whether the youngest header is to be written through.
    pub(crate) fn last_goes_through(&self) -> bool {
        self.tail.back().is_some_and(|a| a.through)
    }

    /// Whether so much of what somebody waits for is on its way through the caches that more had better gather.
    pub(crate) fn is_going_through(&self) -> bool {
        let through = |a: &&Assembled| a.awaited && a.through && !a.written;
        self.tail.iter().filter(through).count() >= AWAITED_MAX
    }

    /// Whether something that somebody waits for needs a flush, and will be durable with it.
    pub(crate) fn needs_flush(&self) -> bool {
        self.hold.is_none() && self.tail.iter().any(|a| a.awaited && !a.through)
    }

    /// Header `no` and its data are on the media: durable if they were written through, else if a flush follows.
    pub(crate) fn complete(&mut self, no: HeaderNo) {
        let at = self.tail.iter().position(|a| a.no == no);
        let at = at.expect("completion of a header that is in the tail");
        self.tail[at].written = true;
        self.advance();
        let ready = self.tail.iter().take_while(|a| a.written);
        if let Some(covers) = ready.filter(|a| a.through).last().map(|a| a.no) {
            self.settle(covers);
        }
    }

    fn advance(&mut self) {
        let front = self.tail.front().map_or(self.last.0, |a| a.no.0);
        let done = self.tail.iter().take_while(|a| a.written).count() as u64;
        self.written = HeaderNo((front + done).saturating_sub(1).max(self.written.0));
    }

    /// The headers at places that `is_lost` are not there any more. Nobody waits for them to be written; nothing behind
    /// them is called durable until [`Log::let_go`]. Returns the first that is not called durable.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(Pba) -> bool) -> Option<HeaderNo> {
        for header in self.tail.iter_mut().filter(|a| is_lost(a.at)) {
            header.written = true;
            header.through = false;
            let first = self.hold.map_or(header.no, |first| first.min(header.no));
            self.hold = Some(first);
        }
        self.advance();
        self.hold
    }

    /// What was lost is recorded: the log goes on behind it.
    pub(crate) fn let_go(&mut self) {
        self.hold = None;
        self.settle(self.flushed);
    }

    /// A flush starts; returns what it will make durable.
    pub(crate) fn begin_flush(&mut self) -> HeaderNo {
        assert!(!self.flushing, "one flush at a time");
        self.flushing = true;
        self.written
    }

    /// The flush of everything up to `covers` succeeded.
    pub(crate) fn end_flush(&mut self, covers: HeaderNo) {
        self.flushing = false;
        self.settle(covers);
    }

    /// Everything up to `covers` is durable.
    fn settle(&mut self, covers: HeaderNo) {
        self.flushed = self.flushed.max(covers);
        let covers = match self.hold {
            Some(lost) => covers.min(HeaderNo(lost.0 - 1)),
            None => covers,
        };
        while self.tail.front().is_some_and(|a| a.no <= covers) {
            let done = self.tail.pop_front().expect("not empty");
            self.recorded = done.carries;
        }
        self.durable = self.durable.max(covers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written through is durable in order, and only where nothing before it waits for a flush (I1).
    #[test]
    fn written_through() {
        let mut log = Log::new(HeaderNo(0), None);
        for at in 0..3 {
            log.assemble(Pba(at));
            log.write_through_if_no_flush();
            assert!(log.last_goes_through());
        }
        log.complete(HeaderNo(2));
        assert_eq!(log.durable(), HeaderNo(0));
        assert!(log.is_going_through() && !log.needs_flush());
        log.complete(HeaderNo(1));
        assert_eq!(
            log.durable(),
            HeaderNo(2),
            "what completed early counts now"
        );
        assert!(!log.is_going_through());
        log.assemble(Pba(3));
        log.assemble(Pba(4));
        log.write_through_if_no_flush();
        assert!(!log.last_goes_through(), "header 4 needs a flush anyway");
        log.complete(HeaderNo(4));
        log.complete(HeaderNo(3));
        assert_eq!((log.durable(), log.written()), (HeaderNo(3), HeaderNo(4)));
        assert!(log.needs_flush() && !log.is_going_through());
        log.complete(HeaderNo(5));
        let covers = log.begin_flush();
        log.end_flush(covers);
        assert_eq!(log.durable(), HeaderNo(5));
        assert!(!log.needs_flush());
    }

    /// What is lost with its device holds up what is behind it, until that is recorded (I1, I8).
    #[test]
    fn lost_headers() {
        let mut log = Log::new(HeaderNo(10), None);
        for at in [100, 200, 101, 102] {
            log.assemble(Pba(at));
        }
        log.complete(HeaderNo(11));
        log.complete(HeaderNo(13));
        log.lose(|at| at == Pba(200));
        assert_eq!(log.written(), HeaderNo(13));
        let covers = log.begin_flush();
        log.end_flush(covers);
        assert_eq!((log.durable(), log.flushed()), (HeaderNo(11), HeaderNo(13)));
        log.complete(HeaderNo(14));
        log.assemble(Pba(103));
        log.write_through_if_no_flush();
        assert!(!log.last_goes_through(), "header 12 is not durable");
        log.let_go();
        assert_eq!((log.durable(), log.written()), (HeaderNo(13), HeaderNo(14)));
    }

    /// Durable follows the longest written prefix that a flush covered; recorded lags one header behind (I1).
    #[test]
    fn prefix() {
        let mut log = Log::new(HeaderNo(10), None);
        for at in 0..3 {
            log.assemble(Pba(at));
        }
        log.complete(HeaderNo(12));
        assert_eq!(log.written(), HeaderNo(10));
        log.complete(HeaderNo(11));
        assert_eq!(log.written(), HeaderNo(12));
        let covers = log.begin_flush();
        log.complete(HeaderNo(13));
        log.end_flush(covers);
        assert_eq!((log.durable(), log.written()), (HeaderNo(12), HeaderNo(13)));
        assert_eq!(log.recorded(), HeaderNo(10));
        log.assemble(Pba(9));
        assert_eq!(log.last_carries(), HeaderNo(12));
        log.complete(HeaderNo(14));
        let covers = log.begin_flush();
        log.end_flush(covers);
        assert_eq!(
            (log.durable(), log.recorded()),
            (HeaderNo(14), HeaderNo(12))
        );
    }
}
