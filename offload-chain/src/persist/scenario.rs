//! The three axes of a responder, and the 72 scenarios they make with what is asked of it.

use std::fmt;

/// Persistence domain: what of the responder survives a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// Memory modules and the queues of the memory controller (ADR).
    Dmp,
    /// The whole memory hierarchy, caches included: what is visible is persistent (eADR).
    Mhp,
    /// The whole system, buffers of the RDMA NIC included.
    Wsp,
}

/// Where inbound data are steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ddio {
    /// To the processor's cache.
    On,
    /// To the memory controller.
    Off,
}

/// Memory of the buffers that SENDs land in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReceiveQueue {
    /// Lost with the power, whatever the domain.
    Dram,
    /// Persistent memory.
    Pm,
}

/// A responder: one of twelve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Config {
    /// What survives.
    pub domain: Domain,
    /// Where inbound data go.
    pub ddio: Ddio,
    /// Where messages go.
    pub receive_queue: ReceiveQueue,
}

/// The operation that carries the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Primary {
    /// RDMA WRITE.
    Write,
    /// WRITE with immediate data.
    WriteImm,
    /// SEND.
    Send,
}

/// What becomes persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Update {
    /// One change, *a*. Whoever reads it can tell whether it is whole.
    Singleton,
    /// Two changes: *b* is never persistent without *a*.
    Compound {
        /// Bytes of *b*. ATOMIC WRITE carries 8, no more and no less.
        tail_bytes: u32,
    },
}

/// What an ATOMIC WRITE carries.
pub const ATOMIC_WRITE_BYTES: u32 = 8;

impl Update {
    /// A record and then the pointer to the tail of the log.
    pub const TAIL_POINTER: Self = Self::Compound {
        tail_bytes: ATOMIC_WRITE_BYTES,
    };

    /// Two changes?
    #[must_use]
    pub const fn is_compound(self) -> bool {
        matches!(self, Self::Compound { .. })
    }
}

/// One cell of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scenario {
    /// One or two changes.
    pub update: Update,
    /// The responder.
    pub config: Config,
    /// The operation.
    pub primary: Primary,
}

impl Config {
    /// All twelve, in the order of the tables.
    pub fn all() -> impl Iterator<Item = Self> {
        let domains = [Domain::Dmp, Domain::Mhp, Domain::Wsp];
        domains.into_iter().flat_map(|domain| {
            [Ddio::On, Ddio::Off].into_iter().flat_map(move |ddio| {
                [ReceiveQueue::Dram, ReceiveQueue::Pm].map(|receive_queue| Self {
                    domain,
                    ddio,
                    receive_queue,
                })
            })
        })
    }
}

impl Primary {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Write, Self::WriteImm, Self::Send];
}

impl Scenario {
    /// All 72: first the singletons, then the compounds with a tail pointer.
    pub fn all() -> impl Iterator<Item = Self> {
        [Update::Singleton, Update::TAIL_POINTER]
            .into_iter()
            .flat_map(|update| {
                Config::all().flat_map(move |config| {
                    Primary::ALL.map(|primary| Self {
                        update,
                        config,
                        primary,
                    })
                })
            })
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dmp => "DMP",
            Self::Mhp => "MHP",
            Self::Wsp => "WSP",
        })
    }
}

impl fmt::Display for Ddio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl fmt::Display for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dram => "DRAM",
            Self::Pm => "PM",
        })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, DDIO {}, receive queue in {}",
            self.domain, self.ddio, self.receive_queue
        )
    }
}

impl fmt::Display for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Send => "SEND",
        })
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Singleton => "singleton",
            Self::Compound { .. } => "compound",
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, {}", self.update, self.primary, self.config)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_72_different_ones() {
        assert_eq!(Scenario::all().collect::<HashSet<_>>().len(), 72);
        assert_eq!(Scenario::all().count(), 72);
    }
}
