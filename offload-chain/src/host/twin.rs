//! Two processes that say that they are the same member, with a memory each.
//!
//! Who starts looks for another one first (`refuse_twin`), and does not find one that starts at the same moment, or that cannot answer just then.
//! Then each takes the other's place again and again, as fast as epochs change. A former life may have a report there once more, late; who puts
//! it there after this one's each time lives. Of the two just one may end, and it is the same for both.

use crate::membership::Boot;

/// So often another life's report comes after this one's until it is sure that it lives.
const SURE: u32 = 3;

/// What is known of another process.
#[derive(Debug)]
pub(super) struct Twin {
    own: Boot,
    /// This one's report has been there since the other's was.
    said: bool,
    other: Option<(Boot, u32)>,
}

impl Twin {
    pub(super) fn new(own: Boot) -> Self {
        Self {
            own,
            said: false,
            other: None,
        }
    }

    /// The report of the member in the store is of this life. Whether this process has to give way to another one.
    pub(super) fn gives_way(&mut self, reported: Boot) -> bool {
        if reported == self.own {
            self.said = true;
            return false;
        }
        let times = match self.other {
            Some((boot, times)) if boot == reported => times + u32::from(self.said),
            _ => 1,
        };
        self.said = false;
        self.other = Some((reported, times));
        times >= SURE && reported.0 > self.own.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of two gives way, both of which look after every change of what is reported.
    fn give_way(reports: &[u64]) -> [bool; 2] {
        [1, 2].map(|own| {
            let mut twin = Twin::new(Boot(own));
            let mut seen = reports.iter().map(|boot| twin.gives_way(Boot(*boot)));
            seen.any(|gives_way| gives_way)
        })
    }

    /// I15: of two that take each other's place one gives way, and the other does not.
    #[test]
    fn one_of_two_gives_way() {
        assert_eq!(give_way(&[1, 2, 1, 2, 1, 2]), [true, false]);
        assert_eq!(give_way(&[2, 2, 1, 1, 2, 1, 2, 2, 1]), [true, false]);
    }

    /// A life before this one is dead, however late and however often its report is seen, and so are several of them.
    #[test]
    fn what_is_late_is_no_twin() {
        assert_eq!(give_way(&[2, 2, 2, 2, 2]), [false, false]);
        assert_eq!(give_way(&[2, 1, 2, 1, 1, 1, 1, 1]), [false, false]);
        assert_eq!(give_way(&[2, 1, 3, 1, 4, 1, 5, 1]), [false, false]);
    }
}
