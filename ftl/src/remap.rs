//! Remaps and clones: ranges of LBAs that change their name, or get another one, without a byte of them being written.

use crate::addr::{Lba, LbaRange};

/// A range and where it goes. The grains of `from` become those of `to`, and what `to` held is gone. By a remap `from`
/// is unmapped afterwards; by a clone both have them until one is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remap {
    /// First grain of the range that is moved or cloned.
    pub from: Lba,
    /// First grain of the range it goes to.
    pub to: Lba,
    /// Number of grains.
    pub count: u64,
}

impl Remap {
    /// What is moved.
    pub const fn source(self) -> LbaRange {
        LbaRange::new(self.from, self.count)
    }

    /// Where it is moved to.
    pub const fn target(self) -> LbaRange {
        LbaRange::new(self.to, self.count)
    }

    /// The new name of a grain of the source.
    pub const fn renamed(self, lba: Lba) -> Lba {
        Lba(lba.0 - self.from.0 + self.to.0)
    }

    /// Whether both ranges lie in the address space and have nothing in common.
    pub(crate) fn is_possible(self) -> bool {
        let end = |start: Lba| start.0.checked_add(self.count);
        let inside = |start| end(start).is_some_and(|end| end <= Lba::SPACE_END.0);
        inside(self.from) && inside(self.to) && !self.source().meets(self.target())
    }
}

/// What a batch does with a range and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renaming {
    /// The source is unmapped afterwards.
    Remap(Remap),
    /// The source keeps its grains: each has one more name.
    Clone(Remap),
}

impl Renaming {
    /// The two ranges.
    pub(crate) const fn ranges(self) -> Remap {
        match self {
            Self::Remap(ranges) | Self::Clone(ranges) => ranges,
        }
    }

    /// Whether the source is unmapped afterwards.
    pub(crate) const fn empties_source(self) -> bool {
        matches!(self, Self::Remap(_))
    }

    /// Replaces all names from `first` on by those that their grains have afterwards: none, one or two each. `lba` says
    /// what a name is, `named` makes another one of it.
    pub(crate) fn follow<N: Copy>(
        self,
        names: &mut Vec<N>,
        first: usize,
        lba: impl Fn(N) -> Lba,
        named: impl Fn(N, Lba) -> N,
    ) {
        let ranges = self.ranges();
        // New names go to the end.
        let (mut index, mut end) = (first, names.len());
        while index < end {
            let now = lba(names[index]);
            if ranges.target().contains(now) {
                names.remove(index);
                end -= 1;
                continue;
            }
            if ranges.source().contains(now) {
                let other = named(names[index], ranges.renamed(now));
                if self.empties_source() {
                    names[index] = other;
                } else {
                    names[index] = named(names[index], now);
                    names.push(other);
                }
            }
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range that would overwrite itself, or leaves the address space, is no remap.
    #[test]
    fn possible() {
        let remap = |from, to, count| Remap {
            from: Lba(from),
            to: Lba(to),
            count,
        };
        assert!(remap(0, 8, 8).is_possible() && remap(8, 0, 8).is_possible());
        assert!(!remap(0, 7, 8).is_possible() && !remap(7, 0, 8).is_possible());
        assert!(!remap(0, Lba::SPACE_END.0 - 1, 2).is_possible());
        assert!(!remap(u64::MAX, 0, 2).is_possible());
        assert_eq!(remap(8, 0, 8).renamed(Lba(9)), Lba(1));
    }
}
