//! The log on memory that loses power between any two steps (I1, I6, I14, I15; docs/log.md).

use std::collections::BTreeMap;

use crate::support::local::Local;
use crate::support::mem::Mem;
use crate::support::rng::Rng;
use offload_chain::Epoch;
use offload_chain::log::{
    AppendError, Entry, Header, Layout, Log, LogEvent, Preset, RecoverError, find, find_header,
    format, initialize, recover,
};
use offload_chain::memory::{Memory, MemoryError};
use offload_chain::planted::Bug;

use offload_chain::group::{Flight, Primitive, Primitives};

const SALT: u64 = 0x5eed;
const DATA: u64 = 256;

fn layout() -> Layout {
    Layout::new(2, 1024, DATA).unwrap()
}

fn group(members: usize) -> Local {
    let mut group = Local::new(members, layout().size(), 64);
    for member in &mut group.members {
        format(member, &Header::first(layout(), SALT, true)).unwrap();
    }
    group
}

fn events(group: &mut Local, log: &mut Log) -> Vec<LogEvent> {
    let mut events = Vec::new();
    while let Some((flight, result)) = group.poll() {
        events.extend(log.handle(group, flight, &result));
    }
    events
}

fn data(member: &Mem) -> &[u8] {
    &member.bytes()[layout().data_at() as usize..]
}

fn entry(offset: u64, byte: u8, length: usize) -> Entry {
    Entry {
        offset,
        bytes: vec![byte; length],
    }
}

#[test]
fn append_execute_advance() {
    let mut group = group(3);
    let header = find_header(&group.members[2]).unwrap();
    let mut log = Log::open(header, Preset::STRICT);
    let entries = [entry(0, 1, 5), entry(100, 2, 16)];
    assert_eq!(log.append(&mut group, 7, &entries), Ok(1));
    assert_eq!(log.append(&mut group, 7, &[entry(3, 3, 1)]), Ok(2));
    group.run();
    let appended = [LogEvent::Appended(1), LogEvent::Appended(2)];
    assert_eq!(events(&mut group, &mut log), appended);
    assert!(data(&group.members[0]).iter().all(|byte| *byte == 0));

    log.execute_and_advance(&mut group);
    group.run();
    let executed = [LogEvent::Executed(1), LogEvent::Executed(2)];
    assert_eq!(events(&mut group, &mut log), executed);
    group.run();
    assert_eq!(events(&mut group, &mut log), [LogEvent::Truncated(2)]);
    group.run();
    assert_eq!(events(&mut group, &mut log), [LogEvent::Truncated(3)]);
    assert!(log.is_idle());
    for member in &group.members {
        assert_eq!(data(member)[..6], [1, 1, 1, 3, 1, 0]);
        assert_eq!(data(member)[100..117], [&[2; 16][..], &[0]].concat());
        let found = find(member, None).unwrap();
        assert_eq!((found.records.len(), found.sequence), (0, 3));
    }
}

/// `initialize` over the group does what `format` does at home (I15).
#[test]
fn initialized_from_afar() {
    let header = Header::first(layout(), SALT, true);
    let mut group = Local::new(2, layout().size(), 64);
    let flights = initialize(&mut group, &header).unwrap();
    group.run();
    for flight in flights {
        assert_eq!(group.poll().unwrap().0, flight);
    }
    let mut home = Mem::new(layout().size());
    format(&mut home, &header).unwrap();
    assert_eq!(group.members[1].bytes(), home.bytes());
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut group = group(1);
    let mut log = Log::open(find_header(&group.members[0]).unwrap(), Preset::STRICT);
    let long = log.append(&mut group, 0, &[entry(0, 1, 256), entry(0, 1, 256)]);
    assert_eq!(
        long,
        Err(AppendError::Long {
            bytes: 640,
            max: 512
        })
    );
    for wrong in [entry(256, 1, 1), entry(u64::MAX, 1, 1), entry(0, 1, 0)] {
        let refused = log.append(&mut group, 0, &[wrong]);
        assert!(matches!(refused, Err(AppendError::Entries(_))));
    }
    assert!(matches!(
        log.append(&mut group, 0, &[]),
        Err(AppendError::Entries(_))
    ));
    let mut taken = 0;
    while log.append(&mut group, 0, &[entry(0, 1, 100)]).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 5, "192 bytes each, of 1024");
    group.run();
    events(&mut group, &mut log);
    let full = log.append(&mut group, 0, &[entry(0, 1, 100)]);
    assert_eq!(full, Err(AppendError::Full));
    log.execute_and_advance(&mut group);
    while !log.is_idle() {
        group.run();
        events(&mut group, &mut log);
    }
    assert_eq!(log.append(&mut group, 0, &[entry(0, 1, 100)]), Ok(6));
    group.break_off();
    assert_eq!(events(&mut group, &mut log), vec![LogEvent::Broken; 2]);
    let refused = log.append(&mut group, 0, &[entry(0, 1, 1)]);
    assert!(matches!(refused, Err(AppendError::Group(_))));
}

