//! Marks: intervals in which nothing was at a snapshot, or what was has its image.

use super::slot::MARK_BYTES;
use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use std::collections::BTreeMap;

/// The marks of a slot; neighbours are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<u64, u64>);

impl Marks {
    /// Adds a mark.
    pub(crate) fn add(&mut self, range: LbaRange) {
        let (mut start, mut end) = (range.start.0, range.end().0);
        if start == end {
            return;
        }
        if let Some((&before, &until)) = self.0.range(..=start).next_back()
            && until >= start
        {
            start = before;
            end = end.max(until);
        }
        while let Some((&next, &until)) = self.0.range(start..=end).next() {
            self.0.remove(&next);
            end = end.max(until);
        }
        self.0.insert(start, end);
    }

    /// Adds all of `others`.
    pub(crate) fn merge(&mut self, others: &Self) {
        for range in others.ranges() {
            self.add(range);
        }
    }

    /// All of them, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = LbaRange> + '_ {
        let ranges = self.0.iter();
        ranges.map(|(&start, &end)| LbaRange::new(Lba(start), end - start))
    }

    /// The mark that covers a grain.
    pub(crate) fn covering(&self, lba: Lba) -> Option<LbaRange> {
        let (&start, &end) = self.0.range(..=lba.0).next_back()?;
        (lba.0 < end).then(|| LbaRange::new(Lba(start), end - start))
    }

    /// The mark that covers a grain, or else the first one behind it.
    pub(crate) fn at_or_behind(&self, lba: Lba) -> Option<LbaRange> {
        self.covering(lba).or_else(|| {
            let (&start, &end) = self.0.range(lba.0..).next()?;
            Some(LbaRange::new(Lba(start), end - start))
        })
    }
}

/// A mark on the media.
pub(crate) fn emit(range: LbaRange) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[..8].copy_from_slice(&range.start.0.to_le_bytes());
    bytes[8..].copy_from_slice(&range.count.to_le_bytes());
    bytes
}

/// The marks of a grain, in their places. What is nothing, or nonsense, is none.
pub(crate) fn parse(bytes: &[u8; GRAIN_BYTES]) -> Vec<Option<LbaRange>> {
    let (marks, _) = bytes.as_chunks::<MARK_BYTES>();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let parsed = marks.iter().map(|mark| {
        let (start, count) = (word(&mark[..8]), word(&mark[8..]));
        let end = start.checked_add(count)?;
        (count > 0 && end <= Lba::END.0).then(|| LbaRange::new(Lba(start), count))
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals that touch or overlap become one, and every grain of what was added is covered, and no other.
    #[test]
    fn intervals() {
        let mut marks = Marks::default();
        for (start, count) in [(10, 5), (30, 5), (15, 1), (0, 2), (12, 30), (50, 1), (2, 0)] {
            marks.add(LbaRange::new(Lba(start), count));
        }
        let all: Vec<(u64, u64)> = marks.ranges().map(|r| (r.start.0, r.end().0)).collect();
        assert_eq!(all, [(0, 2), (10, 42), (50, 51)]);
        assert_eq!(marks.covering(Lba(2)), None);
        assert_eq!(marks.covering(Lba(41)), Some(LbaRange::new(Lba(10), 32)));
        assert_eq!(marks.covering(Lba(42)), None);
        let next = |lba| marks.at_or_behind(Lba(lba)).map(|r| r.start.0);
        assert_eq!(
            (next(1), next(2), next(42), next(51)),
            (Some(0), Some(10), Some(50), None)
        );
        let mut grain = [0; GRAIN_BYTES];
        let one = LbaRange::new(Lba(7), 9);
        grain[16..32].copy_from_slice(&emit(one));
        grain[32..48].copy_from_slice(&[0xff; 16]);
        let parsed = parse(&grain);
        assert_eq!(parsed[..4], [None, Some(one), None, None]);
    }
}
