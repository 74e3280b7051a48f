//! Members as hosts, and clients: everything real but the processes.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

#[path = "../support/authority.rs"]
mod authority;
mod damaged_memory;
mod epochs;
mod hosted;
mod put_back;
mod strangers;
mod tls;
mod twins;