/// I1: a record that is longer than a gWRITE can be goes in parts, as the group takes them, and is acknowledged with the last; nothing
/// is appended in between.
#[test]
fn a_long_record_goes_in_parts() {
    let mut group = Local::new(2, layout().size(), 3);
    for member in &mut group.members {
        format(member, &Header::first(layout(), SALT, true)).unwrap();
    }
    group.longest = 100;
    let mut log = Log::open(find_header(&group.members[0]).unwrap(), Preset::STRICT);
    let long = [entry(0, 1, 200), entry(200, 2, 56)];
    assert_eq!(log.append(&mut group, 0, &long), Ok(1));
    let short = [entry(100, 3, 1)];
    let refused = log.append(&mut group, 0, &short);
    assert_eq!(refused, Err(AppendError::Full));
    group.run();
    assert_eq!(events(&mut group, &mut log), [], "its end is not posted");
    assert!(!log.is_quiet());
    for member in &group.members {
        assert_eq!(find(member, None).unwrap().sequence, 1);
    }
    assert_eq!(log.append(&mut group, 0, &short), Ok(2));
    group.run();
    let appended = [LogEvent::Appended(1), LogEvent::Appended(2)];
    assert_eq!(events(&mut group, &mut log), appended);
    for member in &mut group.members {
        let found = recover(member, Epoch(1), None, None).unwrap();
        assert_eq!(found.records.len(), 2);
        let expected = [&[1; 100][..], &[3], &[1; 99], &[2; 56]].concat();
        assert_eq!(data(member), expected);
    }
}

/// Without log processing nothing is copied, and truncation is the caller's.
#[test]
fn the_replicated_preset_leaves_the_data_alone() {
    let mut group = Local::new(2, layout().size(), 64);
    for member in &mut group.members {
        format(member, &Header::first(layout(), SALT, false)).unwrap();
    }
    let mut log = Log::open(find_header(&group.members[0]).unwrap(), Preset::REPLICATED);
    for byte in 1..4 {
        log.append(&mut group, 0, &[entry(0, byte, 8)]).unwrap();
    }
    group.run();
    events(&mut group, &mut log);
    log.execute_and_advance(&mut group);
    assert!(!group.step(&mut Rng::new(0)), "nothing to carry out");
    log.truncate(&mut group, 3);
    group.run();
    assert_eq!(events(&mut group, &mut log), [LogEvent::Truncated(3)]);
    let found = recover(&mut group.members[1], Epoch(1), None, None).unwrap();
    assert_eq!(found.records.len(), 1);
    assert!(data(&group.members[1]).iter().all(|byte| *byte == 0));
}

