//! Groups of members over real connections in memory: the primitives, their order, power cuts, hostile bytes, epochs.

#![allow(unreachable_pub)]

mod group {
    pub mod bounds;
    pub mod hostile;
    pub mod model;
    pub mod planted;
    pub mod power;
    pub mod primitives;
    pub mod world;
}
