//! The sweep: how much of the map each checkpoint writes in full, and what that makes superfluous.

use crate::addr::Lba;
use crate::format::{PIECES_MAX, Piece};

/// Entries of the map to write in full, of `mapped`, after `changed` entries have changed; none: all of them.
///
/// At least a 56th, so that a round takes fewer checkpoints than a root can name. At least as much as has changed,
/// because a round that is over soon leaves few runs to look into, and to keep.
pub(crate) fn share(alive: &[Piece], mapped: u64, changed: u64) -> Option<u64> {
    let wanted = (mapped / 56 + 1).max(changed);
    let must = alive.is_empty() || alive.len() >= PIECES_MAX - 1;
    (!must && wanted < mapped).then_some(wanted)
}

/// Of the pieces of a root, oldest first, those that say something that no younger base pages repeat.
pub(crate) fn needed_pieces(mut pieces: Vec<Piece>) -> Vec<Piece> {
    while pieces.len() > 1 && cover_all(&pieces[1..]) {
        pieces.remove(0);
    }
    pieces
}

/// Whether the base pages of these pieces cover every LBA there is.
pub(crate) fn cover_all(pieces: &[Piece]) -> bool {
    let mut intervals: Vec<(Lba, Lba)> = pieces.iter().map(|p| (p.lo, p.hi)).collect();
    intervals.sort_unstable();
    let mut reached = Lba(0);
    for (lo, hi) in intervals {
        if lo > reached {
            return false;
        }
        reached = reached.max(hi);
    }
    reached >= Lba::SPACE_END
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::HeatMeaning;

    fn piece(number: u64, lo: u64, hi: u64) -> Piece {
        Piece {
            number,
            session: 1,
            position: number * 10,
            run: 1,
            base: 1,
            fence: 1,
            heat: HeatMeaning::NONE,
            lo: Lba(lo),
            hi: Lba(hi),
        }
    }

    /// A piece goes when younger ones have gone round, not before.
    #[test]
    fn a_round() {
        let end = Lba::SPACE_END.0;
        let mut pieces = vec![piece(1, 0, end), piece(2, 0, 50)];
        pieces = needed_pieces(pieces);
        assert_eq!(pieces.len(), 2);
        pieces.push(piece(3, 50, end));
        pieces = needed_pieces(pieces);
        assert_eq!(pieces.iter().map(|p| p.number).collect::<Vec<_>>(), [2, 3]);
        pieces.push(piece(4, 0, 70));
        pieces = needed_pieces(pieces);
        assert_eq!(pieces.iter().map(|p| p.number).collect::<Vec<_>>(), [3, 4]);
        pieces.push(piece(5, 0, end));
        assert_eq!(needed_pieces(pieces).len(), 1);
    }

    /// Small maps are written whole; a root never runs out of places.
    #[test]
    fn shares() {
        let alive = vec![piece(1, 0, Lba::SPACE_END.0)];
        assert_eq!(share(&[], 1 << 26, 9), None);
        assert_eq!(share(&alive, 100, 99), Some(99));
        assert_eq!(share(&alive, 262_144, 520_000), None);
        let part = share(&alive, 1 << 26, 520_000).expect("a part");
        assert!(part * 56 > 1 << 26 && part * 50 < 1 << 26);
        let many = vec![piece(1, 0, 1); PIECES_MAX - 1];
        assert_eq!(share(&many, 1 << 26, 9), None);
    }
}
