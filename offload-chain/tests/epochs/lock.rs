//! Locks by gCAS, and reads that look at them (I12, I13; docs/log.md).

use crate::support::local::Local;
use offload_chain::group::Primitives;
use offload_chain::lock::{LockError, LockEvent, LockId, Locks, Slot, Word};
use offload_chain::log::{Header, Layout, ReadMode, format};
use offload_chain::read::{Object, Read, ReadEvent, Source};

const LOCK: LockId = LockId(1);

fn layout() -> Layout {
    Layout::new(4, 256, 64).unwrap()
}

fn group() -> Local {
    let mut group = Local::new(3, layout().size(), 16);
    for member in &mut group.members {
        format(member, &Header::first(layout(), 1, true)).unwrap();
    }
    group
}

fn locks(slot: u32) -> Locks {
    Locks::new(layout(), Slot::new(slot).unwrap())
}

/// Runs everything under way; what these locks learn of it.
fn events(group: &mut Local, locks: &mut Locks) -> Vec<LockEvent> {
    let mut events = Vec::new();
    loop {
        group.run();
        let Some((flight, result)) = group.poll() else {
            return events;
        };
        events.extend(locks.handle(group, flight, &result));
    }
}

fn word(group: &Local, member: usize) -> Word {
    let at = layout().lock_at(LOCK.0) as usize;
    let bytes = &group.members[member].bytes()[at..at + 8];
    Word(u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn put(group: &mut Local, member: usize, word: Word) {
    let at = layout().lock_at(LOCK.0) as usize;
    group.members[member].put(at, &word.0.to_le_bytes());
}

#[test]
fn a_writer_excludes_others_and_every_turn_has_a_token() {
    let (mut group, mut a, mut b) = (group(), locks(1), locks(2));
    a.wr_lock(&mut group, LOCK).unwrap();
    assert_eq!(a.wr_lock(&mut group, LOCK), Err(LockError::Busy(1)));
    assert_eq!(a.wr_lock(&mut group, LockId(4)), Err(LockError::NoLock(4)));
    assert_eq!(events(&mut group, &mut a), [LockEvent::WrLocked(LOCK, 1)]);
    assert_eq!(a.token(LOCK), Some(1));

    b.wr_lock(&mut group, LOCK).unwrap();
    let found = Word::written(1, Slot::new(1).unwrap());
    let refused = LockEvent::WrRefused(LOCK, vec![found; 3]);
    assert_eq!(events(&mut group, &mut b), [refused]);
    assert_eq!(b.wr_unlock(&mut group, LOCK), Err(LockError::NotHeld(1)));

    a.wr_unlock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut a), [LockEvent::WrUnlocked(LOCK)]);
    b.wr_lock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut b), [LockEvent::WrLocked(LOCK, 2)]);
}

/// Undo by the inverse map: what was taken at some members is given back there, and nowhere else.
#[test]
fn a_writer_that_gets_some_gives_them_back() {
    let (mut group, mut a, mut b) = (group(), locks(1), locks(2));
    b.rd_lock(&mut group, LOCK, 1).unwrap();
    assert_eq!(events(&mut group, &mut b), [LockEvent::RdLocked(LOCK, 1)]);
    a.wr_lock(&mut group, LOCK).unwrap();
    let reader = Word::free(0).with_reader(Slot::new(2).unwrap());
    let found = vec![Word::free(0), reader, Word::free(0)];
    let refused = LockEvent::WrRefused(LOCK, found.clone());
    assert_eq!(events(&mut group, &mut a), [refused]);
    for (member, found) in found.iter().enumerate() {
        assert_eq!(word(&group, member), *found);
    }
    b.rd_unlock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut b), [LockEvent::RdUnlocked(LOCK, 1)]);
    a.wr_lock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut a), [LockEvent::WrLocked(LOCK, 1)]);
    b.rd_lock(&mut group, LOCK, 2).unwrap();
    let written = Word::written(1, Slot::new(1).unwrap());
    let refused = LockEvent::RdRefused(LOCK, 2, written);
    assert_eq!(events(&mut group, &mut b), [refused]);
}

