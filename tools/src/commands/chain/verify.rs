//! `chain verify`: are all members alike?

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use offload_chain::client::{Client, ClientSettings};
use offload_chain::lock::{LockId, Word};
use offload_chain::log::{HEADER_BYTES, HEADER_SLOTS, Layout};
use serde_json::json;

use crate::cli::chain::ChainVerify;
use crate::commands::show;

/// Compared at once.
const PIECE: u64 = 1 << 20;

/// So often locks are looked at that differ, and so long apart: all in all, longer than a client that died or was stopped while
/// it took one keeps what it has got (1.2 s, if nothing else is said).
const LOOKS: usize = 16;
const APART: Duration = Duration::from_millis(125);

/// Where a member differs from the first.
struct Difference {
    member: u32,
    offset: u64,
    part: &'static str,
}

pub(super) fn run(options: &ChainVerify, json: bool) -> Result<()> {
    let tls = options.tls.read()?;
    let store = super::open_with_group(&options.store)?;
    let settings = ClientSettings {
        timing: options.timing.timing()?,
        timeout: options.timeout,
        tls,
        ..ClientSettings::default()
    };
    let mut client = super::connect(store, settings)?;
    // Whoever has it has left nothing under way, and nobody else appends.
    client.lock(LockId::LOG, options.timeout)?;
    let (epoch, differences, members) = loop {
        let epoch = client.configuration().epoch;
        let differences = match compare(&mut client) {
            // Who was left out meanwhile has no place to be read at.
            Err(_) if client.configuration().epoch != epoch => continue,
            differences => differences?,
        };
        let members = client.configuration().chain.len();
        // A change of epochs in between may have changed who is compared.
        if client.configuration().epoch == epoch {
            break (epoch, differences, members);
        }
    };
    client.unlock(LockId::LOG)?;
    let size = client.layout().size();
    client.leave();
    if json {
        let differences: Vec<_> = differences
            .iter()
            .map(|found| json!({ "member": found.member, "offset": found.offset, "part": found.part }))
            .collect();
        println!(
            "{}",
            json!({ "epoch": epoch.0, "members": members, "bytes": size, "differences": differences })
        );
    } else if differences.is_empty() {
        println!(
            "{members} members are alike, {} each, in epoch {epoch}",
            show::bytes(size)
        );
    }
    if let Some(first) = differences.first() {
        bail!(
            "member {} differs from the head at byte {} of its memory ({}); take it out (`flashnet chain remove`), delete its memory, and add it again",
            first.member,
            first.offset,
            first.part
        );
    }
    Ok(())
}

