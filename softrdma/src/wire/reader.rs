//! One direction of a recorded connection, read without taking part: for captures, tools and fuzzing.

use crate::event::SetupError;
use crate::stream::{Step, StreamBuffer};
use crate::wire::ddp::{Segment, SegmentError};
use crate::wire::fpdu::{self, NextFpdu};
use crate::wire::start::{NextStart, StartFrame, StartKind};

/// What the stream holds, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// The start frame.
    Start(StartFrame<'a>),
    /// No start frame; nothing more is read.
    BadStart(SetupError),
    /// An FPDU: its ULPDU, and what that is.
    Fpdu(&'a [u8], Result<Segment<'a>, SegmentError>),
    /// A wrong CRC; nothing more is read.
    BadCrc,
}

/// Reads a stream without markers, delivered in any pieces.
#[derive(Debug)]
pub struct StreamReader {
    rx: StreamBuffer,
    start: Option<StartKind>,
    crc: bool,
    ended: bool,
}

impl StreamReader {
    /// A stream that begins with this frame; `crc` says whether both sides agreed on CRCs.
    #[must_use]
    pub fn new(start: StartKind, crc: bool) -> Self {
        Self {
            rx: StreamBuffer::default(),
            start: Some(start),
            crc,
            ended: false,
        }
    }

    /// Reads on. `sink` gets the items that are complete.
    pub fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(Item<'_>)) {
        if self.ended {
            return;
        }
        let Self {
            rx,
            start,
            crc,
            ended,
        } = self;
        rx.feed(bytes, 0, |shown| {
            let mut end = |item| {
                sink(item);
                *ended = true;
                Step::Discard
            };
            if let Some(kind) = *start {
                return match StartFrame::parse(kind, shown) {
                    Ok(NextStart::Need(count)) => Step::Need(count),
                    Ok(NextStart::Frame(frame, total)) => {
                        sink(Item::Start(frame));
                        *start = None;
                        Step::Took(total)
                    }
                    Err(error) => end(Item::BadStart(error)),
                };
            }
            match fpdu::next(shown, *crc) {
                Ok(NextFpdu::Need(count)) => Step::Need(count),
                Ok(NextFpdu::Fpdu(ulpdu, total)) => {
                    sink(Item::Fpdu(ulpdu, Segment::parse(ulpdu)));
                    Step::Took(total)
                }
                Err(_) => end(Item::BadCrc),
            }
        });
    }

    /// Bytes of a frame that is not complete.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.rx.kept().len()
    }
}
