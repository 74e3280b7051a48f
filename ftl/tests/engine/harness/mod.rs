//! Workloads, oracle and power cuts for the crash, planted-bug and fault tests.

pub(crate) mod crash;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod oracle;
pub(crate) mod rig;
pub(crate) mod shard;
pub(crate) mod world;
