//! Pages in memory: the pool, what the engine knows of each frame, and the guard that users hold.

#[allow(unsafe_code)]
pub(crate) mod arena;
mod candidates;
mod digest;
mod frame;
mod gate;
mod page_ref;
mod pool;

pub(crate) use arena::Slot;
pub(crate) use candidates::Candidates;
pub(crate) use frame::{Frame, FrameUse, Waiter, WaiterKind};
pub(crate) use page_ref::Hold;
pub use page_ref::PageRef;
pub(crate) use pool::{LOAD_GRAINS, PROMPT_STAGES, Pool, SAVE_GRAINS, forming_stages};
