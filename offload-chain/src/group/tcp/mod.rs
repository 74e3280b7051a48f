//! Members and clients over TCP: the loop that stands for the NIC.
//!
//! A [`MemberServer`] owns a member with its engine and runs in a thread or process of its own; nothing of the member's
//! application is in it, so that may be stopped. A [`TcpClient`] owns a client and moves bytes while it waits. Sockets are
//! non-blocking; the loop sleeps in the kernel unless told to [spin](MemberServer::spin) for a while after each message.
//!
//! Between a socket and its link there may be TLS ([`Place::tls`]). The handshakes of those that call run in the loop, without holding it
//! up: what is connected by them has nothing to do before. Those of who is called are over when a connection comes here ([`Connected`]).

mod client;
mod connected;
mod event_loop;
mod server;

pub use client::{Joins, OverTcp, StartError, TcpClient};
pub use connected::{Connected, Place};
pub(crate) use connected::{Refusal, Tls};
pub(crate) use event_loop::{LISTENER, Loop, SLEEP, WAKER};
pub use server::MemberServer;
