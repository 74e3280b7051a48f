//! Which processors belong to what stands for hardware, and which to programs.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::priority::Priority;

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

/// Where threads run. Tenants may run everywhere.
#[derive(Clone, Debug)]
pub enum Placement {
    /// One processor is that of the network: endpoints and client are bound to it. Applications have the others.
    ///
    /// A NIC does not take the processor that its member's application runs on, and neither does the machine of the client.
    Apart(Box<Processors>),
    /// Wherever the scheduler puts them.
    Free,
}

/// Who has which.
#[derive(Clone, Debug)]
pub struct Processors {
    network: CpuSet,
    /// Of applications.
    programs: CpuSet,
    /// Of tenants.
    all: CpuSet,
}

impl Placement {
    /// The last of the processors that this process may use is the network's; with only one nothing can be apart.
    ///
    /// # Errors
    /// If the system does not say which there are.
    pub fn apart() -> io::Result<Self> {
        let all = sched_getaffinity(SELF)?;
        let mut processors =
            (0..CpuSet::count()).filter(|&processor| all.is_set(processor).unwrap_or(false));
        let (Some(last), true) = (processors.next_back(), processors.next().is_some()) else {
            return Ok(Self::Free);
        };
        let mut network = CpuSet::new();
        network.set(last)?;
        let mut programs = all;
        programs.unset(last)?;
        Ok(Self::Apart(Box::new(Processors {
            network,
            programs,
            all,
        })))
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Apart(_) => "apart",
            Self::Free => "free",
        }
    }

    /// Binds the calling thread to where what it stands for belongs.
    ///
    /// # Errors
    /// What the system says.
    pub fn take(&self, priority: Priority) -> io::Result<()> {
        let Self::Apart(processors) = self else {
            return Ok(());
        };
        let set = match priority {
            Priority::Endpoint | Priority::Client => processors.network,
            Priority::Ordinary => processors.programs,
        };
        Ok(sched_setaffinity(SELF, &set)?)
    }

    /// Does something while the calling thread is bound to nothing, as is what it starts meanwhile.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn unbound<T>(&self, act: impl FnOnce() -> T) -> io::Result<T> {
        let Self::Apart(processors) = self else {
            return Ok(act());
        };
        let before = sched_getaffinity(SELF)?;
        sched_setaffinity(SELF, &processors.all)?;
        let result = act();
        sched_setaffinity(SELF, &before)?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Network and programs share no processor, and leave none out.
    #[test]
    fn a_processor_of_its_own() {
        let before = sched_getaffinity(SELF).unwrap();
        let placement = Placement::apart().unwrap();
        let Placement::Apart(processors) = &placement else {
            let count = (0..CpuSet::count()).filter(|&n| before.is_set(n).unwrap());
            return assert_eq!(count.count(), 1, "there is more than one processor");
        };
        let (network, programs) = (&processors.network, &processors.programs);
        for processor in 0..CpuSet::count() {
            let sets = [network, programs].map(|set: &CpuSet| set.is_set(processor).unwrap());
            let known = before.is_set(processor).unwrap();
            assert_eq!(sets[0] ^ sets[1], known, "processor {processor}");
            assert!(!(sets[0] && sets[1]), "processor {processor}");
        }

        for (priority, set) in [
            (Priority::Client, network),
            (Priority::Endpoint, network),
            (Priority::Ordinary, programs),
        ] {
            placement.take(priority).unwrap();
            assert_eq!(sched_getaffinity(SELF).unwrap(), *set, "{priority:?}");
            let inside = placement.unbound(|| sched_getaffinity(SELF).unwrap());
            assert_eq!(inside.unwrap(), before);
            assert_eq!(sched_getaffinity(SELF).unwrap(), *set, "{priority:?}");
        }
    }
}