/// I16, I18: a group that takes no more for a moment delays what is to be given back, and nothing is left taken.
#[test]
fn a_group_that_is_full_delays_the_next_step() {
    let mut group = Local::new(3, layout().size(), 1);
    for member in &mut group.members {
        format(member, &Header::first(layout(), 1, true)).unwrap();
    }
    let (mut a, mut b, mut c) = (locks(1), locks(2), locks(3));
    b.rd_lock(&mut group, LOCK, 1).unwrap();
    assert_eq!(events(&mut group, &mut b), [LockEvent::RdLocked(LOCK, 1)]);
    a.wr_lock(&mut group, LOCK).unwrap();
    group.run();
    let (flight, result) = group.poll().unwrap();
    c.rd_lock(&mut group, LockId(2), 0).unwrap();
    assert_eq!(a.handle(&mut group, flight, &result), None);
    assert_eq!(a.retry(&mut group), []);
    let mine = Word::written(1, Slot::new(1).unwrap());
    assert_eq!(word(&group, 0), mine);
    assert!(a.is_busy() && a.token(LOCK).is_none());
    assert_eq!(a.wr_lock(&mut group, LOCK), Err(LockError::Busy(1)));

    assert_eq!(
        events(&mut group, &mut c),
        [LockEvent::RdLocked(LockId(2), 0)]
    );
    assert_eq!(a.retry(&mut group), []);
    let refused = events(&mut group, &mut a);
    assert!(
        matches!(refused[..], [LockEvent::WrRefused(LOCK, _)]),
        "{refused:?}"
    );
    assert_eq!(
        [0, 2].map(|member| word(&group, member)),
        [Word::free(0); 2]
    );
    assert!(a.is_idle() && !a.is_busy());
}

/// Readers do not disturb each other, and find their way past other bits and newer generations.
#[test]
fn readers_share() {
    let (mut group, mut a, mut b) = (group(), locks(1), locks(31));
    for member in 0..3 {
        put(&mut group, member, Word::free(9));
    }
    for reader in [&mut a, &mut b] {
        reader.rd_lock(&mut group, LOCK, 0).unwrap();
        assert_eq!(events(&mut group, reader), [LockEvent::RdLocked(LOCK, 0)]);
    }
    assert_eq!(word(&group, 0).readers(), 1 << 31 | 1 << 1);
    assert_eq!(word(&group, 1).readers(), 0);
    a.rd_unlock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut a), [LockEvent::RdUnlocked(LOCK, 0)]);
    assert_eq!(word(&group, 0).readers(), 1 << 31);
    // A new epoch cleared it.
    put(&mut group, 0, Word::free(9));
    b.rd_unlock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut b), [LockEvent::Lost(LOCK)]);
}

/// I12: in a new epoch the words say what a slot has, not its memory.
#[test]
fn what_a_new_epoch_left_is_adopted() {
    let (mut group, mut a) = (group(), locks(1));
    a.wr_lock(&mut group, LOCK).unwrap();
    group.run();
    group.break_off();
    let (flight, result) = group.poll().unwrap();
    let event = a.handle(&mut group, flight, &result);
    assert_eq!(event, Some(LockEvent::Broken));
    group.reopen();
    let words: Vec<Word> = (0..4)
        .map(|lock| if lock == 1 { word(&group, 0) } else { Word(0) })
        .collect();
    assert_eq!(a.adopt(&words), [LOCK], "it had taken effect");
    a.wr_unlock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut a), [LockEvent::WrUnlocked(LOCK)]);
    assert_eq!(a.adopt(&[Word(0); 4]), []);
    assert_eq!(a.token(LOCK), None);
}

/// K1: what a group that breaks between taking and giving back has still taken is this slot's, until a new epoch says otherwise: who
/// took it for free would give the slot back, and with no slot to be fenced nobody would ever get the lock.
#[test]
fn what_a_broken_group_has_not_taken_back_is_still_had() {
    let (mut group, mut a, mut b) = (group(), locks(1), locks(2));
    b.rd_lock(&mut group, LOCK, 1).unwrap();
    assert_eq!(events(&mut group, &mut b), [LockEvent::RdLocked(LOCK, 1)]);
    a.wr_lock(&mut group, LOCK).unwrap();
    group.run();
    let (flight, result) = group.poll().unwrap();
    assert!(result.is_ok());
    // Nothing is under way then: there is no outcome that would tell.
    group.break_off();
    let event = a.handle(&mut group, flight, &result);
    assert_eq!(event, Some(LockEvent::Broken));
    let mine = Word::written(1, Slot::new(1).unwrap());
    assert_eq!(word(&group, 0), mine);
    assert!(!a.is_idle() && !a.is_free(LOCK), "it may be its own");
    assert!(!a.is_busy(), "nothing comes of it in this epoch");
    assert_eq!(a.token(LOCK), None, "nor is it known to be");
    assert_eq!(a.wr_lock(&mut group, LOCK), Err(LockError::Busy(1)));
    assert_eq!(a.retry(&mut group), []);

    // The source was one that had it.
    group.reopen();
    for member in 0..3 {
        put(&mut group, member, mine);
    }
    assert_eq!(a.adopt(&[Word(0), mine, Word(0), Word(0)]), [LOCK]);
    a.wr_unlock(&mut group, LOCK).unwrap();
    assert_eq!(events(&mut group, &mut a), [LockEvent::WrUnlocked(LOCK)]);
    assert!(a.is_idle());
}

