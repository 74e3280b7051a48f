//! The responder's half of a recipe: what its program does with messages and immediate data, and after a restart.

use super::message::{Message, MessageError, Part, parse_immediate};
use super::recipe::{Item, Recipe, ResponderStep};

/// Persistent memory as the responder's program has it.
pub trait Memory {
    /// Number of bytes.
    fn len(&self) -> u64;

    /// No bytes at all?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores bytes. They are inside.
    fn copy(&mut self, at: u64, bytes: &[u8]);

    /// Writes back the cache lines of a range, and waits until the memory controller has them. The range is inside.
    fn flush(&mut self, at: u64, len: u64);
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// A message, in a receive buffer.
    Message(&'a [u8]),
    /// Immediate data.
    Immediate(u64),
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// SEND this.
    pub reply: Option<Vec<u8>>,
    /// The receive buffer may be used again, once its message is made unreadable. If not, what is in it is not needed
    /// any more either, unless the recipe replays.
    pub release: bool,
}

/// Why something that came cannot be served. The connection has to end: what follows would be out of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ServeError {
    /// Not a message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It names bytes that are not there.
    #[error("{len} bytes at {at:#x} are outside of the {size} bytes of memory")]
    OutOfBounds {
        /// First byte.
        at: u64,
        /// Number of bytes.
        len: u32,
        /// Bytes there are.
        size: u64,
    },
    /// The recipe wants a change here that nothing has named.
    #[error("the recipe goes on with {0}, and nothing has said where that is")]
    Unknown(Item),
    /// The recipe wants the bytes here, and only their place has come.
    #[error("the recipe copies {0}, and its bytes have not come")]
    NotCarried(Item),
    /// An acknowledgement, which only requesters get.
    #[error("an acknowledgement came to the responder")]
    Acknowledgement,
}

#[derive(Clone, Debug)]
struct Known {
    at: u64,
    len: u32,
    bytes: Option<Vec<u8>>,
}

/// The responder's program for one connection.
#[derive(Clone, Debug)]
pub struct Responder {
    steps: Vec<ResponderStep>,
    next: usize,
    changes: [Option<Known>; 2],
    sequence: u64,
}

impl Responder {
    /// The responder's part in a recipe; the requester uses no other.
    #[must_use]
    pub fn new(recipe: &Recipe) -> Self {
        Self {
            steps: recipe.responder.clone(),
            next: 0,
            changes: [None, None],
            sequence: 0,
        }
    }

    /// Carries out the steps up to the next that receives. A recipe without any ignores what comes.
    ///
    /// # Errors
    /// See [`ServeError`]. Nothing outside of the memory is touched.
    pub fn handle(
        &mut self,
        arrival: Arrival<'_>,
        memory: &mut impl Memory,
    ) -> Result<Served, ServeError> {
        let mut served = Served::default();
        if self.steps.is_empty() {
            return Ok(served);
        }
        self.take(arrival, memory.len())?;
        // The step that receives is done with.
        self.next += 1;
        while let Some(step) = self.steps.get(self.next) {
            match *step {
                ResponderStep::Receive => return Ok(served),
                ResponderStep::Copy(item) => {
                    let known = self.known(item)?;
                    let bytes = known.bytes.as_deref().ok_or(ServeError::NotCarried(item))?;
                    memory.copy(known.at, bytes);
                }
                ResponderStep::Flush(item) => {
                    let known = self.known(item)?;
                    memory.flush(known.at, u64::from(known.len));
                }
                ResponderStep::Release => served.release = true,
                ResponderStep::Ack => {
                    served.reply = Some(Message::acknowledgement(self.sequence).emit());
                }
            }
            self.next += 1;
        }
        self.next = 0;
        self.changes = [None, None];
        Ok(served)
    }

    fn known(&self, item: Item) -> Result<&Known, ServeError> {
        self.changes[item as usize]
            .as_ref()
            .ok_or(ServeError::Unknown(item))
    }

    fn take(&mut self, arrival: Arrival<'_>, size: u64) -> Result<(), ServeError> {
        match arrival {
            Arrival::Message(bytes) => {
                let message = Message::parse(bytes)?;
                if message.parts.is_empty() {
                    return Err(ServeError::Acknowledgement);
                }
                self.sequence = message.sequence;
                for part in &message.parts {
                    check(part, size)?;
                    self.changes[part.item as usize] = Some(Known {
                        at: part.at,
                        len: part.len,
                        bytes: part.bytes.map(<[u8]>::to_vec),
                    });
                }
            }
            Arrival::Immediate(data) => {
                let (item, at, len) = parse_immediate(data);
                let bytes = None;
                check(
                    &Part {
                        item,
                        at,
                        len,
                        bytes,
                    },
                    size,
                )?;
                self.sequence = data;
                self.changes[item as usize] = Some(Known {
                    at,
                    len,
                    bytes: None,
                });
            }
        }
        Ok(())
    }
}

fn check(part: &Part<'_>, size: u64) -> Result<(), ServeError> {
    let Part { at, len, .. } = *part;
    let end = at.checked_add(u64::from(len));
    if end.is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(ServeError::OutOfBounds { at, len, size })
}

/// Restart: applies every whole message that is in the receive buffers, the oldest first, and makes what it says
/// durable. Returns how many there were. After it, the buffers are to be made unreadable before they are used again.
///
/// Messages whose place is not in the memory are not of this recipe, and left alone, like those that are torn.
pub fn replay<'a>(buffers: impl IntoIterator<Item = &'a [u8]>, memory: &mut impl Memory) -> usize {
    let mut messages: Vec<Message<'a>> = buffers
        .into_iter()
        .filter_map(|bytes| Message::parse_front(bytes).ok())
        .map(|(message, _)| message)
        .filter(|message| {
            let fits = |part: &Part<'_>| check(part, memory.len()).is_ok() && part.bytes.is_some();
            !message.parts.is_empty() && message.parts.iter().all(fits)
        })
        .collect();
    messages.sort_by_key(|message| message.sequence);
    for part in messages.iter().flat_map(|message| &message.parts) {
        if let Some(bytes) = part.bytes {
            memory.copy(part.at, bytes);
            memory.flush(part.at, u64::from(part.len));
        }
    }
    messages.len()
}
