//! Replication chains, and what has to happen on another machine until data there are durable.
//!
//! [`persist`] knows, for every kind of responder and every kind of peer, the cheapest sequence of operations after which a
//! requester may say "durable"; carries it out over `softrdma`; and proves it on an emulated responder by cutting the power
//! between any two steps. [`group`] has members that hold the same bytes, and the primitives that change them all: gWRITE,
//! gCAS, gMEMCPY, gFLUSH, carried out by the members' engines while their applications may be stopped.
//!
//! And what stands on the primitives ([`group::Primitives`]), without I/O and with time passed in: a replicated [`log`] with
//! recovery, [`lock`]s with fencing, [`read`]s at any member, and [`membership`]: epochs, fail-over, repair and joining by what is
//! in a store ([`config`]). All of it runs in a simulation of a whole cluster (`tests/simulation.rs`), under every fault of the model.
//!
//! # Invariants
//! - P1. When [`persist::run`] returns, the changes survive a loss of power of the responder, if the recipe is one that
//!   [`persist::plan`] gave for it (I1).
//! - P2. The second change of a compound update is never persistent without the first, at no moment, told or not.
//! - P3. A [`persist::Proof`] exists only where the search was run; what the rules admit and what survives the search are
//!   the same, for every recipe, responder and peer.
//! - P4. No bytes of a requester lead to a panic or to memory outside of the region it was given (I10).
//!
//! # Failure
//! When [`persist::run`] fails, it is unknown whether the update became durable; the same update can be run again, since
//! it writes the same bytes to the same place. A responder that is told what makes no sense ends the connection.
//!
//! # Glossary
//! **Persistence domain**: what survives a loss of power: **DMP** memory modules and their controller, **MHP** the caches
//! too, **WSP** buffers of the NIC too. **DDIO**: inbound data are steered to the cache. **Singleton**: one change, which
//! a reader can tell to be whole. **Compound**: a change, and one that must not persist before it (record and tail
//! pointer). **Posted**: WRITE, SEND, immediate data: no answer, and may overtake what has one. **Non-posted**: READ,
//! FLUSH, ATOMIC WRITE: start after everything before them. **Cell**: one of 72 scenarios, which is twelve responders
//! times three operations times two kinds of update.
//!
//! **Member**: memory and engine of one machine of a group; **head** the first, **tail** the last. **Block**: the metadata
//! of a primitive for one member. **Lane**: staging memory of one client. **Epoch**: one configuration of a group.
//!
//! # Modules
//! [`group`]: `primitives` what can be asked, `client` and `member` the two sides, `shape` what they agree on,
//! [`group::block`] and [`group::program`] what goes over the wire and what engines run, [`group::network`] and
//! [`group::tcp`] what moves the bytes, [`group::file`] memory in a file, `lease` until when READs are answered. The argument is in `docs/group.md`.
//!
//! [`persist`]: `scenario` the axes, `recipe` and `catalogue` what can be done, `peer` and `plan` what is right; `model`
//! the emulated responder, `search` all its states, `prove` a cell; `run` and `endpoint` the requester, `serve` and
//! `program` the responder, [`persist::message`] what they say to each other, [`persist::pm`] memory to try it on. The
//! argument is in `docs/persistence.md`.
//!
//! [`log`]: `layout`, `header` and `record` the bytes, `append` the client's end, `recover` the member's; with [`lock`] and [`read`]
//! argued in `docs/log.md`. [`config`]: `ledger` the state, `file` and `etcd` where it is kept, `open` which of them. [`membership`]:
//! `configuration` what is in the store, `member`, `controller` and `session` who acts on it, `copy` how memory is
//! made alike, `slow` who holds others up; argued in `docs/membership.md`. [`memory`]: a member's memory from inside.
//!
//! [`host`]: a member as a process, over TCP and a store: `door` accepts, `engine` runs the group, `agent` does what membership says,
//! `peers` talks to other members. [`client`]: a program's end of such a group, over changes of its epochs. [`tls`]: what keeps others from
//! hearing or changing what all of these say.

#![forbid(unsafe_code)]

pub mod client;
mod clock;
pub mod config;
mod epoch;
pub mod group;
pub mod host;
pub mod lock;
pub mod log;
pub mod membership;
pub mod memory;
pub mod naive;
pub mod persist;
#[doc(hidden)]
pub mod planted;
mod proof;
pub mod read;
pub mod tls;

pub use epoch::Epoch;
