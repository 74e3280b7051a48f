//! Offload: work queues that the endpoint runs on its own, long after they were posted, on addresses that messages bring.
//!
//! An [`Engine`] owns the links of one member, a local queue pair over the member's regions, and rings of pre-posted
//! requests. A message that arrives is scattered into the descriptors of the next operation; a WAIT then grants them; when
//! the local ones have completed, another WAIT grants those that forward. No program takes part. Like a
//! [`Connection`](crate::Connection) it does no I/O and reads no clock; a driver moves the bytes of its links.
//!
//! The layout of descriptors and the argument why peers who rewrite them stay confined are in `docs/offload.md`.
//!
//! # Invariants
//! - O1. A descriptor runs only after a WAIT granted it, with the owner of this lap in it.
//! - O2. It is copied once; of the copy, only what the private mask names counts, and only if all its ranges pass the access
//!   check (I10). STags, queues and WAITs are in no mask.
//! - O3. A message is scattered whole or not at all; one that fails its checks costs its sender the link and nothing else.
//! - O4. Requests of a queue take effect in order, and completions are counted in order.
//! - O5. A message is taken only into a slot that is free; otherwise it waits, and its stream behind it (I16, I18).
//! - O6. After [`Engine::stop`] has returned nothing is touched any more (I11, I12).
//!
//! # Driving it
//!
//! As the crate's description says for a connection, for each of [`Engine::links`]: bytes in by [`Engine::handle_bytes`]
//! while [`Engine::wants_input`], bytes out by [`Engine::poll_transmit`], which is to be asked on *every* link after
//! anything happened, since what arrives on one leaves on another.

mod command;
mod descriptor;
mod engine;
#[cfg(test)]
mod fuzz;
mod link;
mod local;
mod planted;
mod program;
mod ring;
mod template;

pub use command::{Destination, FLUSH_REGION, Refusal};
pub use descriptor::{DESCRIPTOR_BYTES, Opcode, RawDescriptor, RawWait, field};
pub use engine::{Broken, Engine, EngineConfig, EngineEvent, LINKS_MAX, LinkError};
pub use link::{Alike, Check, LinkId, LinkSpec, RECEIVES};
pub use planted::Flaw;
pub use program::{
    Carrier, Count, DEPTH_MAX, Format, Keep, Move, Program, ProgramError, QUEUES_MAX, QueueSpec,
    REQUESTS_MAX, ReceiveSpec,
};
pub use template::{Mask, Post, Template};
