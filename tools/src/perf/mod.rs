//! Load generators and the programs they are compared with.

mod clients;
pub mod cpu;
pub mod disk;
pub mod figures;
pub mod files;
pub mod flash;
pub mod hyperloop;
pub mod lat;
pub mod nbd;
pub mod null;
pub mod passing;
pub mod raw;
pub mod rdma;
pub mod registration;
pub mod remotelog;
pub mod shape;
pub mod socket;
