//! `chain bench`: appends under load, timed; then everything is read back at every member and compared. From a log that is
//! not carried out it is read back before it is given up, again and again. What somebody else has written is not written over, unless
//! that is insisted on.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use offload_chain::client::{Client, ClientError, ClientSettings, Submitted};
use offload_chain::lock::LockId;
use offload_chain::log::{Entry, Log, Preset};
use serde_json::json;

use crate::cli::chain::ChainBench;
use crate::commands::interrupt::Interrupt;
use crate::commands::show;
use crate::perf::figures::{Latencies, latencies};

/// Places in the data that records go to in turn.
const PLACES_MAX: u64 = 1024;
/// So much is looked at at once before it is written over.
const PIECE: usize = 1 << 20;
/// No bench gets as far as this record.
const RECORDS_MAX: Submitted = 1 << 48;
const LOCK: Duration = Duration::from_secs(30);
/// Between looks whether the user still wants it.
const SLICE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
/// After so long without an acknowledgement who wants to end does not wait for those under way.
const GONE: Duration = Duration::from_secs(1);

/// A time in which nothing was acknowledged.
struct Pause {
    /// Since the start.
    at: Duration,
    length: Duration,
    /// Epoch in which it ended.
    epoch: u64,
}

/// The records of a log that is not carried out, which stay until they are given up.
struct Stay {
    /// So many are read back and given up together.
    most: u64,
    /// Of all that were acknowledged, those that have been.
    given_up: Submitted,
    /// How long reading back and giving up took, in which nothing could be appended.
    took: Duration,
}

impl Stay {
    /// Of a log without records, which would be somebody's: but those of a bench that did not get to its end, or if that is insisted on. Each takes
    /// `bytes` of the ring.
    fn new(client: &mut Client, pattern: &Pattern, overwrite: bool, bytes: u64) -> Result<Self> {
        let found = client.records()?;
        if !overwrite && !found.iter().all(|(_, entries)| pattern.is_record(entries)) {
            bail!(
                "the log holds {} records that nobody has given up, not all of a bench with records of this size, and this one would give them up: take another group, or insist (--overwrite)",
                found.len()
            );
        }
        if let Some((last, _)) = found.last() {
            client.truncate(last + 1)?;
        }
        let most = client.layout().ring_bytes() / 2 / bytes;
        Ok(Self {
            most: most.max(1),
            given_up: 0,
            took: Duration::ZERO,
        })
    }

    /// What was acknowledged since the last time is in the log, once and in order, and nothing else is. Then it goes.
    fn give_up(&mut self, client: &mut Client, pattern: &Pattern) -> Result<()> {
        let begun = Instant::now();
        client.drain()?;
        let found = client.records()?;
        let expected = self.given_up + 1..=client.acknowledged();
        let count = expected.clone().count();
        if found.len() != count {
            bail!(
                "{count} records were acknowledged, and {} are in the log",
                found.len()
            );
        }
        for (record, (number, entries)) in expected.zip(&found) {
            if *entries != [pattern.entry(record)] {
                bail!(
                    "record {record} was acknowledged, and number {number} of the log is another"
                );
            }
        }
        if let Some((last, _)) = found.last() {
            client.truncate(last + 1)?;
        }
        self.given_up = client.acknowledged();
        self.took += begun.elapsed();
        Ok(())
    }
}

/// What was seen.
struct Seen {
    latencies: Latencies,
    /// In which there was something to append.
    elapsed: Duration,
    pauses: Vec<Pause>,
    longest: Duration,
    acknowledged: u64,
    epochs: u64,
    /// So many records were under way, at most.
    depth: u64,
}

/// Records that say which they are.
struct Pattern {
    size: usize,
    places: u64,
}

impl Pattern {
    fn entry(&self, record: Submitted) -> Entry {
        Entry {
            offset: record % self.places * self.size as u64,
            bytes: self.bytes(record),
        }
    }

    /// Its number, again and again.
    fn bytes(&self, record: Submitted) -> Vec<u8> {
        let number = record.to_le_bytes();
        number.iter().copied().cycle().take(self.size).collect()
    }

    /// Whether this is a record of a bench of this size.
    fn is_record(&self, entries: &[Entry]) -> bool {
        let [entry] = entries else { return false };
        let number = entry.bytes.first_chunk().copied();
        let number = number.map(Submitted::from_le_bytes);
        number.is_some_and(|number| number < RECORDS_MAX && *entry == self.entry(number))
    }