/// A truncation for which the group has no room when it is asked for happens when it has, without being asked for again.
#[test]
fn a_truncation_waits_for_room() {
    for asks_again in [false, true] {
        let mut group = Local::new(2, layout().size(), 2);
        for member in &mut group.members {
            format(member, &Header::first(layout(), SALT, false)).unwrap();
        }
        let header = find_header(&group.members[0]).unwrap();
        let mut log = Log::open(header, Preset::REPLICATED);
        for byte in 1..3 {
            log.append(&mut group, 0, &[entry(0, byte, 8)]).unwrap();
        }
        group.run();
        events(&mut group, &mut log);
        // The group is full: of this log's, or of somebody else's.
        let others = Primitive::Flush;
        let mut full: Vec<Flight> = match asks_again {
            true => (0..2)
                .map(|_| group.post(others.clone()).unwrap())
                .collect(),
            false => Vec::new(),
        };
        for byte in 3..5 {
            let appended = log.append(&mut group, 0, &[entry(0, byte, 8)]);
            assert_eq!(appended.is_err(), asks_again);
        }
        log.truncate(&mut group, 2);
        group.run();
        if asks_again {
            full.retain(|own| group.poll().unwrap().0 != *own);
            assert!(full.is_empty());
            log.execute_and_advance(&mut group);
        }
        let mut seen = Vec::new();
        while !log.is_quiet() {
            seen.extend(events(&mut group, &mut log));
            group.run();
        }
        assert_eq!(seen.last(), Some(&LogEvent::Truncated(2)), "{seen:?}");
    }
}

/// In one of three lives records go in parts.
fn longest_write(seed: u64) -> u64 {
    match seed % 3 {
        0 => 72,
        _ => u64::MAX,
    }
}

/// What went wrong in one life of a log that is not carried out.
fn replicated_lives(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut group = Local::new(2, layout().size(), 64);
    group.longest = longest_write(seed);
    for member in &mut group.members {
        format(member, &Header::first(layout(), SALT, false)).unwrap();
    }
    // Records by number: what was ever posted, and what is not given up.
    let mut posted: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let (mut acknowledged, mut truncated) = (0, 1);
    for epoch in 1..7 {
        let found = find(&group.members[0], None).map_err(|error| error.to_string())?;
        let mut log = Log::resume(&found, Preset::REPLICATED);
        posted.retain(|sequence, _| *sequence < found.sequence);
        for _ in 0..rng.range(5, 150) {
            match rng.below(6) {
                0 | 1 => {
                    let bytes = vec![rng.next() as u8; *rng.pick(&[1, 8, 60, 130])];
                    let entry = Entry {
                        offset: 0,
                        bytes: bytes.clone(),
                    };
                    if let Ok(sequence) = log.append(&mut group, 0, &[entry]) {
                        posted.insert(sequence, bytes);
                    }
                }
                2 if rng.permille(400) => {
                    let before = rng.range(log.begins(), log.sequence() + 1);
                    log.truncate(&mut group, before);
                }
                _ => {
                    group.step(&mut rng);
                }
            }
            for event in events(&mut group, &mut log) {
                match event {
                    LogEvent::Appended(sequence) => acknowledged = sequence,
                    LogEvent::Truncated(before) => truncated = truncated.max(before),
                    _ => {}
                }
            }
        }
        group.reopen();
        for member in &mut group.members {
            member.cut(&mut rng);
        }
        // The longest is the source: the other gets its ring and its header.
        let ends = [0, 1].map(|at| find(&group.members[at], bug).unwrap().sequence);
        let source = usize::from(ends[1] > ends[0]);
        let log_bytes = group.members[source].bytes()[..layout().data_at() as usize].to_vec();
        group.members[1 - source].put(0, &log_bytes);
        group.members[1 - source].flush_all();
        for member in &mut group.members {
            // Recovery is cut as well, and starts again.
            let mut trial = member.clone();
            recover(&mut trial, Epoch(epoch), None, bug).map_err(|error| error.to_string())?;
            for _ in 0..rng.below(3) {
                let mut cut = member.clone();
                let ring = layout().ring_at() as usize..layout().data_at() as usize;
                let erased = trial.bytes()[ring.clone()].to_vec();
                cut.put(ring.start, &erased);
                cut.cut(&mut rng);
                *member = cut;
            }
            recover(member, Epoch(epoch), None, bug).map_err(|error| error.to_string())?;
            let found = find(member, bug).map_err(|error| error.to_string())?;
            let first = found.header.sequence;
            if found.sequence <= acknowledged {
                return Err(format!(
                    "{acknowledged} is lost: the log ends at {}",
                    found.sequence
                ));
            }
            if first < truncated {
                return Err(format!(
                    "the log begins at {first}, and was truncated to {truncated}"
                ));
            }
            for (at, record) in &found.records {
                let copy = record.copies[0];
                let start = (at + copy.from) as usize;
                let bytes = &member.bytes()[start..start + copy.length as usize];
                if posted.get(&record.sequence).map(Vec::as_slice) != Some(bytes) {
                    return Err(format!("record {} is not what was posted", record.sequence));
                }
            }
        }
        if group.members[0].bytes() != group.members[1].bytes() {
            return Err("the members differ".into());
        }
    }
    Ok(())
}

