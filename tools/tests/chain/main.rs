//! Replication groups: members, clients and benches as processes of one machine.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

#[path = "../../../offload-chain/tests/support/authority.rs"]
mod authority;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../offload-chain/tests/support/etcd.rs"]
mod etcd;
mod hyperloop;
mod members;
mod metrics;
mod net;
mod power;
mod remotelog;
mod replicas;
mod tls;
