//! The responder's side of the connection: which operations it knows, and what its answers prove.
//!
//! | | completion of WRITE, SEND | placement | inbound data go | FLUSH |
//! |---|---|---|---|---|
//! | RDMA hardware | the peer's NIC has it | in order | over the bus, where DDIO says | pushes them there |
//! | iWARP NIC | nothing | in any order, unless known | over the bus, where DDIO says | none: READ of a byte |
//! | Linux `siw` | nothing | in order | copied by the CPU, so to the cache | none: READ |
//! | our endpoint | nothing | in order | copied by the CPU, so to the cache | writes back, if there is one |

use std::fmt;

use super::model::Stage;
use super::recipe::{Barrier, Recipe, RequesterStep, Tag};
use super::scenario::{Config, Ddio, Domain, Primary};

bitflags::bitflags! {
    /// What one of our own endpoints offers on a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct Offer: u8 {
        /// WRITE with immediate data.
        const IMMEDIATE = 1;
        /// The private profile: FLUSH and ATOMIC WRITE.
        const PROFILE = 2;
        /// Sync STags for the region.
        const SYNC_STAG = 4;
        /// FLUSH covers receive buffers in PM as well as what was written to regions.
        const FLUSH_RECEIVES = 8;
    }
}

/// Who responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// InfiniBand or RoCE hardware with FLUSH and ATOMIC WRITE.
    Rdma,
    /// An iWARP NIC.
    IwarpNic {
        /// Known to place in stream order, which RFC 5040 does not ask for.
        in_order: bool,
    },
    /// The Linux software endpoint.
    Siw,
    /// Our own endpoint.
    Endpoint(Offer),
}

/// What the completion of a WRITE or SEND says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Completion {
    /// The local transport took it over.
    Local,
    /// The responder's NIC has it.
    Responder,
}

/// How data come from the responder's NIC into its memory hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Inbound {
    /// By the NIC over the bus.
    Bus,
    /// By the CPU, from buffers of its kernel that no domain keeps.
    Copied,
}

impl Peer {
    pub(super) const fn completion(self) -> Completion {
        match self {
            Self::Rdma => Completion::Responder,
            _ => Completion::Local,
        }
    }

    pub(super) const fn places_in_order(self) -> bool {
        !matches!(self, Self::IwarpNic { in_order: false })
    }

    pub(super) const fn inbound(self) -> Inbound {
        match self {
            Self::Rdma | Self::IwarpNic { .. } => Inbound::Bus,
            Self::Siw | Self::Endpoint(_) => Inbound::Copied,
        }
    }

    /// What may stand in the place of FLUSH.
    pub(super) fn barriers(self) -> &'static [Barrier] {
        match self {
            Self::Rdma => &[Barrier::Flush],
            Self::Endpoint(offer) if offer.contains(Offer::PROFILE) => &[Barrier::Flush],
            _ => &[Barrier::ReadNothing, Barrier::ReadByte],
        }
    }

    /// Does it take immediate data?
    #[must_use]
    pub fn has_immediate(self) -> bool {
        match self {
            Self::Rdma | Self::IwarpNic { .. } => true,
            Self::Siw => false,
            Self::Endpoint(offer) => offer.contains(Offer::IMMEDIATE),
        }
    }

    /// Does it know FLUSH and ATOMIC WRITE?
    #[must_use]
    pub fn has_flush(self) -> bool {
        self.barriers() == [Barrier::Flush]
    }

    /// Are there sync STags?
    #[must_use]
    pub fn has_sync_stag(self) -> bool {
        matches!(self, Self::Endpoint(offer) if offer.contains(Offer::SYNC_STAG))
    }

    /// What survives behind this peer. Buffers of a TCP stack are in no domain.
    pub(super) fn domain(self, config: Config) -> Domain {
        match (self.inbound(), config.domain) {
            (Inbound::Copied, Domain::Wsp) => Domain::Mhp,
            (_, domain) => domain,
        }
    }

    /// The first stage at which data survive.
    pub(super) fn kept_from(self, config: Config) -> Stage {
        match self.domain(config) {
            Domain::Dmp => Stage::MemoryController,
            Domain::Mhp => Stage::Coherent,
            Domain::Wsp => Stage::Nic,
        }
    }

    /// How far everything that came by `primary` before it is when the barrier is answered.
    pub(super) fn reach(self, barrier: Barrier, primary: Primary, config: Config) -> Stage {
        let covers = match self {
            Self::Endpoint(offer) if primary == Primary::Send => {
                offer.contains(Offer::FLUSH_RECEIVES)
            }
            _ => true,
        };
        match (self.inbound(), barrier) {
            (Inbound::Bus, Barrier::ReadNothing) => Stage::Bus,
            (Inbound::Bus, _) if config.ddio == Ddio::Off => Stage::MemoryController,
            (Inbound::Bus, _) => Stage::Coherent,
            // The engine writes back the lines itself, if the domain does not keep them.
            (Inbound::Copied, Barrier::Flush) if covers => self.kept_from(config),
            (Inbound::Copied, _) => Stage::Coherent,
        }
    }

    /// The forms that a recipe can take with this peer.
    pub(super) fn forms(self, recipe: &Recipe) -> Vec<Recipe> {
        if recipe.barrier().is_none() {
            return vec![recipe.clone()];
        }
        let writes = recipe
            .requester
            .iter()
            .any(|step| matches!(step, RequesterStep::Write(..) | RequesterStep::WriteImm(..)));
        let mut forms = Vec::new();
        for &barrier in self.barriers() {
            forms.push(recipe.clone().in_form(barrier, Tag::Plain));
            if self.has_sync_stag() && writes && barrier != Barrier::Flush {
                forms.push(recipe.clone().in_form(barrier, Tag::Sync));
            }
        }
        forms
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma => f.write_str("RDMA hardware"),
            Self::IwarpNic { in_order: true } => f.write_str("iWARP NIC that places in order"),
            Self::IwarpNic { in_order: false } => f.write_str("iWARP NIC"),
            Self::Siw => f.write_str("siw"),
            Self::Endpoint(offer) => {
                f.write_str("flashnet")?;
                let names = [
                    (Offer::IMMEDIATE, "immediate data"),
                    (Offer::PROFILE, "FLUSH"),
                    (Offer::SYNC_STAG, "sync STags"),
                    (Offer::FLUSH_RECEIVES, "FLUSH of receive buffers"),
                ];
                let mut word = " with ";
                for (_, name) in names.iter().filter(|(flag, _)| offer.contains(*flag)) {
                    write!(f, "{word}{name}")?;
                    word = ", ";
                }
                Ok(())
            }
        }
    }
}
