//! Groups of members that hold the same bytes, changed by primitives that no application of a member takes part in.

mod primitives;

pub use primitives::{
    Durability, Flight, MEMBERS_MAX, MemberMap, Outcome, Primitive, PrimitiveError, Primitives,
};
