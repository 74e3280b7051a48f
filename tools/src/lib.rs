//! The programs of flashnet: the storage target, its clients and benches, in one binary.
//!
//! | module | what |
//! |---|---|
//! | [`reactor`] | one io_uring per core for sockets and device: the only place that knows it |
//! | [`target`] | assembles translation layer, file system and endpoint into a storage target |
//! | [`control`] | the small protocol by which clients turn a path into (STag, offset, length) |
//! | [`credentials`] | who is let in, and registrations that outlive the process |
//! | [`client`] | sessions with a target |
//! | [`devices`] | the devices of a volume by their paths |
//! | [`perf`] | load generators and what they are compared with |
//! | [`commands`] | the commands of the program, over [`cli`] |
//! | [`siw`] | a guest whose kernel is an iWARP peer |
//! | [`called`] | the names of links to the program |
//! | [`unsaid`] | what a command says and nobody takes |

pub mod called;
pub mod cli;
pub mod commands;
pub mod credentials;
pub mod descriptors;
pub mod devices;
mod exporter;
pub mod measured;
pub mod perf;
pub mod replay;
pub mod siw;
pub mod target;
pub mod unsaid;

pub use flashnet_client as client;
pub use flashnet_client::control;
pub use flashnet_reactor as reactor;
