//! Remote persistence: what a requester has to do until it may say "durable", with proof.
//!
//! ```
//! use offload_chain::persist::*;
//!
//! // A log on a host without battery, caches in the way of the network; a peer with RDMA hardware.
//! let config = Config { domain: Domain::Dmp, ddio: Ddio::On, receive_queue: ReceiveQueue::Dram };
//! let recipe = plan(config, Primary::Write, Update::Singleton, Peer::Rdma)?;
//! assert_eq!(
//!     recipe.to_string(),
//!     "S1: Rq WRITE a, SEND(&a), receive ack; Rsp receive, flush a, SEND ack"
//! );
//!
//! // Waiting for the WRITE would do on a host with batteries, and is wrong on iWARP even there.
//! let hasty = recipe_named(RecipeId::S8);
//! let config = Config { domain: Domain::Wsp, ..config };
//! assert_eq!(admit(&hasty, config, Update::Singleton, Peer::Rdma), Ok(()));
//! let siw = admit(&hasty, config, Update::Singleton, Peer::Siw);
//! assert_eq!(siw, Err(Refusal::CompletionIsLocal(Peer::Siw)));
//!
//! // Which can be seen.
//! let mut prover = Prover::new();
//! let Verdict::Fails(how) = prover.examine(&hasty, config, Update::Singleton, Peer::Siw) else {
//!     panic!("it loses data")
//! };
//! assert_eq!(how.steps, ["requester: WRITE a", "requester: wait"]);
//! # Ok::<(), Refusal>(())
//! ```

mod catalogue;
mod endpoint;
pub mod message;
mod model;
mod peer;
mod plan;
pub mod pm;
mod program;
mod prove;
mod recipe;
mod run;
mod scenario;
mod search;
mod serve;
#[cfg(test)]
mod tests;

pub use catalogue::{printed, recipe as recipe_named, recipes};
pub use endpoint::{Channel, Endpoint, EndpointError, offer};
pub use model::Stage;
pub use peer::{Offer, Peer};
pub use plan::{Refusal, admit, plan};
pub use pm::EmulatedPm;
pub use program::{Program, ProgramError, ReceiveBuffers};
pub use prove::{Proof, Prover, Unproven};
pub use recipe::{
    Barrier, Cost, Item, Payload, Recipe, RecipeId, Recovery, RequesterStep, ResponderStep, Tag,
};
pub use run::{
    Change, Changes, Missing, Posted, Request, RunError, Transport, TransportError, run,
};
pub use scenario::{
    ATOMIC_WRITE_BYTES, Config, Ddio, Domain, Primary, ReceiveQueue, Scenario, Update,
};
pub use search::{Counterexample, Evidence, Harm, Verdict};
pub use serve::{Arrival, Memory, Responder, ServeError, Served, replay};
