//! Which recipe: the cheapest that is right for a responder, and why the others are not.
//!
//! [`admit`] is a handful of rules about steps. They are not the proof but are proven: for every responder, peer and
//! recipe of the catalogue, [`Prover`](super::Prover) finds a way to lose data exactly where a rule refuses.

use super::catalogue;
use super::model::Stage;
use super::peer::{Completion, Peer};
use super::recipe::{Barrier, Item, Recipe, RequesterStep, ResponderStep};
use super::scenario::{
    ATOMIC_WRITE_BYTES, Config, Domain, Primary, ReceiveQueue, Scenario, Update,
};

/// Why a recipe must not be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The other kind of update.
    #[error("{recipe} is not for a {update} update")]
    OtherUpdate {
        /// The recipe.
        recipe: String,
        /// What was asked for.
        update: Update,
    },
    /// WRITE_IMM needs immediate data.
    #[error("{0} takes no immediate data; use WRITE and SEND")]
    NoImmediate(Peer),
    /// FLUSH needs the profile.
    #[error("{0} knows no FLUSH; use READ, a sync STag, or let the responder's processor flush")]
    NoFlush(Peer),
    /// ATOMIC WRITE needs the profile.
    #[error("{0} knows no ATOMIC WRITE; wait for the first FLUSH or READ, then WRITE")]
    NoAtomicWrite(Peer),
    /// The region has no sync STag.
    #[error("{0} offers no sync STag for this region")]
    NoSyncStag(Peer),
    /// ATOMIC WRITE carries no more, and no less.
    #[error(
        "b has {0} bytes, and ATOMIC WRITE carries {ATOMIC_WRITE_BYTES}; \
         wait for the first FLUSH, then WRITE"
    )]
    NotAtomic(u32),
    /// Wrong on iWARP.
    #[error(
        "with {0} a completion of WRITE or SEND only says that the local transport took the bytes, which may not have \
         left this host; end with FLUSH, READ or an acknowledgement"
    )]
    CompletionIsLocal(Peer),
    /// The completion says less than the domain keeps.
    #[error(
        "the completion says that the peer's NIC has the bytes, whose buffers {0} does not keep"
    )]
    NicIsLost(Domain),
    /// FLUSH or READ says less than the domain keeps.
    #[error("{barrier} brings data no further than {reach}, which {domain} does not keep")]
    FallsShort {
        /// The operation.
        barrier: Barrier,
        /// How far.
        reach: Stage,
        /// What is kept.
        domain: Domain,
    },
    /// Nothing to replay after a restart.
    #[error("the message has to be found after a restart, and the receive queue is in DRAM")]
    ReceiveQueueIsLost,
    /// A copy that nobody writes back.
    #[error("what the responder's processor copies is in its caches, which {0} does not keep")]
    CopyIsLost(Domain),
    /// Order of visibility is not order of persistence.
    #[error(
        "b may reach the memory controller before a: under {0} visible in order is not persistent in order"
    )]
    OrderIsLost(Domain),
    /// Not even visible in order.
    #[error("{0} may place b before a (RFC 5040 promises no order between WRITEs)")]
    PlacedInAnyOrder(Peer),
}

/// The cheapest recipe of the catalogue that carries the update by `primary` and is right for the responder.
///
/// # Errors
/// If there is none: why the simplest does not do.
pub fn plan(
    config: Config,
    primary: Primary,
    update: Update,
    peer: Peer,
) -> Result<Recipe, Refusal> {
    let mut candidates: Vec<Recipe> = catalogue::recipes()
        .filter(|recipe| recipe.is_for(update) && recipe.primary() == primary)
        .flat_map(|recipe| peer.forms(&recipe))
        .collect();
    candidates.sort_by_key(Recipe::cost);
    let mut why = None;
    for recipe in candidates {
        match admit(&recipe, config, update, peer) {
            Ok(()) => return Ok(recipe),
            Err(refusal) => why = Some(refusal),
        }
    }
    Err(why.expect("the catalogue has recipes of each kind for each operation"))
}

