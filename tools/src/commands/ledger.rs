//! What was sent and what was acknowledged, slot by slot, and the judge of what must be there after a kill.
//!
//! A record fills one 4 KiB slot and says which slot it is and which version of it. A slot is written again and again;
//! after a crash it must hold a whole record of its own, not older than the last version that was acknowledged and
//! not newer than the last that was sent (I1, I2, I4).

use anyhow::{Result, bail, ensure};

/// Bytes of a slot.
pub(super) const RECORD: usize = 4096;

/// The books of one file of slots.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Number of slot 0 in the records: files that have nothing in common have no record in common either.
    base: u64,
    sent: Vec<u64>,
    acknowledged: Vec<u64>,
}

impl Ledger {
    /// Nothing has been written to `slots` slots.
    pub(super) fn new(base: u64, slots: u64) -> Self {
        Self {
            base,
            sent: vec![0; slots as usize],
            acknowledged: vec![0; slots as usize],
        }
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> u64 {
        self.sent.len() as u64
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.slots() * RECORD as u64
    }

    /// The next version of a slot is about to be sent: its number, and the record.
    pub(super) fn send(&mut self, slot: u64) -> (u64, Vec<u8>) {
        let sent = &mut self.sent[slot as usize];
        *sent += 1;
        (*sent, record(self.base + slot, *sent))
    }

    /// The version of a slot that was sent last.
    pub(super) fn last_sent(&self, slot: u64) -> u64 {
        self.sent[slot as usize]
    }

    /// The target has promised that this version outlives it.
    pub(super) fn acknowledge(&mut self, slot: u64, version: u64) {
        let known = &mut self.acknowledged[slot as usize];
        *known = version.max(*known);
    }

    /// Slots of which something has been acknowledged.
    pub(super) fn acknowledged_slots(&self) -> usize {
        self.acknowledged.iter().filter(|&&v| v > 0).count()
    }

    /// The version that `found` is, if a slot may hold it after a crash.
    pub(super) fn judge(&self, slot: u64, found: &[u8]) -> Result<u64> {
        let (sent, acknowledged) = (self.sent[slot as usize], self.acknowledged[slot as usize]);
        ensure!(found.len() == RECORD, "slot {slot} is cut off");
        let version = u64::from_le_bytes(found[8..16].try_into()?);
        let whole = if version == 0 {
            found.iter().all(|&byte| byte == 0)
        } else {
            found == record(self.base + slot, version)
        };
        if !whole {
            bail!("slot {slot} holds no record of its own");
        }
        if version < acknowledged {
            bail!("slot {slot}: version {acknowledged} was acknowledged, {version} is there");
        }
        if version > sent {
            bail!("slot {slot}: version {version} is there, {sent} was the last sent");
        }
        Ok(version)
    }

    /// Judges a whole file.
    pub(super) fn judge_all(&self, all: &[u8]) -> Result<()> {
        if all.len() as u64 != self.bytes() {
            bail!("the file has {} bytes, not {}", all.len(), self.bytes());
        }
        let mut slots = (0..).zip(all.chunks(RECORD));
        slots.try_for_each(|(slot, found)| self.judge(slot, found).map(drop))
    }
}

fn record(slot: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD);
    bytes.extend_from_slice(&slot.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    // No two records have a part in common, so that bytes of one show in another.
    let mut state = slot.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
    while bytes.len() < RECORD {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u64 = 16;

    fn file(versions: [u64; SLOTS as usize]) -> Vec<u8> {
        (0..SLOTS)
            .flat_map(|slot| match versions[slot as usize] {
                0 => vec![0; RECORD],
                version => record(slot, version),
            })
            .collect()
    }

    /// Sectors of one record show in another, of a neighbour, of another file or of another version (I4).
    #[test]
    fn records_have_no_sector_in_common() {
        let slots = [0, 1, 2, 1 << 32, 1 << 32 | 1, 2 << 32, 63 << 32];
        let mut sectors = std::collections::HashSet::new();
        for (slot, version) in slots.into_iter().flat_map(|s| (1..20).map(move |v| (s, v))) {
            for sector in record(slot, version).chunks(512) {
                assert!(sectors.insert(sector.to_vec()), "{slot}, {version}");
            }
        }
    }

    /// The judge must find what must not happen (I1, I2, I4): a lost version, an older one, a newer one than sent, a
    /// torn record, a record of another slot.
    #[test]
    fn every_kind_of_loss_is_found() {
        let mut ledger = Ledger::new(0, SLOTS);
        for version in 1..=5 {
            assert_eq!(ledger.send(3).0, version);
        }
        ledger.acknowledge(3, 4);
        let judge = |bytes: &[u8]| ledger.judge_all(bytes).is_ok();
        let with = |version| {
            let mut versions = [0; SLOTS as usize];
            versions[3] = version;
            file(versions)
        };
        assert!(judge(&with(4)));
        assert!(judge(&with(5)));
        assert!(!judge(&with(0)));
        assert!(!judge(&with(3)));
        assert!(!judge(&with(6)));
        let mut torn = with(5);
        torn[3 * RECORD + 2048..4 * RECORD].fill(0);
        assert!(!judge(&torn));
        let mut elsewhere = with(5);
        let other = record(7, 5);
        elsewhere[3 * RECORD..4 * RECORD].copy_from_slice(&other);
        assert!(!judge(&elsewhere));
        assert!(!judge(&with(5)[RECORD..]));
    }
}
