//! What an engine runs for every operation: receives with their scatter lists, and queues of posted requests.

use std::sync::Arc;

use super::descriptor::Opcode;
use super::template::Template;
use crate::mem::Buffer;

/// Marks a receive queue among the numbers of completion queues.
const RECEIVE_BIT: u32 = 1 << 31;

/// Largest number of queues, of either kind.
pub const QUEUES_MAX: usize = 64;
/// Largest number of requests that a queue has for an operation.
pub const REQUESTS_MAX: usize = 64;
/// Largest number of operations in the rings.
pub const DEPTH_MAX: u64 = 1 << 16;

/// Completions of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// Messages of a receive queue.
    Receive(usize),
    /// Requests of a work queue, WAITs not counted.
    Queue(usize),
}

impl Count {
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Receive(queue) => queue as u32 | RECEIVE_BIT,
            Self::Queue(queue) => queue as u32,
        }
    }
}

/// Who carries out the requests of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// The local queue pair.
    Local,
    /// Links, as its table of destinations says.
    Links,
}

/// A work queue.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    /// Who carries it out.
    pub carrier: Carrier,
    /// Its requests for one operation.
    pub requests: Vec<Template>,
}

/// Bytes of a message that go into a descriptor of the same operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First byte in the message.
    pub from: usize,
    /// How many.
    pub len: usize,
    /// Which queue.
    pub queue: usize,
    /// Which of its requests.
    pub request: usize,
    /// First byte in the descriptor ([`field`](super::field)).
    pub at: usize,
}

/// A scatter list, for messages whose kind byte is `kind`.
#[derive(Clone, Debug)]
pub struct Format {
    /// The kind byte.
    pub kind: u8,
    /// Where its bytes go.
    pub moves: Vec<Move>,
}

/// Where a copy of a message is kept, to be sent on.
#[derive(Clone, Debug)]
pub struct Keep {
    /// Memory of the program.
    pub memory: Arc<Buffer>,
    /// First byte for the first slot of the ring.
    pub offset: usize,
    /// From one slot to the next.
    pub stride: usize,
}

/// A receive queue.
#[derive(Clone, Debug)]
pub struct ReceiveSpec {
    /// Bytes of each message.
    pub message: usize,
    /// Which byte of the message tells its kind.
    pub kind_at: usize,
    /// One scatter list per kind.
    pub formats: Vec<Format>,
    /// Keep a copy.
    pub keep: Option<Keep>,
}

/// All that an engine runs.
#[derive(Clone, Debug)]
pub struct Program {
    /// Operations that the rings hold.
    pub depth: u64,
    /// Receive queues. The first begins an operation, the others belong to one that was begun.
    pub receives: Vec<ReceiveSpec>,
    /// Work queues.
    pub queues: Vec<QueueSpec>,
}

/// Why a program can not be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProgramError {
    /// No receive queue, or a number above its maximum.
    #[error("the program is empty or too large")]
    Size,
    /// A scatter list reads beyond its message or its copy does not fit the memory.
    #[error("a scatter list reaches beyond its message or memory")]
    Message,
    /// A scatter list writes what the mask does not allow.
    #[error(
        "a scatter list touches bytes that the mask of its descriptor does not let a peer write"
    )]
    Mask,
    /// A queue, request or completion queue is named that does not exist.
    #[error("the program names a queue or request that it does not have")]
    Unknown,
    /// A request that its queue can not carry out.
    #[error("a request does not fit the carrier of its queue")]
    Carrier,
    /// WAITs that do not grant each request once, or one that waits for more than an operation has.
    #[error("a WAIT grants or counts other requests than an operation has")]
    Wait,
}

impl Program {
    /// Does all of it make sense?
    ///
    /// # Errors
    /// What does not.
    pub fn validate(&self) -> Result<(), ProgramError> {
        let sizes = [self.receives.len(), self.queues.len()];
        let depth = 1..=DEPTH_MAX;
        if sizes.iter().any(|&size| size == 0 || size > QUEUES_MAX) || !depth.contains(&self.depth)
        {
            return Err(ProgramError::Size);
        }
        self.queues
            .iter()
            .try_for_each(|queue| self.validate_queue(queue))?;
        self.validate_waits()?;
        self.receives
            .iter()
            .try_for_each(|receive| self.validate_receive(receive))
    }

    fn validate_queue(&self, queue: &QueueSpec) -> Result<(), ProgramError> {
        if queue.requests.len() > REQUESTS_MAX {
            return Err(ProgramError::Size);
        }
        for request in &queue.requests {
            match request {
                Template::Wait { on, queue, .. } => {
                    let (known, number) = match *on {
                        Count::Receive(number) => (self.receives.len(), number),
                        Count::Queue(number) => (self.queues.len(), number),
                    };
                    if number >= known || *queue >= self.queues.len() {
                        return Err(ProgramError::Unknown);
                    }
                }
                Template::Post(post) => {
                    let fits = match post.opcode {
                        Opcode::Nop => true,
                        Opcode::Wait => false,
                        Opcode::Write => true,
                        Opcode::WriteImmediate | Opcode::Send => queue.carrier == Carrier::Links,
                        Opcode::CompareSwap | Opcode::Flush | Opcode::Copy => {
                            queue.carrier == Carrier::Local
                        }
                    };
                    if !fits {
                        return Err(ProgramError::Carrier);
                    }
                }
            }
        }
        Ok(())
    }

    /// Does every request get its grant, and every WAIT what it counts? Otherwise a queue stands still, and a grant that finds no
    /// request looks for one for ever.
    fn validate_waits(&self) -> Result<(), ProgramError> {
        let posts = |queue: &QueueSpec| {
            let posts = |request: &&Template| matches!(request, Template::Post(_));
            queue.requests.iter().filter(posts).count() as u64
        };
        let posts: Vec<u64> = self.queues.iter().map(posts).collect();
        let mut granted = vec![0_u64; posts.len()];
        for request in self.queues.iter().flat_map(|queue| &queue.requests) {
            let Template::Wait {
                on,
                per_operation,
                queue,
                releases,
            } = *request
            else {
                continue;
            };
            let counted = match on {
                Count::Receive(_) => 1,
                Count::Queue(number) => posts[number],
            };
            if per_operation > counted {
                return Err(ProgramError::Wait);
            }
            granted[queue] += u64::from(releases);
        }
        match granted == posts {
            true => Ok(()),
            false => Err(ProgramError::Wait),
        }
    }

    fn validate_receive(&self, receive: &ReceiveSpec) -> Result<(), ProgramError> {
        let kept = receive.keep.as_ref().is_none_or(|keep| {
            let last = keep.stride.checked_mul(self.depth as usize - 1);
            let end =
                last.and_then(|last| last.checked_add(keep.offset)?.checked_add(receive.message));
            end.is_some_and(|end| end <= keep.memory.len())
        });
        if receive.kind_at >= receive.message || !kept {
            return Err(ProgramError::Message);
        }
        for step in receive.formats.iter().flat_map(|format| &format.moves) {
            let end = step.from.checked_add(step.len);
            if end.is_none_or(|end| end > receive.message) {
                return Err(ProgramError::Message);
            }
            let queue = self.queues.get(step.queue).ok_or(ProgramError::Unknown)?;
            match queue.requests.get(step.request) {
                Some(Template::Post(post)) if post.mask.covers(step.at, step.len) => {}
                Some(_) => return Err(ProgramError::Mask),
                None => return Err(ProgramError::Unknown),
            }
        }
        Ok(())
    }
}
