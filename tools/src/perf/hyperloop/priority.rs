//! Real-time priority for what stands for hardware.

use std::io;

/// Above that of the client, which stands for another machine.
const ENDPOINT: libc::c_int = 20;
const CLIENT: libc::c_int = 10;

/// What a thread stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A member's NIC.
    Endpoint,
    /// A client on a machine of its own.
    Client,
    /// A program among others.
    Ordinary,
}

impl Priority {
    /// Gives it to the calling thread.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn take(self) -> io::Result<()> {
        let (policy, priority) = match self {
            // What it starts is ordinary again: tenants at real-time priority would stop everybody.
            Self::Endpoint => (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, ENDPOINT),
            Self::Client => (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, CLIENT),
            Self::Ordinary => (libc::SCHED_OTHER, 0),
        };
        let parameters = libc::sched_param {
            sched_priority: priority,
        };
        // SAFETY: the parameters live over the call, which looks at nothing else. 0 is the calling thread.
        match unsafe { libc::sched_setscheduler(0, policy, &parameters) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
