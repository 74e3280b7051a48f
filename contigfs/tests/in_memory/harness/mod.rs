//! Workloads with judges, for the tests and for the planted bugs that judge them.
#![allow(unreachable_pub, missing_docs)]

pub mod crash;
pub mod model;
pub mod quota;
pub mod sharing;
pub mod tapped;
