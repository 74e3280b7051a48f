//! What group primitives are measured against: a chain in which the *application* of every member takes part.
//!
//! It is the paper's Naive-RDMA: the endpoint of a member receives a message and says so; the member's application wakes
//! ([`Wait::Event`]) or has been looking all the time ([`Wait::Polling`]), carries the primitive out on its memory and posts the
//! message for the next member; the last one answers the client. Members, clients and primitives are those of
//! [`group`](crate::group), over the same endpoint and the same loop, so what differs is who acts.
//!
//! It is no product: no epochs, no confinement, nothing durable, and peers are trusted with what they hold.

mod application;
mod client;
mod exchange;
mod member;
mod message;
mod tcp;

pub use application::{Application, Wait};
pub use client::NaiveClient;
pub use member::NaiveMember;
pub use tcp::{NaiveServer, NaiveTcpClient};
