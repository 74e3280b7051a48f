//! Raising the format: the superblock says that the log may name images of snapshots, before it does.

use super::{Core, Cx};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::error::DurableError;
use crate::ids::{Port, Token};
use crate::port::Op;

/// What has been done of it.
#[derive(Debug, Default)]
pub(super) struct Raise {
    askers: Vec<(Port, Token)>,
    /// Steps that have been done of copy, flush, copy, flush.
    steps: Option<u8>,
}

impl Raise {
    /// Whether the superblock is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.steps.is_some()
    }

    pub(super) fn take_askers(&mut self) -> Vec<(Port, Token)> {
        std::mem::take(&mut self.askers)
    }
}

impl Core {
    /// The log may name images from the answer on.
    pub(crate) fn admit_images(&mut self, cx: Cx<'_>, token: Token) {
        self.raise.askers.push((cx.port, token));
        self.pump(cx);
    }

    /// Whether both superblock copies say that the log may name images.
    pub(crate) fn admits_images(&self) -> bool {
        self.superblock.images && !self.raise.is_writing()
    }

    pub(super) fn run_raise(&mut self, cx: Cx<'_>) {
        if self.raise.askers.is_empty() || self.raise.is_writing() {
            return;
        }
        let refused = match (self.failed, self.phase.is_running()) {
            (Some(error), _) => Some(DurableError::Failed(error)),
            (None, false) => Some(DurableError::Shutdown),
            (None, true) => None,
        };
        if refused.is_some() || self.admits_images() {
            for (port, token) in self.raise.take_askers() {
                self.tell_durable(cx, port, token, refused.map_or(Ok(()), Err));
            }
            return;
        }
        // There is one buffer for superblocks.
        if self.is_switching() || self.is_recording_loss() {
            return;
        }
        self.superblock.images = true;
        self.raise.steps = Some(0);
        self.write_superblock(cx);
        crash_point!("snapshot.raise");
    }

    /// A step of writing the superblock has ended.
    pub(super) fn raise_done(&mut self, cx: Cx<'_>, result: Result<(), MediaError>) {
        if let Err(error) = result {
            self.raise.steps = None;
            self.fail(cx, error);
            return;
        }
        let done = self.raise.steps.unwrap_or(0) + 1;
        self.raise.steps = (done < 4).then_some(done);
        match done {
            1 | 3 => {
                crash_point!("snapshot.raise");
                self.act(cx, Op::Superblock, MediaOp::Flush);
            }
            2 => self.write_superblock(cx),
            _ => crash_point!("snapshot.raise"),
        }
    }
}
