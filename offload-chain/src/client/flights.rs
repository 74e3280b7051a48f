//! Outcomes that nobody has taken, and whether there have been any for too long.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::group::{Flight, Outcome, PrimitiveError};

type Result = std::result::Result<Outcome, PrimitiveError>;

/// More are not kept: of reads that were given up.
const KEPT_MAX: usize = 256;

/// Outcomes of one epoch.
#[derive(Debug, Default)]
pub(super) struct Flights {
    kept: VecDeque<(Flight, Result)>,
    /// The oldest primitive under way, and since when it is that.
    oldest: Option<(Flight, Instant)>,
}

impl Flights {
    /// It is not under way any more.
    pub(super) fn done(&mut self, flight: Flight) {
        self.oldest = self.oldest.filter(|(oldest, _)| *oldest != flight);
    }

    /// For somebody who asks for it.
    pub(super) fn keep(&mut self, flight: Flight, result: Result) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((flight, result));
    }

    pub(super) fn take(&mut self, flight: Flight) -> Option<Result> {
        let at = self.kept.iter().position(|(own, _)| *own == flight)?;
        self.kept.remove(at).map(|(_, result)| result)
    }

    /// The next, whatever it is of.
    pub(super) fn take_read(&mut self) -> Option<(Flight, Result)> {
        self.kept.pop_front()
    }

    /// Whether the oldest primitive under way is the same for so long; said again after as long.
    pub(super) fn is_stuck(&mut self, oldest: Option<Flight>, silence: Duration) -> bool {
        let Some(oldest) = oldest else {
            self.oldest = None;
            return false;
        };
        let known = self.oldest.filter(|(flight, _)| *flight == oldest);
        if known.is_some_and(|(_, since)| since.elapsed() <= silence) {
            return false;
        }
        self.oldest = Some((oldest, Instant::now()));
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What moves is not stuck, however long it lasts.
    #[test]
    fn stuck_is_what_does_not_move() {
        let mut flights = Flights::default();
        assert!(!flights.is_stuck(Some(Flight(1)), Duration::ZERO));
        std::thread::sleep(Duration::from_millis(2));
        assert!(flights.is_stuck(Some(Flight(1)), Duration::from_millis(1)));
        assert!(!flights.is_stuck(Some(Flight(1)), Duration::from_hours(1)));
        assert!(!flights.is_stuck(Some(Flight(2)), Duration::from_millis(1)));
        flights.done(Flight(2));
        assert!(!flights.is_stuck(None, Duration::ZERO));
        assert!(!flights.is_stuck(Some(Flight(2)), Duration::from_hours(1)));
    }

    #[test]
    fn kept_is_bounded() {
        let mut flights = Flights::default();
        for number in 0..1000 {
            flights.keep(Flight(number), Ok(Outcome::Done));
        }
        assert_eq!(flights.take(Flight(1)), None);
        assert_eq!(flights.take(Flight(999)), Some(Ok(Outcome::Done)));
        assert_eq!(flights.kept.len(), KEPT_MAX - 1);
    }
}
