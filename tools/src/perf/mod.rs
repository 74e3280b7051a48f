//! Load generators and the programs they are compared with.

pub mod cpu;
pub mod figures;
pub mod raw;
pub mod rdma;
pub mod shape;
pub mod socket;
