//! Numbers of the page and durability requests of one connection.

use crate::addr::Ticket;

/// What a ticket was drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TicketKind {
    Read,
    Write,
    Durable,
    /// Durability that a FLUSH of the peer asked for.
    Flush,
}

const KIND_SHIFT: u32 = 30;
const COUNT_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// Draws tickets; consecutive per kind, so that those of READs index their window.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    tag: u32,
    counts: [u32; 4],
}

impl Tickets {
    pub(super) fn new(tag: u32) -> Self {
        Self {
            tag,
            counts: [0; 4],
        }
    }

    pub(super) fn next(&mut self, kind: TicketKind) -> Ticket {
        let count = &mut self.counts[kind as usize];
        let number = ((kind as u32) << KIND_SHIFT) | *count;
        *count = count.wrapping_add(1) & COUNT_MASK;
        Ticket::new(self.tag, number)
    }

    /// What is it for? `None` if it is not ours.
    pub(super) fn kind(&self, ticket: Ticket) -> Option<TicketKind> {
        if ticket.tag() != self.tag {
            return None;
        }
        match ticket.number() >> KIND_SHIFT {
            0 => Some(TicketKind::Read),
            1 => Some(TicketKind::Write),
            2 => Some(TicketKind::Durable),
            _ => Some(TicketKind::Flush),
        }
    }
}

/// How many tickets of the same kind were drawn from `earlier` to `ticket`.
pub(super) fn distance(earlier: Ticket, ticket: Ticket) -> usize {
    (ticket.number().wrapping_sub(earlier.number()) & COUNT_MASK) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_distances_survive_the_wrap() {
        let mut tickets = Tickets {
            tag: 7,
            counts: [COUNT_MASK, 0, 0, 0],
        };
        let first = tickets.next(TicketKind::Read);
        let write = tickets.next(TicketKind::Write);
        let second = tickets.next(TicketKind::Read);
        assert_eq!(distance(first, second), 1);
        assert_eq!(tickets.kind(second), Some(TicketKind::Read));
        assert_eq!(tickets.kind(write), Some(TicketKind::Write));
        assert_eq!(Tickets::new(8).kind(write), None);
    }
}
