//! Groups of members over real connections in memory: the primitives, their order, power cuts, hostile bytes, epochs, read leases.

#![allow(unreachable_pub)]

mod group {
    pub mod bounds;
    pub mod hostile;
    pub mod lease;
    pub mod model;
    pub mod planted;
    pub mod power;
    pub mod primitives;
    pub mod world;
}