impl Scenario {
    /// [`plan`] for this scenario.
    ///
    /// # Errors
    /// As there.
    pub fn plan(self, peer: Peer) -> Result<Recipe, Refusal> {
        plan(self.config, self.primary, self.update, peer)
    }
}

/// Is the recipe right for this responder? The rules know the recipes of the catalogue, in every form; for others ask
/// [`Prover::examine`](super::Prover::examine).
///
/// # Errors
/// Why not.
pub fn admit(recipe: &Recipe, config: Config, update: Update, peer: Peer) -> Result<(), Refusal> {
    able(recipe, update, peer)?;
    ends_well(recipe, config, peer)?;
    keeps_order(recipe, config, peer)
}

/// Can it be carried out at all?
pub(super) fn able(recipe: &Recipe, update: Update, peer: Peer) -> Result<(), Refusal> {
    if !recipe.is_for(update) {
        let recipe = recipe.name();
        return Err(Refusal::OtherUpdate { recipe, update });
    }
    for step in &recipe.requester {
        match step {
            RequesterStep::WriteImm(..) if !peer.has_immediate() => {
                return Err(Refusal::NoImmediate(peer));
            }
            RequesterStep::Barrier(Barrier::Flush) if !peer.has_flush() => {
                return Err(Refusal::NoFlush(peer));
            }
            RequesterStep::AtomicWrite(_) if !peer.has_flush() => {
                return Err(Refusal::NoAtomicWrite(peer));
            }
            RequesterStep::AtomicWrite(_) => match update {
                Update::Compound { tail_bytes } if tail_bytes != ATOMIC_WRITE_BYTES => {
                    return Err(Refusal::NotAtomic(tail_bytes));
                }
                _ => {}
            },
            _ => {}
        }
    }
    if recipe.is_sync() && !peer.has_sync_stag() {
        return Err(Refusal::NoSyncStag(peer));
    }
    Ok(())
}

/// Is everything in the domain when the requester may go on?
fn ends_well(recipe: &Recipe, config: Config, peer: Peer) -> Result<(), Refusal> {
    let domain = peer.domain(config);
    if recipe.is_acknowledged() {
        let flushes = recipe
            .responder
            .iter()
            .any(|step| matches!(step, ResponderStep::Flush(_)));
        return if flushes || domain != Domain::Dmp {
            Ok(())
        } else {
            Err(Refusal::CopyIsLost(domain))
        };
    }
    if recipe.primary() == Primary::Send && config.receive_queue == ReceiveQueue::Dram {
        return Err(Refusal::ReceiveQueueIsLost);
    }
    let Some(barrier) = recipe.barrier() else {
        return match (peer.completion(), domain) {
            (Completion::Local, _) => Err(Refusal::CompletionIsLocal(peer)),
            (Completion::Responder, Domain::Wsp) => Ok(()),
            (Completion::Responder, _) => Err(Refusal::NicIsLost(domain)),
        };
    };
    let reach = peer.reach(barrier, recipe.primary(), config);
    if reach < peer.kept_from(config) && !recipe.is_sync() {
        return Err(Refusal::FallsShort {
            barrier,
            reach,
            domain,
        });
    }
    Ok(())
}

/// Is `a` in the domain before `b` can be?
fn keeps_order(recipe: &Recipe, config: Config, peer: Peer) -> Result<(), Refusal> {
    let at = |item: Item| {
        recipe.requester.iter().position(|step| {
            matches!(step, RequesterStep::Write(of, _) | RequesterStep::WriteImm(of, _) if *of == item)
        })
    };
    // Only two WRITEs one behind the other can be out of order: whatever else stands between them keeps them apart.
    if !matches!((at(Item::A), at(Item::B)), (Some(a), Some(b)) if b == a + 1) {
        return Ok(());
    }
    if !peer.places_in_order() {
        return Err(Refusal::PlacedInAnyOrder(peer));
    }
    let domain = peer.domain(config);
    if domain == Domain::Dmp && !recipe.is_sync() {
        return Err(Refusal::OrderIsLost(domain));
    }
    Ok(())
}