    /// Whether these bytes are of nobody at this place: zeros, or a record of another bench of this size.
    fn is_free(&self, place: u64, bytes: &[u8]) -> bool {
        let number = bytes.first_chunk().copied().map(Submitted::from_le_bytes);
        let is_record = |number: &Submitted| {
            *number < RECORDS_MAX && number % self.places == place && self.bytes(*number) == bytes
        };
        bytes.iter().all(|byte| *byte == 0) || number.as_ref().is_some_and(is_record)
    }

    /// The last of so many records that went to this place.
    fn last(&self, place: u64, records: Submitted) -> Option<Submitted> {
        let back = (records % self.places + self.places - place) % self.places;
        records.checked_sub(back).filter(|record| *record > 0)
    }
}

/// Tells now and then how far it is.
struct Progress {
    every: Option<Duration>,
    due: Duration,
    json: bool,
}

impl Progress {
    fn new(options: &ChainBench, json: bool) -> Self {
        Self {
            every: options.progress,
            due: Duration::ZERO,
            json,
        }
    }

    fn tell(&mut self, at: Duration, acknowledged: u64, epoch: u64) {
        let Some(every) = self.every.filter(|_| at >= self.due) else {
            return;
        };
        self.due = at + every;
        // Who does not read it any more is told nothing at the end, either.
        let _ = match self.json {
            true => writeln!(
                io::stdout(),
                "{}",
                json!({ "at_s": at.as_secs_f64(), "acknowledged": acknowledged, "epoch": epoch })
            ),
            false => writeln!(
                io::stdout(),
                "{}: {acknowledged} records, epoch {epoch}",
                show::time(at)
            ),
        };
    }
}

pub(super) fn run(options: &ChainBench, json: bool) -> Result<()> {
    if !(0.1..=86_400.0).contains(&options.seconds) {
        bail!("{} seconds: 0.1 to 86400 are possible", options.seconds);
    }
    let tls = options.tls.read()?;
    let store = super::open_with_group(&options.store)?;
    let settings = ClientSettings {
        timing: options.timing.timing()?,
        spin: Duration::from_micros(options.poll),
        preset: match options.visible {
            true => Preset::VOLATILE,
            false => Preset::STRICT,
        },
        tls,
        ..ClientSettings::default()
    };
    let mut client = super::connect(store, settings)?;
    // Until there is a group a signal just ends the command: nothing has been done, and a group may not come for long.
    let interrupt = Interrupt::install()?;
    let config = client.configuration();
    let is_carried_out = config.birth.executes;
    if !options.visible && !config.birth.durable {
        bail!("the group is volatile: its records can only be made visible (--visible)");
    }
    let size = options.size.as_u64();
    let data = client.layout().data_bytes();
    if size == 0 || size > data {
        bail!(
            "records of {}: the group has {} of data",
            options.size,
            show::bytes(data)
        );
    }
    let pattern = Pattern {
        size: usize::try_from(size)?,
        places: (data / size).min(PLACES_MAX),
    };
    // More than the ring has room for are not under way, however many are handed over.
    let bytes = Log::check(&client.layout(), &[pattern.entry(1)])?;
    let depth = u64::from(options.depth).min(client.layout().ring_bytes() / bytes);
    lock(&mut client, &interrupt)?;
    if is_carried_out
        && !options.overwrite
        && let Some(offset) = occupied(&mut client, &pattern)?
    {
        client.unlock(LockId::LOG)?;
        client.leave();
        bail!(
            "there is something else than records of this size at byte {offset} of the data, and the bench would write over the first {}: take another group, or insist (--overwrite)",
            show::bytes(pattern.places * size)
        );
    }
    let mut progress = Progress::new(options, json);
    let mut stay = match is_carried_out {
        true => None,
        false => Some(Stay::new(&mut client, &pattern, options.overwrite, bytes)?),
    };
    let seen = load(
        &mut client,
        (options, depth),
        &pattern,
        stay.as_mut(),
        &interrupt,
        &mut progress,
    )?;
    if seen.acknowledged == 0 {
        // It has ended before it began, which is no figure.
        client.unlock(LockId::LOG)?;
        client.leave();
        interrupt.check()?;
        bail!("--seconds {}: nothing begins in that time", options.seconds);
    }
    client.drain()?;
    let compared = match &mut stay {
        Some(stay) => {
            stay.give_up(&mut client, &pattern)?;
            stay.given_up
        }
        None => compare(&mut client, &pattern)?,
    };
    client.unlock(LockId::LOG)?;
    client.leave();
    tell(options, &seen, compared, json);
    Ok(())
}