/// K2: the same for a reader that finds another word when it gives its bit back.
#[test]
fn a_bit_that_a_broken_group_has_not_taken_back_is_still_had() {
    let (mut group, mut a, mut b) = (group(), locks(1), locks(2));
    for reader in [&mut a, &mut b] {
        reader.rd_lock(&mut group, LOCK, 0).unwrap();
        assert_eq!(events(&mut group, reader), [LockEvent::RdLocked(LOCK, 0)]);
    }
    a.rd_unlock(&mut group, LOCK).unwrap();
    group.run();
    let (flight, result) = group.poll().unwrap();
    group.break_off();
    let event = a.handle(&mut group, flight, &result);
    assert_eq!(event, Some(LockEvent::Broken));
    assert_eq!(word(&group, 0).readers(), 1 << 2 | 1 << 1);
    assert!(!a.is_idle() && !a.is_free(LOCK));
    group.reopen();
    assert_eq!(a.adopt(&[Word(0); 4]), []);
    assert!(a.is_idle());
}

fn object() -> Object {
    Object {
        offset: 8,
        length: 8,
        lock: LOCK,
        whole: |bytes| bytes.iter().all(|byte| *byte == bytes[0]),
    }
}

fn set(group: &mut Local, member: usize, byte: u8) {
    let at = layout().data_at() as usize + 8;
    group.members[member].put(at, &[byte; 8]);
}

fn read(group: &mut Local, member: usize, mode: ReadMode, chain: bool) -> ReadEvent {
    let mut read = Read::start(group, layout(), object(), member, mode, chain).unwrap();
    loop {
        group.run();
        let (flight, result) = group.poll().expect("the read ends");
        if let Some(event) = read.handle(group, flight, &result) {
            return event;
        }
    }
}

/// I13: clean objects are answered where they are asked for; dirty ones by the tail, if what it has is whole.
#[test]
fn clean_here_or_from_the_tail() {
    let mut group = group();
    for member in 0..3 {
        set(&mut group, member, 1);
    }
    let clean = read(&mut group, 0, ReadMode::Clean, true);
    assert_eq!(clean, ReadEvent::Done(vec![1; 8], Source::Clean(0)));
    for member in 0..3 {
        put(&mut group, member, Word::written(1, Slot::new(3).unwrap()));
    }
    set(&mut group, 0, 2);
    let dirty = read(&mut group, 0, ReadMode::Clean, true);
    assert_eq!(dirty, ReadEvent::Done(vec![1; 8], Source::Tail));
    let any = read(&mut group, 0, ReadMode::Eventual, true);
    assert_eq!(any, ReadEvent::Done(vec![2; 8], Source::Eventual(0)));
    let at = layout().data_at() as usize + 8;
    group.members[2].put(at, &[2; 3]);
    assert_eq!(read(&mut group, 0, ReadMode::Clean, true), ReadEvent::Again);
    assert_eq!(
        read(&mut group, 2, ReadMode::Eventual, true),
        ReadEvent::Again
    );
    set(&mut group, 2, 1);
    assert_eq!(
        read(&mut group, 0, ReadMode::Clean, false),
        ReadEvent::Again,
        "a star"
    );
}

/// A writer that comes and goes between the READs of the word is noticed by the generation.
#[test]
fn a_writer_in_between_is_noticed() {
    let mut group = group();
    let (o, mode) = (object(), ReadMode::Clean);
    let mut read = Read::start(&mut group, layout(), o, 0, mode, true).unwrap();
    group.run_oldest();
    let (first, result) = group.poll().unwrap();
    assert_eq!(read.handle(&mut group, first, &result), None);
    put(&mut group, 0, Word::free(1));
    group.run();
    while let Some((flight, result)) = group.poll() {
        assert_eq!(
            read.handle(&mut group, flight, &result),
            None,
            "asks the tail"
        );
    }
}
