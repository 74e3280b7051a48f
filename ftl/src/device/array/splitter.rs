//! Splitting operations by place and joining the answers: an array without its devices.
//!
//! Whoever has the devices submits an action to [`Splitter::split`], carries out what [`Splitter::next_part`] gives,
//! reports each to [`Splitter::part_done`], and takes finished actions from [`Splitter::next_done`]. Several threads
//! may each have a splitter over the same [`Members`].
//!
//! # Failure
//! A device that fails a write or a flush, or that has gone, is used no more, and this is known before the operation that
//! showed it is answered; one that refuses a write (EINVAL) that another carries out has failed it. An operation that other devices carry out as well succeeds if one of them did; a flush
//! succeeds if every device left has flushed. What only a lost device can do fails as `Gone`.

use super::{Member, MemberState, Members};
use crate::addr::{GRAIN_BYTES, Pba};
use crate::device::{Action, ActionId, IoBuf, MediaError, MediaOp};
use crate::format::ROOT_SLOTS;
use crate::geometry::AREAS_MAX;
use crate::places::DEVICES_MAX;
use std::collections::VecDeque;
use std::sync::Arc;

/// Grains at the beginning of a device that hold the superblock, and behind them roots of checkpoints.
const SUPERBLOCKS: u64 = 2;

/// Names a part between its issue and its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartId(pub u64);

/// What one device has to do for an action.
#[derive(Debug)]
pub struct Part {
    /// Comes back with the completion.
    pub id: PartId,
    /// Which device.
    pub device: usize,
    /// What it is to do, at its own addresses.
    pub op: MediaOp,
}

/// A place on a device, in bytes.
type Spot = (usize, u64);

/// An action of which parts are under way.
#[derive(Debug)]
struct Joint {
    id: ActionId,
    parts: usize,
    succeeded: bool,
    error: Option<MediaError>,
    /// Devices that have refused a write as one that makes no sense.
    refused: Vec<usize>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// The memory, and where else the same can be read.
    Read {
        buf: IoBuf,
        other: Vec<Spot>,
    },
    Write {
        durable: bool,
    },
    /// What the flush of each device covers.
    Flush([u64; DEVICES_MAX]),
    Discard,
}