/// Takes the log's lock, which others may have for long.
fn lock(client: &mut Client, interrupt: &Interrupt) -> Result<()> {
    let deadline = Instant::now() + LOCK;
    loop {
        interrupt.check()?;
        match client.lock(LockId::LOG, SLICE) {
            Err(ClientError::TimedOut(_)) if Instant::now() < deadline => {}
            locked => return Ok(locked.map(drop)?),
        }
    }
}

/// The first place in the data that records would go to and that somebody has written to, if there is one.
fn occupied(client: &mut Client, pattern: &Pattern) -> Result<Option<u64>> {
    let (size, data_at) = (pattern.size as u64, client.layout().data_at());
    let at_once = (PIECE / pattern.size).max(1) as u64;
    let mut place = 0;
    while place < pattern.places {
        let count = at_once.min(pattern.places - place);
        let found = client.read_memory(0, data_at + place * size, count as usize * pattern.size)?;
        for bytes in found.chunks(pattern.size) {
            if !pattern.is_free(place, bytes) {
                return Ok(Some(place * size));
            }
            place += 1;
        }
    }
    Ok(None)
}

fn load(
    client: &mut Client,
    (options, depth): (&ChainBench, u64),
    pattern: &Pattern,
    mut stay: Option<&mut Stay>,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Seen> {
    let start = Instant::now();
    let length = Duration::from_secs_f64(options.seconds);
    let mut under_way: VecDeque<Instant> = VecDeque::new();
    let (mut last, mut longest) = (start, Duration::ZERO);
    let mut pauses = Vec::new();
    let mut latencies = latencies();
    let mut acknowledged = 0;
    loop {
        let open = start.elapsed() < length && interrupt.check().is_ok();
        while open && (under_way.len() as u64) < depth {
            let next = acknowledged + under_way.len() as u64 + 1;
            if let Some(stay) = stay.as_deref_mut()
                && next > stay.given_up + stay.most
            {
                if !under_way.is_empty() {
                    break;
                }
                stay.give_up(client, pattern)?;
                last = Instant::now();
            }
            client.submit(vec![pattern.entry(next)])?;
            under_way.push_back(Instant::now());
        }
        if under_way.is_empty() {
            break;
        }
        client.turn(STEP)?;
        let now = Instant::now();
        let epoch = client.configuration().epoch.0;
        progress.tell(now - start, client.acknowledged(), epoch);
        let new = client.acknowledged() - acknowledged;
        if new == 0 {
            if now - last > GONE {
                interrupt.check()?;
            }
            continue;
        }
        acknowledged += new;
        for posted in under_way.drain(..new as usize) {
            latencies.saturating_record((now - posted).as_nanos() as u64);
        }
        let pause = now - last;
        last = now;
        longest = longest.max(pause);
        if pause > options.pause {
            pauses.push(Pause {
                at: now - start,
                length: pause,
                epoch,
            });
        }
    }
    Ok(Seen {
        latencies,
        elapsed: start.elapsed() - stay.map_or(Duration::ZERO, |stay| stay.took),
        pauses,
        longest,
        acknowledged,
        epochs: client.epochs(),
        depth,
    })
}

/// All that was acknowledged is there, at each member. How many places were looked at.
fn compare(client: &mut Client, pattern: &Pattern) -> Result<u64> {
    let records = client.acknowledged();
    let data_at = client.layout().data_at();
    'epochs: loop {
        let epoch = client.configuration().epoch;
        let mut compared = 0;
        for member in 0..client.configuration().chain.len() {
            for place in 0..pattern.places {
                let Some(record) = pattern.last(place, records) else {
                    continue;
                };
                let at = data_at + place * pattern.size as u64;
                let found = match client.read_memory(member, at, pattern.size) {
                    // Members have other places now, or none.
                    Err(_) if client.configuration().epoch != epoch => continue 'epochs,
                    found => found?,
                };
                if found != pattern.bytes(record) {
                    bail!(
                        "record {record} was acknowledged, and member {member} of the chain has something else at byte {at} of its memory"
                    );
                }
                compared += 1;
            }
        }
        if client.configuration().epoch == epoch {
            return Ok(compared);
        }
    }
}

