//! Media access of recovery and formatting: many grain reads in flight, one write at a time.

use crate::addr::{GRAIN_BYTES, Pba};
use crate::device::{Action, ActionId, Device, MediaError, MediaOp, Member, Members};
use crate::format::GrainBytes;
use crate::page::Slot;
use crate::page::arena::Arena;
use std::collections::VecDeque;
use std::sync::Arc;

/// Reads in flight.
const DEPTH: usize = 64;
/// Grains of one read at most.
pub(super) const RUN_MAX: usize = 16;

/// A read of neighbouring grains.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// Of the first grain; the others count on.
    tag: u64,
    at: Pba,
    count: usize,
    /// It has failed once.
    again: bool,
}

/// Drives a device.
pub(crate) struct MediaIo<'d> {
    device: &'d mut dyn Device,
    arena: Arena,
    free: Vec<usize>,
    /// Those in flight.
    reads: Vec<Option<Read>>,
    waiting: VecDeque<Read>,
    /// Those that have failed twice, until the device has rested.
    failed: Vec<(Read, MediaError)>,
    /// Grains that could not be read for good.
    given_up: u64,
    /// Grains of a read that is over.
    here: VecDeque<(u64, Box<GrainBytes>)>,
}

impl<'d> MediaIo<'d> {
    pub(crate) fn new(device: &'d mut dyn Device) -> std::io::Result<Self> {
        Ok(Self {
            device,
            arena: Arena::new(DEPTH * RUN_MAX + 1, 0)?,
            free: (0..DEPTH).collect(),
            reads: vec![None; DEPTH],
            waiting: VecDeque::new(),
            failed: Vec::new(),
            given_up: 0,
            here: VecDeque::new(),
        })
    }

    pub(crate) fn device_grains(&self) -> u64 {
        self.device.len_bytes() / GRAIN_BYTES as u64
    }

    /// The devices of an array.
    pub(crate) fn members(&self) -> Option<&Arc<Members>> {
        self.device.members()
    }

    /// Grains of each device.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        match self.members() {
            Some(members) => members.sizes(),
            None => vec![self.device_grains()],
        }
    }

    /// Where each device that is in use begins.
    pub(crate) fn fronts(&self) -> Vec<Pba> {
        let Some(members) = self.members() else {
            return vec![Pba(0)];
        };
        let mut start = 0;
        let fronts = members.list().iter().map(|member| {
            let front = Pba(start);
            start += member.grains();
            member.is_live().then_some(front)
        });
        fronts.flatten().collect()
    }

    /// Devices that are not in use, one bit each.
    pub(crate) fn lost_mask(&self) -> u16 {
        self.members().map_or(0, |members| members.lost())
    }

    /// The first device that is not in use.
    pub(crate) fn lost(&self) -> Option<&Member> {
        let members = self.members()?;
        members.list().iter().find(|member| !member.is_live())
    }

    /// Queues a read of one grain; `tag` comes back with it.
    pub(crate) fn want(&mut self, tag: u64, at: Pba) {
        self.want_run(tag, at, 1);
    }

    /// Queues a read of `count` neighbouring grains, [`RUN_MAX`] at most, which come back one by one: the first with
    /// `tag`, the next with the number behind it.
    pub(super) fn want_run(&mut self, tag: u64, at: Pba, count: usize) {
        self.waiting.push_back(Read {
            tag,
            at,
            count,
            again: false,
        });
        self.fill();
    }

    fn fill(&mut self) {
        while !self.waiting.is_empty()
            && let Some(index) = self.free.pop()
        {
            let read = self.waiting.pop_front().expect("not empty");
            self.reads[index] = Some(read);
            let op = MediaOp::Read {
                offset: read.at.0 * GRAIN_BYTES as u64,
                buf: self.arena.lend(Self::slot(index), read.count),
            };
            let id = ActionId(index as u64);
            self.device.submit(Action { id, op });
        }
    }

    /// Where a read in flight goes.
    fn slot(index: usize) -> Slot {
        Slot((index * RUN_MAX) as u32)
    }

    /// The next grain that has been read; `None` when none is left. A failed read is tried twice, one grain at a time, and
    /// again whenever the device has rested: what recovery can not read it takes for damaged or for the end of the log, and
    /// whatever was there is given up for good, though the device may only have been away for a moment.
    pub(crate) fn next(&mut self) -> Option<(u64, Result<Box<GrainBytes>, MediaError>)> {
        loop {
            if let Some((tag, bytes)) = self.here.pop_front() {
                return Some((tag, Ok(bytes)));
            }
            let Some((id, result)) = self.device.poll(true) else {
                let (read, error) = self.failed.pop()?;
                if !self.device.rest() {
                    self.given_up += 1;
                    return Some((read.tag, Err(error)));
                }
                self.waiting.push_back(read);
                self.waiting
                    .extend(self.failed.drain(..).map(|(read, _)| read));
                self.fill();
                continue;
            };
            let index = id.0 as usize;
            let read = self.reads[index].take().expect("read in flight");
            self.free.push(index);
            match result {
                Ok(()) => {
                    let slot = Self::slot(index);
                    let grains = (0..read.count).map(|n| self.arena.bytes(slot.plus(n)));
                    self.here.extend((read.tag..).zip(grains));
                    self.fill();
                }
                Err(_) if !read.again => {
                    for n in (0..read.count as u64).rev() {
                        self.waiting.push_front(Read {
                            tag: read.tag + n,
                            at: Pba(read.at.0 + n),
                            count: 1,
                            again: true,
                        });
                    }
                    self.fill();
                }
                // It was opened without this: it does not come.
                Err(MediaError::Missing) => {
                    self.fill();
                    return Some((read.tag, Err(MediaError::Missing)));
                }
                Err(error) => {
                    self.failed.push((read, error));
                    self.fill();
                }
            }
        }
    }

    /// Grains that could not be read, however long the device rested.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Reads one grain; nothing else is in flight.
    pub(crate) fn read(&mut self, at: Pba) -> Result<Box<GrainBytes>, MediaError> {
        self.want(0, at);
        self.next()
            .map_or(Err(MediaError::Gone), |(_, result)| result)
    }

    /// Writes one grain; nothing else is in flight.
    pub(crate) fn write(&mut self, at: Pba, bytes: &GrainBytes) -> Result<(), MediaError> {
        let slot = Self::slot(DEPTH);
        self.arena.copy_in(slot, 0, bytes);
        self.run(MediaOp::Write {
            offset: at.0 * GRAIN_BYTES as u64,
            buf: self.arena.lend(slot, 1),
            durable: false,
        })
    }

    pub(crate) fn flush(&mut self) -> Result<(), MediaError> {
        self.run(MediaOp::Flush)
    }

    fn run(&mut self, op: MediaOp) -> Result<(), MediaError> {
        let id = ActionId(DEPTH as u64);
        self.device.submit(Action { id, op });
        match self.device.poll(true) {
            Some((done, result)) => {
                assert_eq!(done, id, "only operation in flight");
                result
            }
            None => Err(MediaError::Gone),
        }
    }
}