/// See the module.
#[derive(Debug)]
pub struct Splitter {
    members: Arc<Members>,
    joints: Vec<Option<Joint>>,
    free: Vec<usize>,
    parts: VecDeque<Part>,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl Splitter {
    /// A splitter over these devices.
    pub fn new(members: Arc<Members>) -> Self {
        Self {
            members,
            joints: Vec::new(),
            free: Vec::new(),
            parts: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    /// Whether no action is under way, and none waits to be taken.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.joints.len() && self.done.is_empty()
    }

    /// Takes an action apart.
    pub fn split(&mut self, action: Action) {
        let id = action.id;
        match action.op {
            MediaOp::Read { offset, buf } => {
                let mut copies = self.live_copies(offset);
                if copies.is_empty() {
                    self.done.push_back((id, Err(self.why_no_copy(offset))));
                    return;
                }
                let first = copies.remove(0);
                let op = MediaOp::Read {
                    offset: first.1,
                    buf: buf.again(),
                };
                let joint = self.join(id, Work::Read { buf, other: copies });
                self.issue(joint, first.0, op);
            }
            MediaOp::Write {
                offset,
                buf,
                durable,
            } => {
                let copies = self.live_copies(offset);
                let joint = self.join(id, Work::Write { durable });
                for (device, offset) in copies {
                    let buf = buf.again();
                    let op = MediaOp::Write {
                        offset,
                        buf,
                        durable,
                    };
                    self.issue(joint, device, op);
                }
                self.end_if_over(joint, Err(MediaError::Gone));
            }
            MediaOp::Flush => {
                let mut covers = [0; DEVICES_MAX];
                let mut devices = Vec::new();
                for (device, member) in self.members.list().iter().enumerate() {
                    if member.is_live()
                        && let Some(written) = self.members.unflushed(device)
                    {
                        covers[device] = written;
                        devices.push(device);
                    }
                }
                let joint = self.join(id, Work::Flush(covers));
                for device in devices {
                    self.issue(joint, device, MediaOp::Flush);
                }
                self.end_if_over(joint, Ok(()));
            }
            MediaOp::Discard { offset, len } => {
                let copies = self.live_copies(offset);
                let joint = self.join(id, Work::Discard);
                for (device, offset) in copies {
                    self.issue(joint, device, MediaOp::Discard { offset, len });
                }
                self.end_if_over(joint, Ok(()));
            }
        }
    }

    /// The next thing to do.
    pub fn next_part(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// The next action that is over.
    pub fn next_done(&mut self) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front()
    }

    /// A device has ended a part.
    ///
    /// # Panics
    /// If the part is not under way.
    pub fn part_done(&mut self, id: PartId, result: Result<(), MediaError>) {
        let (index, device) = ((id.0 >> 8) as usize, (id.0 & 0xff) as usize);
        let members = Arc::clone(&self.members);
        let joint = self.joints.get_mut(index).and_then(Option::as_mut);
        let joint = joint.expect("completion of a part that is under way");
        joint.parts -= 1;
        match (&mut joint.work, result) {
            (Work::Write { durable: false }, Ok(())) => members.note_write(device),
            (Work::Write { durable: true }, Ok(())) => {}
            (Work::Flush(covers), Ok(())) => members.note_flush(device, covers[device]),
            (Work::Read { .. } | Work::Discard, Ok(())) => {}
            (Work::Read { buf, other }, Err(error)) => {
                if error == MediaError::Gone {
                    members.fail(device, error);
                }
                other.retain(|&(device, _)| members.list()[device].is_live());
                if !other.is_empty() {
                    let (device, offset) = other.remove(0);
                    let op = MediaOp::Read {
                        offset,
                        buf: buf.again(),
                    };
                    self.issue(index, device, op);
                    return;
                }
            }
            (Work::Discard, Err(_)) => {}
            // A request that makes no sense says nothing about the device, unless another has carried it out. There is no flush that makes none: a device that
            // refuses it keeps nothing for sure.
            (Work::Write { .. }, Err(MediaError::Invalid)) => joint.refused.push(device),
            (Work::Write { .. } | Work::Flush(_), Err(error)) => members.fail(device, error),
        }
        let joint = self.joints[index].as_mut().expect("checked above");
        let some_left = members.list().iter().any(Member::is_live);
        match result {
            Ok(()) => joint.succeeded = true,
            // What had not been flushed is lost with the device; of those left everything has been.
            Err(error) if matches!(joint.work, Work::Flush(_)) => {
                joint.succeeded |= some_left;
                joint.error = Some(error);
            }
            Err(error) => joint.error = Some(error),
        }
        self.end_if_over(index, Ok(()));
    }

    /// Where on devices that are in use a place of the volume lies.
    fn live_copies(&self, offset: u64) -> Vec<Spot> {
        let mut copies = self.copies(offset);
        copies.retain(|&(device, _)| self.members.list()[device].is_live());
        copies
    }

    /// What is said of a read that no device is left for.
    fn why_no_copy(&self, offset: u64) -> MediaError {
        let list = self.members.list();
        let is_missing = |&(device, _): &Spot| list[device].state() == MemberState::Missing;
        match self.copies(offset).iter().all(is_missing) {
            true => MediaError::Missing,
            false => MediaError::Gone,
        }
    }

    fn copies(&self, offset: u64) -> Vec<Spot> {
        let grain = GRAIN_BYTES as u64;
        let mut start = 0;
        let sizes = self.members.list().iter().map(|m| m.grains() * grain);
        let mut device = 0;
        let mut local = offset;
        for (index, size) in sizes.enumerate() {
            device = index;
            local = offset - start;
            if local < size {
                break;
            }
            start += size;
        }
        let alone = vec![(device, local)];
        let Some(geometry) = self.members.layout() else {
            return alone;
        };
        let count = self.members.list().len();
        let at = Pba(offset / grain);
        let (superblocks, roots) = (SUPERBLOCKS, SUPERBLOCKS + ROOT_SLOTS);
        if at.0 < superblocks {
            return (0..count).map(|device| (device, offset)).collect();
        }
        let keepers = count.min(AREAS_MAX);
        if at.0 < roots {
            return (0..keepers).map(|device| (device, offset)).collect();
        }
        let area = geometry.area_start();
        if device == 0 && at >= area {
            let place = |device| {
                let start = geometry.area_on(device).0 - geometry.places.start(device).0;
                (device, (start + at.0 - area.0) * grain)
            };
            return (0..keepers).map(place).collect();
        }
        alone
    }

    fn join(&mut self, id: ActionId, work: Work) -> usize {
        let joint = Joint {
            id,
            parts: 0,
            succeeded: false,
            error: None,
            refused: Vec::new(),
            work,
        };
        match self.free.pop() {
            Some(index) => {
                self.joints[index] = Some(joint);
                index
            }
            None => {
                self.joints.push(Some(joint));
                self.joints.len() - 1
            }
        }
    }

    fn issue(&mut self, joint: usize, device: usize, op: MediaOp) {
        self.joints[joint].as_mut().expect("under way").parts += 1;
        self.parts.push_back(Part {
            id: PartId((joint as u64) << 8 | device as u64),
            device,
            op,
        });
    }

    /// Answers an action of which no part is under way; `nothing` if there never was one.
    fn end_if_over(&mut self, index: usize, nothing: Result<(), MediaError>) {
        let is_over = |joint: &mut Joint| joint.parts == 0;
        let Some(joint) = self.joints[index].take_if(is_over) else {
            return;
        };
        self.free.push(index);
        if joint.succeeded {
            // It made sense: who refused it has an old copy.
            for device in joint.refused {
                self.members.fail(device, MediaError::Invalid);
            }
        }
        let result = match (joint.succeeded, joint.error) {
            (true, _) => Ok(()),
            (false, Some(error)) => Err(error),
            (false, None) => nothing,
        };
        self.done.push_back((joint.id, result));
    }
}