fn tell(options: &ChainBench, seen: &Seen, compared: u64, json: bool) {
    let us = |nanos: u64| nanos as f64 / 1e3;
    let quantile = |part| us(seen.latencies.value_at_quantile(part));
    let rate = seen.acknowledged as f64 / seen.elapsed.as_secs_f64();
    if json {
        let pauses: Vec<_> = (seen.pauses.iter())
            .map(|pause| {
                json!({
                    "at_s": pause.at.as_secs_f64(),
                    "ms": pause.length.as_secs_f64() * 1e3,
                    "epoch": pause.epoch,
                })
            })
            .collect();
        let report = json!({
            "records": seen.acknowledged,
            "depth": seen.depth,
            "seconds": seen.elapsed.as_secs_f64(),
            "records_s": rate,
            "mib_s": rate * options.size.as_u64() as f64 / f64::from(1 << 20),
            "mean_us": seen.latencies.mean() / 1e3,
            "p50_us": quantile(0.5),
            "p95_us": quantile(0.95),
            "p99_us": quantile(0.99),
            "max_us": us(seen.latencies.max()),
            "longest_pause_ms": seen.longest.as_secs_f64() * 1e3,
            "pauses": pauses,
            "epochs": seen.epochs,
            "compared": compared,
        });
        return println!("{report}");
    }
    let mut table = show::table(&[
        "records",
        "per second",
        "p50",
        "p95",
        "p99",
        "longest",
        "epochs",
    ]);
    let time = |micros: f64| show::time(Duration::from_secs_f64(micros / 1e6));
    table.add_row([
        seen.acknowledged.to_string(),
        format!("{rate:.0}"),
        time(quantile(0.5)),
        time(quantile(0.95)),
        time(quantile(0.99)),
        time(us(seen.latencies.max())),
        seen.epochs.to_string(),
    ]);
    println!("{table}");
    if seen.depth < u64::from(options.depth) {
        println!(
            "{} under way at most: the ring has no room for more of {}",
            seen.depth, options.size
        );
    }
    for pause in &seen.pauses {
        println!(
            "nothing for {} until {} (epoch {})",
            show::time(pause.length),
            show::time(pause.at),
            pause.epoch
        );
    }
    println!("{compared} read back, all as acknowledged");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of each record, and the last record of each place, agree.
    #[test]
    fn places() {
        let pattern = Pattern { size: 9, places: 7 };
        for records in 0..40 {
            let mut last = [None; 7];
            for record in 1..=records {
                let place = pattern.entry(record).offset / 9;
                last[place as usize] = Some(record);
            }
            for place in 0..7 {
                assert_eq!(
                    pattern.last(place, records),
                    last[place as usize],
                    "{records}"
                );
            }
        }
        assert_eq!(pattern.bytes(0x0102), [2, 1, 0, 0, 0, 0, 0, 0, 2]);
    }

    /// What an earlier bench of the same size has left may be written over; what anybody else has written may not.
    #[test]
    fn only_records_are_free() {
        for (size, places) in [(8, 1024), (20, 7), (512, 1024), (512, 1)] {
            let pattern = Pattern { size, places };
            for record in [1, 6, 7, 1023, 1024, 5000, 1 << 40] {
                let (place, bytes) = (record % places, pattern.bytes(record));
                assert!(pattern.is_free(place, &bytes), "{record}");
                assert!(places == 1 || !pattern.is_free((place + 1) % places, &bytes));
            }
            assert!(pattern.is_free(3 % places, &vec![0; size]));
            assert!(!pattern.is_free(0, &vec![b'x'; size]), "text");
        }
        let (pattern, other) = [512, 256].map(|size| Pattern { size, places: 8 }).into();
        let mut torn = pattern.bytes(3);
        torn[511] = 1;
        assert!(!pattern.is_free(3, &torn));
        let of_another_size = [other.bytes(6), other.bytes(7)].concat();
        assert!(!pattern.is_free(3, &of_another_size));
        // Too few bytes to tell a record by.
        let pattern = Pattern { size: 1, places: 8 };
        assert!(pattern.is_free(1, &[0]) && !pattern.is_free(1, &[1]));
    }
}
