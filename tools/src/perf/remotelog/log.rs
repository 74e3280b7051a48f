//! The log: a page with the pointer to its tail, and records in a ring behind it.

/// Where the pointer to the tail is: the number of the last record.
pub(super) const TAIL_AT: u64 = 8;
/// Bytes of the page, the rest of which is not used.
const HEADER_BYTES: usize = 4096;
/// Bytes of a record.
const RECORD_BYTES: usize = 64;
/// Records that the ring holds.
const RECORDS: usize = 256;
/// Bytes in all.
pub(super) const LOG_BYTES: usize = HEADER_BYTES + RECORDS * RECORD_BYTES;
/// Bytes of the checksum at the end of a record.
const CHECKSUM_BYTES: usize = 4;

/// A record: its number, data made from it, a checksum. The first record has number 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    sequence: u64,
}

impl Record {
    pub(super) fn new(sequence: u64) -> Self {
        Self { sequence }
    }

    fn slot(self) -> usize {
        (self.sequence % RECORDS as u64) as usize
    }

    /// Where it is.
    pub(super) fn at(self) -> u64 {
        (HEADER_BYTES + self.slot() * RECORD_BYTES) as u64
    }

    /// The pointer to it.
    pub(super) fn tail(self) -> [u8; 8] {
        self.sequence.to_le_bytes()
    }

    pub(super) fn bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (self.sequence.wrapping_mul(31) as usize + at) as u8;
        }
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        let data = RECORD_BYTES - CHECKSUM_BYTES;
        let crc = crc32fast::hash(&bytes[..data]);
        bytes[data..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn is_whole(self, image: &[u8]) -> bool {
        let at = self.at() as usize;
        image[at..at + RECORD_BYTES] == self.bytes()
    }
}

/// The last record, found as a reader does who has nothing but checksums: the greatest number of a whole record.
pub(super) fn find_by_checksum(image: &[u8]) -> Option<u64> {
    image[HEADER_BYTES..]
        .chunks_exact(RECORD_BYTES)
        .filter_map(|bytes| {
            let (data, crc) = bytes.split_at(RECORD_BYTES - CHECKSUM_BYTES);
            let whole = crc == crc32fast::hash(data).to_le_bytes();
            let sequence = u64::from_le_bytes(data[..8].try_into().ok()?);
            // Memory never written is all zeros, which is no record.
            (whole && sequence > 0).then_some(sequence)
        })
        .max()
}

/// The last record by the pointer; none if the record is not whole that it points to.
pub(super) fn find_by_tail(image: &[u8]) -> Option<u64> {
    let at = TAIL_AT as usize;
    let sequence = u64::from_le_bytes(image[at..at + 8].try_into().ok()?);
    Record::new(sequence).is_whole(image).then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers find what was written, and nothing that was not written whole.
    #[test]
    fn the_tail_is_found() {
        let mut image = vec![0; LOG_BYTES];
        assert_eq!(find_by_checksum(&image), None);
        assert_eq!(find_by_tail(&image), None);
        for sequence in 1..=2 * RECORDS as u64 + 3 {
            let record = Record::new(sequence);
            let (at, bytes) = (record.at() as usize, record.bytes());
            image[at..at + 32].copy_from_slice(&bytes[..32]);
            assert_ne!(find_by_checksum(&image), Some(sequence));
            image[at..at + RECORD_BYTES].copy_from_slice(&bytes);
            assert_eq!(find_by_checksum(&image), Some(sequence));
            image[TAIL_AT as usize..][..8].copy_from_slice(&record.tail());
            assert_eq!(find_by_tail(&image), Some(sequence));
        }
        image[TAIL_AT as usize] ^= 1;
        assert_ne!(find_by_tail(&image), Some(2 * RECORDS as u64 + 3));
    }
}
