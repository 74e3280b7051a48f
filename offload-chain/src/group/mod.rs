//! Groups of members that hold the same bytes, changed by primitives that no application of a member takes part in.

pub mod block;
mod client;
mod member;
pub mod network;
mod node;
mod primitives;
pub mod program;
mod shape;
mod staging;

pub use client::{Client, ClientError};
pub use member::{BrokenGroup, GroupMemory, Member, MemberConfig, MemberError, MemberEvent};
pub use node::{Answer, Node, Store};
pub use primitives::{
    Durability, Flight, MEMBERS_MAX, MemberMap, Outcome, Primitive, PrimitiveError, Primitives,
};
pub use shape::{Denied, GroupShape, ShapeError, Topology};