/// I1, I6, I14, I15, for a log that is not carried out: records outlive any number of epochs and cuts, until they are truncated, and
/// nothing stale comes back.
#[test]
fn records_that_are_not_carried_out_stay() {
    for seed in 0..400 {
        replicated_lives(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// I16: what is erased already is not written again: a large ring is nearly all of that, in each epoch. And who copies from there has nothing more
/// to copy.
#[test]
fn what_is_erased_is_left_alone() {
    let layout = Layout::new(1, 1 << 20, 64).unwrap();
    let ring = layout.ring_at() as usize..layout.data_at() as usize;
    let mut memory = Mem::new(layout.size());
    memory.put(ring.start, &vec![7; 300_000]);
    memory.put(ring.end - 1, &[7]);
    format(&mut memory, &Header::first(layout, SALT, false)).unwrap();
    recover(&mut memory, Epoch(1), None, None).unwrap();
    assert!(memory.bytes()[ring.clone()].iter().all(|byte| *byte == 0));
    assert!(memory.dirty_words(ring.start, ring.len()).is_empty());
    let before = memory.generation();
    recover(&mut memory, Epoch(2), None, None).unwrap();
    assert_eq!(memory.changed_since(before), [0, 1], "headers");
}

/// M12: the test above would notice if the rest of the ring were not erased.
#[test]
fn stale_records_that_are_not_erased_are_found() {
    let noticed = |seed: &u64| replicated_lives(*seed, Some(Bug::FreeNotErased)).is_err();
    assert!((0..4000).any(|seed| noticed(&seed)));
}

#[test]
fn memory_of_nobody_is_not_recovered() {
    let mut memory = Mem::new(layout().size());
    assert_eq!(
        recover(&mut memory, Epoch(1), None, None),
        Err(RecoverError::NoHeader)
    );
    format(&mut memory, &Header::first(layout(), SALT, true)).unwrap();
    let mut small = Mem::new(layout().size() - 8);
    small.put(0, &memory.bytes()[..layout().size() as usize - 8]);
    let refused = recover(&mut small, Epoch(1), None, None);
    assert!(
        matches!(refused, Err(RecoverError::Size { .. })),
        "{refused:?}"
    );
}

/// What went wrong in one life of many power cuts.
fn lives(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut group = group(2);
    group.longest = longest_write(seed);
    let mut epoch = Epoch(0);
    // Records by sequence number: what is known to be durable, and what was ever posted.
    let mut posted: BTreeMap<u64, Entry> = BTreeMap::new();
    let mut acknowledged = 0;
    // The data as of a sequence number that has been recovered.
    let mut base = vec![0; DATA as usize];
    for _ in 0..6 {
        let header = find_header(&group.members[0]).map_err(|error| error.to_string())?;
        let first = header.sequence;
        let mut log = Log::open(header, Preset::STRICT);
        log.plant(bug);
        posted.clear();
        for _ in 0..rng.range(5, 150) {
            match rng.below(6) {
                0 | 1 => {
                    let length = *rng.pick(&[1, 8, 60, 130]);
                    let offset = rng.below(DATA - length);
                    let entry = entry(offset, rng.next() as u8, length as usize);
                    if let Ok(sequence) = log.append(&mut group, 0, std::slice::from_ref(&entry)) {
                        posted.insert(sequence, entry);
                    }
                }
                2 if rng.permille(300) => log.execute_and_advance(&mut group),
                _ => {
                    group.step(&mut rng);
                }
            }
            for event in events(&mut group, &mut log) {
                if let LogEvent::Appended(sequence) = event {
                    acknowledged = sequence;
                }
            }
        }
        group.reopen();
        epoch = epoch.next();
        let mut ends = Vec::new();
        for member in &mut group.members {
            member.cut(&mut rng);
            let found = find(member, bug).map_err(|error| error.to_string())?;
            ends.push(found.sequence);
            if found.sequence <= acknowledged {
                return Err(format!(
                    "{acknowledged} is lost, the log ends at {}",
                    found.sequence
                ));
            }
            if found.sequence > first + posted.len() as u64 {
                return Err("there is more than was posted".into());
            }
        }
        // The longest is the source: the other gets its ring, keeps its mark, recovers on its own.
        let source = usize::from(ends[1] > ends[0]);
        let ring = layout().ring_at() as usize;
        let ring = ring..ring + layout().ring_bytes() as usize;
        let bytes = group.members[source].bytes()[ring.clone()].to_vec();
        group.members[1 - source].put(ring.start, &bytes);
        group.members[1 - source].flush_all();
        for (sequence, entry) in posted.range(..ends[source]) {
            let at = entry.offset as usize;
            base[at..at + entry.bytes.len()].copy_from_slice(&entry.bytes);
            acknowledged = acknowledged.max(*sequence);
        }
        for member in &mut group.members {
            // Recovery is cut as well, and starts again.
            let mut trial = member.clone();
            recover(&mut trial, epoch, None, bug).map_err(|error| error.to_string())?;
            for _ in 0..rng.below(3) {
                let mut cut = member.clone();
                let copied = trial.bytes()[ring.end..].to_vec();
                cut.put(ring.end, &copied);
                cut.cut(&mut rng);
                *member = cut;
            }
            recover(member, epoch, None, bug).map_err(|error| error.to_string())?;
            if data(member) != base {
                return Err("the data are not what the log said".into());
            }
        }
        if group.members[0].bytes() != group.members[1].bytes() {
            return Err("the members differ".into());
        }
    }
    Ok(())
}

/// I1, I6, I14, I15: whatever is cut, what was acknowledged is found, nothing else than what was posted in a prefix is, and
/// members end alike.
#[test]
fn power_cuts_at_any_step() {
    for seed in 0..400 {
        lives(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Memory whose flush fails after some that did not, with power gone then.
struct Flushes<'a> {
    mem: &'a mut Mem,
    rng: &'a mut Rng,
    left: usize,
}

impl Memory for Flushes<'_> {
    fn size(&self) -> u64 {
        self.mem.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        self.mem.read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.mem.write(offset, from)
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        if self.left == 0 {
            self.mem.cut(self.rng);
            return Err(MemoryError::Device("power is gone".into()));
        }
        self.left -= 1;
        self.mem.flush()
    }

    fn generation(&self) -> u64 {
        self.mem.generation()
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        self.mem.changed_since(generation)
    }
}

/// A member that did not stop: the last record it has is visible only when it recovers, and power is cut at one of recovery's flushes.
fn continuous(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut group = group(1);
    let mut log = Log::open(find_header(&group.members[0]).unwrap(), Preset::STRICT);
    log.append(&mut group, 0, &[entry(0, 1, 64)]).unwrap();
    group.run();
    let visible = Preset::VOLATILE;
    let mut log = Log::resume(&find(&group.members[0], None).unwrap(), visible);
    log.append(&mut group, 0, &[entry(32, 2, 64)]).unwrap();
    group.run();
    let member = &mut group.members[0];
    let mut flushes = Flushes {
        mem: &mut *member,
        left: rng.below(4) as usize,
        rng: &mut rng,
    };
    let cut = recover(&mut flushes, Epoch(1), None, bug).is_err();
    let found = match cut {
        true => recover(member, Epoch(1), None, bug).map_err(|error| error.to_string())?,
        false => find(member, None).map_err(|error| error.to_string())?,
    };
    let mut expected = vec![0; DATA as usize];
    expected[..64].fill(1);
    if found.sequence > 2 {
        expected[32..96].fill(2);
    }
    match data(member) == expected {
        true => Ok(()),
        false => Err(format!(
            "the log ends at {}, the data do not",
            found.sequence
        )),
    }
}

/// I1, I6, I13: what a cut takes out of the log has not been carried out.
#[test]
fn only_what_is_durable_is_carried_out() {
    for seed in 0..400 {
        continuous(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    let noticed = |seed: &u64| continuous(*seed, Some(Bug::RingNotFlushed)).is_err();
    assert!((0..400).any(|seed| noticed(&seed)));
}

/// A client to which visible is enough, in a group that persists. One member loses power and what was not on media, comes back, and
/// vouches by its header: it copies the ring of the other, which never stopped, and recovers from its own mark.
fn one_is_cut(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut group = group(2);
    for epoch in 1..7 {
        let header = find_header(&group.members[0]).map_err(|error| error.to_string())?;
        let mut log = Log::open(header, Preset::VOLATILE);
        log.plant(bug);
        for _ in 0..rng.range(5, 150) {
            match rng.below(6) {
                0 => {
                    let length = *rng.pick(&[1, 8, 60, 130]);
                    let entry = entry(rng.below(DATA - length), rng.next() as u8, length as usize);
                    let _ = log.append(&mut group, 0, &[entry]);
                }
                1 => log.execute_and_advance(&mut group),
                _ => {
                    group.step(&mut rng);
                }
            }
            events(&mut group, &mut log);
        }
        group.reopen();
        let cut = rng.below(2) as usize;
        group.members[cut].cut(&mut rng);
        let ring = layout().ring_at() as usize..layout().data_at() as usize;
        let bytes = group.members[1 - cut].bytes()[ring.clone()].to_vec();
        group.members[cut].put(ring.start, &bytes);
        let end = find(&group.members[1 - cut], None).map_err(|error| error.to_string())?;
        for member in &mut group.members {
            recover(member, Epoch(epoch), Some(end.sequence), None)
                .map_err(|error| error.to_string())?;
        }
        if group.members[0].bytes() != group.members[1].bytes() {
            return Err("the members differ".into());
        }
    }
    Ok(())
}

/// I13, I15: what is only visible outlives the loss of one member, whatever of it that member's media had: its header vouches for no
/// copies that they had not.
#[test]
fn a_mark_vouches_for_what_is_on_media() {
    for seed in 0..400 {
        one_is_cut(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    let noticed = |seed: &u64| one_is_cut(*seed, Some(Bug::MarkNotFlushed)).is_err();
    assert!((0..400).any(|seed| noticed(&seed)));
}

/// A log that is not carried out, of a client to which visible is enough after one to which it is not. The later one gives up two records
/// of four, uses their space again, and all power is gone.
fn truncated_visibly(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut group = Local::new(1, layout().size(), 64);
    format(&mut group.members[0], &Header::first(layout(), SALT, false)).unwrap();
    let mut log = Log::open(find_header(&group.members[0]).unwrap(), Preset::REPLICATED);
    for byte in 1..5 {
        let record = [entry(0, byte, 100)];
        log.append(&mut group, 0, &record).unwrap();
    }
    group.run();
    let acknowledged = (1..5).map(LogEvent::Appended).collect::<Vec<_>>();
    assert_eq!(events(&mut group, &mut log), acknowledged);
    let visible = Preset {
        executes: false,
        ..Preset::VOLATILE
    };
    let mut log = Log::resume(&find(&group.members[0], None).unwrap(), visible);
    log.plant(bug);
    log.truncate(&mut group, 3);
    group.run();
    assert_eq!(events(&mut group, &mut log), [LogEvent::Truncated(3)]);
    while log.append(&mut group, 0, &[entry(0, 9, 100)]).is_ok() {}
    group.run();
    group.members[0].cut(&mut rng);
    let found = find(&group.members[0], None).map_err(|error| error.to_string())?;
    match (found.header.sequence, found.sequence) {
        (3, 5..) => Ok(()),
        (begins, end) => Err(format!("the log is from {begins} to {end}")),
    }
}

/// I1: what is durable stays, whoever gives up other records later: their space is not used again before media have that.
#[test]
fn a_visible_truncation_loses_nothing_durable() {
    for seed in 0..400 {
        truncated_visibly(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    let noticed = |seed: &u64| truncated_visibly(*seed, Some(Bug::MarkNotFlushed)).is_err();
    assert!((0..400).any(|seed| noticed(&seed)));
}

/// M12: the test above would notice.
#[test]
fn planted_bugs_are_found() {
    for bug in [
        Bug::AdvanceBeforeCopy,
        Bug::StaleRecordAccepted,
        Bug::TornRecordAccepted,
    ] {
        let found = (0..400).find(|seed| lives(*seed, Some(bug)).is_err());
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}
