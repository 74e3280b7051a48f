//! What the engine wants of the devices, by the ring.

use std::time::Instant;

use ftl::device::array::{PartId, Splitter};
use ftl::{Action, ActionId, MediaError, MediaOp, Port};
use softrdma::Time;
use tracing::{debug, warn};

use super::Core;

/// Media operations in the ring at once; the rest waits in the engine.
const MEDIA_IN_FLIGHT_MAX: usize = 512;

/// An operation that a device has been asked for.
#[derive(Debug)]
pub(super) struct Started {
    port: Port,
    action: Action,
    device: usize,
    at: Instant,
}

impl Core {
    /// Hands what the engine wants to the ring; true if something was over at once.
    pub(super) fn submit_media(&mut self, now: Time) -> bool {
        let mut over = false;
        let port = self.parts.pages.port;
        while self.media.len() < MEDIA_IN_FLIGHT_MAX
            && let Some(action) = self.parts.pages.ftl.poll_action(port)
        {
            match &mut self.splitter {
                None => self.start_media(0, port, action),
                Some(splitter) => {
                    splitter.split(action);
                    over |= self.turn_splitter(now);
                }
            }
        }
        while self.media.len() < MEDIA_IN_FLIGHT_MAX
            && let Some((port, action)) = self.parts.lanes.as_ref().and_then(|l| l.left_action())
        {
            self.start_media(0, port, action);
        }
        over
    }

    /// Starts the parts of actions that are to be started, and reports actions that are over; whether there were any.
    fn turn_splitter(&mut self, now: Time) -> bool {
        let mut over = false;
        while let Some(part) = self.splitter.as_mut().and_then(Splitter::next_part) {
            let id = ActionId(part.id.0);
            let port = self.parts.pages.port;
            self.start_media(part.device, port, Action { id, op: part.op });
        }
        while let Some((id, result)) = self.splitter.as_mut().and_then(Splitter::next_done) {
            self.media_done(now, self.parts.pages.port, id, result);
            over = true;
        }
        over
    }

    pub(super) fn start_media(&mut self, device: usize, port: Port, action: Action) {
        let entry = self.media.vacant_entry();
        let id = entry.key() as u32;
        let fd = self.parts.media.fd(device);
        let ring = &mut self.net.ring;
        match &action.op {
            // SAFETY: the engine leaves the buffer alone until the action is done, and `media` keeps the action
            // until its completion arrives.
            MediaOp::Read { offset, buf } => unsafe {
                ring.read(fd, *offset, buf.as_ptr(), buf.len() as u32, id);
            },
            MediaOp::Write {
                offset,
                buf,
                durable,
            } => {
                let (ptr, len) = (buf.as_ptr(), buf.len() as u32);
                // SAFETY: as above.
                unsafe { ring.write(fd, *offset, ptr, len, *durable, id) };
            }
            MediaOp::Flush => ring.flush(fd, id),
            MediaOp::Discard { offset, len } => ring.discard(fd, *offset, *len, id),
        }
        self.parts.media.meters().begin(device);
        entry.insert(Started {
            port,
            action,
            device,
            at: Instant::now(),
        });
    }

    /// Answers a media operation that is over.
    pub(super) fn answer_media(&mut self, now: Time, id: u32, result: i32) {
        let Started {
            port,
            action,
            device,
            at,
        } = self.media.remove(id as usize);
        let meters = self.parts.media.meters();
        meters.note(device, &action.op, at.elapsed(), result);
        let result = media_result(&action, result);
        match &mut self.splitter {
            None => self.media_done(now, port, action.id, result),
            Some(splitter) => {
                splitter.part_done(PartId(action.id.0), result);
                self.turn_splitter(now);
            }
        }
    }

    fn media_done(&mut self, now: Time, port: Port, id: ActionId, result: Result<(), MediaError>) {
        match &result {
            // The loss of a device has been told, once.
            Err(error @ (MediaError::Gone | MediaError::Missing)) if self.splitter.is_some() => {
                debug!(%error, "an operation on a device that is lost");
            }
            Err(error) => warn!(%error, "the device failed an operation"),
            Ok(()) => {}
        }
        let pages = &mut self.parts.pages;
        pages.ftl.handle_done(port, ftl::Time(now.0), id, result);
        if port != pages.port
            && let Some(lanes) = &self.parts.lanes
        {
            lanes.stirred(port);
        }
    }
}

/// What the engine is told of the result of a system call.
pub(in crate::target) fn media_result(action: &Action, result: i32) -> Result<(), MediaError> {
    let want = match &action.op {
        MediaOp::Read { buf, .. } | MediaOp::Write { buf, .. } => buf.len(),
        MediaOp::Flush => 0,
        // Advice: a device that cannot discard has not failed.
        MediaOp::Discard { .. } => return Ok(()),
    };
    match usize::try_from(result) {
        Ok(n) if n == want => Ok(()),
        Ok(_) => Err(MediaError::Short),
        Err(_) => Err(MediaError::from_errno(-result)),
    }
}
