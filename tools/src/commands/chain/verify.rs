//! `chain verify`: are all members alike?

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

/// Where a member differs from the first.
struct Difference {
    member: u32,
    offset: u64,
    part: &'static str,
}

pub(super) fn run(options: &ChainVerify, json: bool) -> Result<()> {
    let store = super::open(&options.store)?;
    let settings = ClientSettings {
        timing: options.timing.timing()?,
        timeout: options.timeout,
        ..ClientSettings::default()
    };
    let mut client = Client::connect(store, settings)?;
    // Whoever has it has left nothing under way, and nobody else appends.
    client.lock(LockId::LOG, options.timeout)?;
    let (epoch, differences, members) = loop {
        let epoch = client.configuration().epoch;
        let differences = compare(&mut client)?;
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
    let mut differences = Vec::new();
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
            let read = |client: &mut Client, place| -> Result<Vec<u8>> {
                let mut bytes = client.read_memory(place, at, piece)?;
                if part == "locks" {
                    without_readers(&mut bytes);
                }
                Ok(bytes)
            };
            let first = read(client, 0)?;
            for (place, &member) in chain.iter().enumerate().skip(1) {
                let other = read(client, place)?;
                if let Some(byte) = first.iter().zip(&other).position(|(a, b)| a != b)
                    && !differences
                        .iter()
                        .any(|found: &Difference| found.member == member)
                {
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

/// Locks for reading are at one member only.
fn without_readers(bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<8>().0 {
        let found = Word(u64::from_le_bytes(*word));
        if found.writer().is_none() {
            *word = Word::free(found.generation()).0.to_le_bytes();
        }
    }
}
