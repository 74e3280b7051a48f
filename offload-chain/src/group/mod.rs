//! Groups of members that hold the same bytes, changed by primitives that no application of a member takes part in.
//!
//! A [`Client`] posts gWRITE, gCAS, gMEMCPY, gFLUSH and READ ([`Primitives`]); a [`Member`] has the memory and an engine of
//! `softrdma` that carries them out and hands them on. Both are [`Node`]s without I/O: [`network`] joins them in memory and
//! virtual time, [`tcp`] serves them over sockets, each member in a thread or process of its own. The argument is in
//! `docs/group.md`.
//!
//! ```
//! use offload_chain::group::network::Network;
//! use offload_chain::group::*;
//! use softrdma::{Buffer, Config, NoPages, ProtectionDomain, RegionTable, Time};
//!
//! let shape = GroupShape { persistent: false, ..GroupShape::new([7; 16], 1, 3, 4096) };
//! let link = Config { private_profile: true, ..Config::default() };
//! let memory: Vec<_> = (0..3).map(|_| Buffer::zeroed(4096)).collect();
//! let mut network = Network::new(1);
//! let mut members = Vec::new();
//! for (member, memory) in memory.iter().enumerate() {
//!     let config = MemberConfig {
//!         shape,
//!         member,
//!         memory: GroupMemory::Memory(memory.clone()),
//!         domains: [ProtectionDomain(1), ProtectionDomain(2)],
//!         link: link.clone(),
//!         reads: None,
//!         planted: None,
//!     };
//!     let table = RegionTable::new([member as u8; 32]);
//!     members.push(network.add_member(Member::new(config, NoPages, &table, Time(0))?));
//! }
//! network.connect(&members)?;
//! let id = network.add_client(Client::new(shape, 0, &link, [9; 32], Time(0))?, &members)?;
//! network.run();
//!
//! let client = network.client(id).expect("it is there");
//! let bytes = b"on all three".to_vec();
//! let flight = client.post(Primitive::Write { offset: 100, bytes, durability: Durability::Visible })?;
//! network.run();
//! let client = network.client(id).expect("it is there");
//! assert_eq!(client.poll(), Some((flight, Ok(Outcome::Done))));
//! assert!(memory.iter().all(|memory| memory.to_vec(100, 12) == b"on all three"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! - G1. All members carry out the same primitives in one order, the order in which the head takes messages; those of a
//!   client in the order of their posting (I13, I15).
//! - G2. An outcome means that every member has carried it out; a durable one, that each had it durable before it handed on.
//! - G3. Nothing of another epoch than a member's own touches its memory (I12).
//! - G4. Each accepted primitive has one outcome (I18).
//! - G5. A member with a [`ReadLease`] lets no byte of a READ go that it took when the lease was over (I13).
//!
//! # Failure
//! A member that loses the link to another stops, and so do the others in turn; clients are told `Broken` for all that is
//! under way. Repair and the next epoch are the business of membership. A client that breaks rules loses its links.

pub mod block;
mod client;
pub mod file;
mod lease;
mod member;
mod member_file;
pub mod network;
mod node;
mod primitives;
pub mod program;
mod shape;
mod staging;
pub mod tcp;
mod watcher;

pub use client::{Client, ClientError};
pub use lease::ReadLease;
pub use member::{BrokenGroup, GroupMemory, Member, MemberConfig, MemberError, MemberEvent};
pub use member_file::{FileMemory, MemberFile};
pub use node::{Answer, Node, Store};
pub use primitives::{
    Durability, Flight, MEMBERS_MAX, MemberMap, Outcome, Primitive, PrimitiveError, Primitives,
};
pub(crate) use shape::is_of_group;
pub use shape::{Denied, GroupShape, ShapeError, Topology};
pub use watcher::Watcher;