fn compare(client: &mut Client) -> Result<Vec<Difference>> {
    let layout = client.layout();
    let chain: Vec<u32> = (client.configuration().chain.iter())
        .map(|seat| seat.id.0)
        .collect();
    let mut differences: Vec<Difference> = Vec::new();
    let locks = (layout.lock_at(0), u64::from(layout.locks()) * 8);
    let mut parts: Vec<(&'static str, u64, u64)> = Vec::new();
    for slot in 0..HEADER_SLOTS {
        parts.push((
            "header of the log",
            Layout::header_at(slot),
            HEADER_BYTES as u64,
        ));
    }
    parts.push(("locks", locks.0, locks.1));
    parts.push(("ring of the log", layout.ring_at(), layout.ring_bytes()));
    parts.push(("data", layout.data_at(), layout.data_bytes()));
    let bar: ProgressBar = show::progress(layout.size(), "compare");
    for (part, start, length) in parts {
        let mut at = start;
        while at < start + length {
            let piece = (start + length - at).min(PIECE) as usize;
            let read = |client: &mut Client, place| client.read_memory(place, at, piece);
            let differing = match part {
                "locks" => lasting(|nth| {
                    if nth > 0 {
                        pause(client)?;
                    }
                    (0..chain.len())
                        .map(|place| Ok(read(client, place)?))
                        .collect()
                })?,
                _ => {
                    let first = read(client, 0)?;
                    let mut differing = Vec::new();
                    for place in 1..chain.len() {
                        let other = read(client, place)?;
                        let byte = first.iter().zip(&other).position(|(a, b)| a != b);
                        differing.extend(byte.map(|byte| (place, byte)));
                    }
                    differing
                }
            };
            for (place, byte) in differing {
                let member = chain[place];
                if differences.iter().all(|found| found.member != member) {
                    let offset = at + byte as u64;
                    differences.push(Difference {
                        member,
                        offset,
                        part,
                    });
                }
            }
            at += piece as u64;
            bar.inc(piece as u64);
        }
    }
    bar.finish_and_clear();
    Ok(differences)
}

/// The locks that differ from those of the first member and go on to: of each, the place of the member and the first byte.
///
/// Nobody keeps clients from taking locks and giving them back meanwhile, at one member after the other. What differs for that
/// reason is soon something else or nothing, as the words are other ones with each writer (K3). `look` returns the words of all.
fn lasting(mut look: impl FnMut(usize) -> Result<Vec<Vec<u8>>>) -> Result<Vec<(usize, usize)>> {
    let mut lasting: Option<BTreeSet<_>> = None;
    for nth in 0..LOOKS {
        let mut members = look(nth)?;
        members.iter_mut().for_each(|bytes| without_readers(bytes));
        let Some((first, others)) = members.split_first() else {
            return Ok(Vec::new());
        };
        let mut found = BTreeSet::new();
        for (n, other) in others.iter().enumerate() {
            let words = first
                .as_chunks::<8>()
                .0
                .iter()
                .zip(other.as_chunks::<8>().0);
            let differing = words.enumerate().filter(|(_, (a, b))| a != b);
            found.extend(differing.map(|(lock, (&a, &b))| (n + 1, lock, a, b)));
        }
        let still = match lasting {
            None => found,
            Some(before) => &before & &found,
        };
        if still.is_empty() {
            return Ok(Vec::new());
        }
        lasting = Some(still);
    }
    let byte = |(place, lock, a, b): (usize, usize, [u8; 8], [u8; 8])| {
        let within = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(0);
        (place, lock * 8 + within)
    };
    Ok(lasting.into_iter().flatten().map(byte).collect())
}

/// Lets things go on for a while.
fn pause(client: &mut Client) -> Result<()> {
    let until = Instant::now() + APART;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        client.turn(left)?;
    }
    Ok(())
}

/// Locks for reading are at one member only.
fn without_readers(bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<8>().0 {
        let found = Word(u64::from_le_bytes(*word));
        if found.writer().is_none() {
            *word = Word::free(found.generation()).0.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use offload_chain::lock::Slot;

    use super::*;

    fn bytes(words: [Word; 2]) -> Vec<u8> {
        words.iter().flat_map(|word| word.0.to_le_bytes()).collect()
    }

    /// Locks that are taken and given back while they are looked at are no difference, however often one is seen at some members
    /// and not at others.
    #[test]
    fn locks_that_come_and_go_are_no_difference() {
        let slot = Slot::new(3).unwrap();
        let mut looks = 0;
        let busy = lasting(|nth| {
            looks += 1;
            let generation = nth as u64;
            let free = bytes([Word::free(generation), Word::free(9)]);
            let taken = bytes([Word::written(generation + 1, slot), Word::free(9)]);
            Ok(vec![taken.clone(), taken, free])
        });
        assert_eq!(busy.unwrap(), []);
        assert!(looks > 1);
        let read = lasting(|_| {
            let read = Word::free(4).with_reader(slot);
            Ok(vec![
                bytes([read, Word::free(9)]),
                bytes([Word::free(4), Word::free(9)]),
            ])
        });
        assert_eq!(read.unwrap(), []);
    }

    /// A word that stays another one is found, at whichever member and beside whatever comes and goes.
    #[test]
    fn locks_that_stay_different_are_found() {
        let found = lasting(|nth| {
            let busy = Word::free(nth as u64);
            Ok(vec![
                bytes([busy, Word::free(9)]),
                bytes([Word::free(0), Word::free(9)]),
                bytes([busy, Word::free(8)]),
            ])
        });
        let found = found.unwrap();
        assert_eq!(found.len(), 1);
        let (place, byte) = found[0];
        assert_eq!((place, byte / 8), (2, 1));
    }
}
