//! Who is connected to the exporter, and who goes when there are too many.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// A connection, as those see it who decide how long it stays.
#[derive(Debug)]
pub(super) struct Guest {
    /// When it last asked something, or came.
    heard: Cell<Instant>,
    /// When it goes unless it asks something.
    until: Cell<Instant>,
}

impl Guest {
    /// One that has come just now.
    pub(super) fn new(until: Instant) -> Self {
        Self {
            heard: Cell::new(Instant::now()),
            until: Cell::new(until),
        }
    }

    /// It has asked something, and may stay until then.
    pub(super) fn stays(&self, until: Instant) {
        self.heard.set(Instant::now());
        self.until.set(until);
    }

    /// When it goes.
    pub(super) fn until(&self) -> Instant {
        self.until.get()
    }
}

/// All of them.
pub(super) struct Guests {
    max: usize,
    grace: Duration,
    present: Vec<(Rc<Guest>, AbortHandle)>,
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.present.len();
        f.debug_struct("Guests").field("count", &count).finish()
    }
}

impl Guests {
    /// None so far, and never more than `max`; each stays for `grace` at least.
    pub(super) fn new(max: usize, grace: Duration) -> Self {
        Self {
            max,
            grace,
            present: Vec::with_capacity(max),
        }
    }

    /// Sees that one more can come: if there are too many, the one goes that has asked nothing for longest. If it is too early for
    /// that, says when to try again.
    pub(super) fn make_room(&mut self, now: Instant) -> Result<(), Instant> {
        self.present.retain(|(_, visit)| !visit.is_finished());
        if self.present.len() < self.max {
            return Ok(());
        }
        let heard = |(_, (guest, _)): &(usize, &(Rc<Guest>, AbortHandle))| guest.heard.get();
        let quietest = self.present.iter().enumerate().min_by_key(heard);
        let Some((index, (guest, _))) = quietest else {
            return Ok(());
        };
        let early = guest.heard.get() + self.grace;
        if now < early {
            return Err(early);
        }
        let (_, visit) = self.present.swap_remove(index);
        visit.abort();
        Ok(())
    }

    /// Takes one more in, for which there is room.
    pub(super) fn admit(&mut self, guest: Rc<Guest>, visit: AbortHandle) {
        self.present.push((guest, visit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has come is sent away for another one only when he has had his time, and nobody who has asked something since (I16).
    #[test]
    fn time_for_everybody() {
        const GRACE: Duration = Duration::from_secs(5);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.build().unwrap();
        let mut guests = Guests::new(2, GRACE);
        let mut visits = Vec::new();
        let mut come = |guests: &mut Guests| {
            let guest = Rc::new(Guest::new(Instant::now()));
            let visit = runtime.spawn(std::future::pending::<()>());
            guests.admit(Rc::clone(&guest), visit.abort_handle());
            visits.push(visit);
            guest
        };
        let (first, second) = (come(&mut guests), come(&mut guests));
        let (came, early) = (first.heard.get(), first.heard.get() + GRACE);
        assert_eq!(guests.make_room(came), Err(early));
        let just = Duration::from_nanos(1);
        assert_eq!(guests.make_room(early - just), Err(early));
        // Now the second is the one that has been silent for longest.
        first.stays(came);
        let early = second.heard.get() + GRACE;
        assert_eq!(guests.make_room(early - just), Err(early));
        assert_eq!(guests.make_room(early), Ok(()));
        let [stays, goes] = visits.try_into().unwrap();
        assert!(runtime.block_on(goes).unwrap_err().is_cancelled());
        assert!(!stays.is_finished());
    }
}
