//! A device of an array goes at a chosen moment, and one completion follows the other by hand.
//!
//! Defends: every call is answered, once, also while the loss is being recorded (I18); what was lost before it was
//! durable is told under whatever name it has by then (I1).

use crate::by_hand::{PORT, Rig};
use crate::common::grain;
use ftl::{
    AtomicBatch, DurableError, GRAIN_BYTES, GetError, Intent, Lba, LbaRange, MediaError, Token,
};

/// Calls that come while a loss is being recorded are answered when it is, whenever they come between the steps of the
/// recording: those that are durable already, and not told yet, keep nobody from getting the flush it waits for (I18).
#[test]
fn calls_while_it_is_recorded() {
    const CALLS: u64 = 60;
    for (every, syncs) in (1..12).flat_map(|every| [(every, 1), (every, 2), (every, 60)]) {
        let mut rig = Rig::new(1024);
        let written = LbaRange::new(Lba(0), 2000);
        rig.write(written, 1);
        assert_eq!(rig.sync(LbaRange::ALL, Token(1)), Some(Ok(())));
        rig.lose(written);
        let mut sent = 0;
        for turn in 0..4000 {
            if turn % every == 0 && sent < CALLS {
                let (lba, token) = (Lba(5000 + sent), Token(1000 + sent));
                if sent % syncs == 0 {
                    let mut batch = AtomicBatch::new();
                    batch.patch(lba, 0, vec![1, 2, 3]);
                    rig.ftl.commit(PORT, batch, token).expect("accepted");
                } else {
                    let range = LbaRange::new(lba, 1);
                    rig.write(range, 1);
                    rig.ftl.sync(PORT, range, token);
                }
                sent += 1;
            }
            if !rig.turn() && sent == CALLS {
                break;
            }
        }
        rig.drain();
        for n in 0..CALLS {
            let answer = rig.answer(Token(1000 + n));
            let what = format!("one in {every} turns, a batch in {syncs}: call {n}");
            assert_eq!(answer, Some(Ok(())), "{what}");
        }
        rig.ftl.self_check();
    }
}

/// What becomes of the names of grains whose last write is not durable, or was lost before it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renamed {
    Never,
    Remapped,
    Cloned,
    Twice,
}

impl Renamed {
    /// Renames the range; returns the ranges whose grains have the last write of these now.
    fn apply(self, rig: &mut Rig, range: LbaRange) -> Vec<LbaRange> {
        let to = |n: u64| LbaRange::new(Lba(n * 50_000), range.count);
        let mut token = 100;
        let mut rename = |rig: &mut Rig, from: LbaRange, to: LbaRange, moves| {
            token += 1;
            let mut batch = AtomicBatch::new();
            match moves {
                true => batch.remap(from.start, to.start, from.count),
                false => batch.clone_range(from.start, to.start, from.count),
            };
            rig.ftl
                .commit_relaxed(PORT, batch, Token(token))
                .expect("accepted");
            // Nobody asks for a flush.
            rig.drain();
            assert_eq!(rig.answer(Token(token)), Some(Ok(())), "{self:?}: {from:?}");
        };
        match self {
            Self::Never => vec![range],
            Self::Remapped => {
                rename(rig, range, to(1), true);
                vec![to(1)]
            }
            Self::Cloned => {
                rename(rig, range, to(1), false);
                vec![range, to(1)]
            }
            Self::Twice => {
                rename(rig, range, to(1), true);
                rename(rig, to(1), to(2), false);
                vec![to(1), to(2)]
            }
        }
    }
}

/// Grains that were written, left the memory, and were lost before they were durable get other names before the loss or
/// after it. The first sync of each of these tells, and the next one does not; a sync of what no name leads to any more has
/// nothing to tell (I1).
#[test]
fn told_by_any_name() {
    let all = [
        Renamed::Never,
        Renamed::Remapped,
        Renamed::Cloned,
        Renamed::Twice,
    ];
    for (renamed, is_first) in all.into_iter().flat_map(|r| [(r, true), (r, false)]) {
        let what = format!("{renamed:?}, before the loss: {is_first}");
        let mut rig = Rig::new(64);
        let (written, others) = (LbaRange::new(Lba(0), 400), LbaRange::new(Lba(1000), 100));
        rig.write(written, 1);
        rig.age();
        // They take the place in memory.
        rig.write(others, 1);
        rig.age();
        let mut names = vec![written];
        if is_first {
            names = renamed.apply(&mut rig, written);
        }
        rig.lose(names[0]);
        rig.drain();
        // A page that was read is held by its event.
        rig.events.clear();
        if !is_first {
            names = renamed.apply(&mut rig, written);
        }
        let is_gone = !names.contains(&written);
        if is_gone {
            assert_eq!(rig.sync(written, Token(2)), Some(Ok(())), "{what}: source");
        }
        for (n, &name) in names.iter().enumerate() {
            let told = rig.sync(name, Token(10 + n as u64));
            let is_told =
                matches!(told, Some(Err(DurableError::Lost { lba })) if name.contains(lba));
            assert!(is_told, "{what}: {name:?}: {told:?}");
            let again = rig.sync(name, Token(20 + n as u64));
            assert_eq!(again, Some(Ok(())), "{what}: {name:?}");
            let lost = (0..name.count)
                .filter(|&n| rig.get(name.start.offset(n), Intent::Read).is_err())
                .count();
            assert!(lost > 0, "{what}: {name:?} is all there");
        }
        rig.ftl.self_check();
    }
}

/// Data take the name of a grain whose last write was lost: that was of a grain that is gone, and no sync tells (I1).
#[test]
fn a_lost_grain_gives_way() {
    let mut rig = Rig::new(64);
    let (written, others) = (LbaRange::new(Lba(0), 400), LbaRange::new(Lba(1000), 400));
    rig.write(written, 1);
    rig.age();
    rig.write(others, 1);
    rig.age();
    rig.lose(written);
    rig.drain();
    // The others may be lost, too: they have been told of.
    let told = rig.sync(others, Token(2));
    assert!(matches!(
        told,
        Some(Ok(()) | Err(DurableError::Lost { .. }))
    ));
    let mut batch = AtomicBatch::new();
    batch.remap(others.start, written.start, others.count);
    rig.ftl.commit(PORT, batch, Token(3)).expect("accepted");
    rig.drain();
    assert_eq!(rig.answer(Token(3)), Some(Ok(())));
    assert_eq!(rig.sync(written, Token(4)), Some(Ok(())));
}

/// A volume of two devices that is filled up to here, some of it not written out, loses one of them.
fn lose_half(fill: u64, dirty: u64) -> Rig {
    let mut rig = Rig::new(4096);
    for n in (0..fill).step_by(500) {
        let range = LbaRange::new(Lba(n), 500);
        rig.write(range, 1);
        assert_eq!(rig.sync(range, Token(1)), Some(Ok(())));
    }
    rig.write(LbaRange::new(Lba(0), dirty), 2);
    rig.lose(LbaRange::new(Lba(dirty), fill - dirty));
    rig.drain();
    rig.events.clear();
    rig.ftl.self_check();
    rig
}

/// All that was lost is overwritten, of volumes that one device can hold and of such that it can not: each write is granted or
/// refused, what was granted reaches the media, and what is trimmed gives room to as much again (I4, I18).
#[test]
fn overwriting_what_is_lost() {
    const TRIMMED: LbaRange = LbaRange {
        start: Lba(0),
        count: 1000,
    };
    let mut most = Vec::new();
    for (fill, dirty) in [(5000, 0), (5000, 3000), (6500, 0), (6500, 3000), (9500, 0)] {
        let what = format!("{fill} grains, {dirty} of them not written out");
        let mut rig = lose_half(fill, dirty);
        let (mut granted, mut refused) = (Vec::new(), Vec::new());
        for lba in (0..fill).map(Lba) {
            match rig.get(lba, Intent::Overwrite) {
                Ok(page) => {
                    page.copy_in(0, &grain(lba, 3));
                    granted.push(lba);
                }
                Err(GetError::NoSpace) => refused.push(lba),
                Err(error) => panic!("{what}: {lba}: {error}"),
            }
        }
        assert_eq!(rig.sync(LbaRange::ALL, Token(2)), Some(Ok(())), "{what}");
        rig.ftl.self_check();
        for &lba in &granted {
            let mut bytes = vec![0; GRAIN_BYTES];
            rig.get(lba, Intent::Read)
                .expect("data")
                .copy_out(0, &mut bytes);
            assert!(bytes == grain(lba, 3), "{what}: {lba}");
        }
        if fill == 5000 {
            assert!(refused.is_empty(), "{what}: {} refused", refused.len());
            continue;
        }
        most.push(granted.len());
        // What can not be read can be trimmed as well, but that gives room to nobody.
        let lost: Vec<LbaRange> = refused.iter().map(|&lba| LbaRange::new(lba, 1)).collect();
        let mut new = (1_000_000..).map(Lba);
        let there = granted.iter().filter(|&&lba| TRIMMED.contains(lba)).count();
        for (trimmed, room) in [(lost, 0), (vec![TRIMMED], there)] {
            for range in trimmed {
                rig.ftl.trim(PORT, range, Token(3)).expect("accepted");
                rig.drain();
                assert_eq!(rig.answer(Token(3)), Some(Ok(())), "{what}: {range:?}");
            }
            let granted =
                (0..).take_while(|_| rig.get(new.next().expect("LBAs"), Intent::Write).is_ok());
            assert_eq!(granted.count(), room, "{what}");
        }
        assert_eq!(rig.sync(LbaRange::ALL, Token(4)), Some(Ok(())), "{what}");
        rig.ftl.self_check();
    }
    assert!(most.windows(2).all(|w| w[0] == w[1]), "{most:?}");
}

/// More is in memory that must go out than the device that is left can hold: everybody gets an answer, and what had been
/// granted is not said to be durable (I1, I18).
#[test]
fn too_much_to_go_on() {
    let mut rig = lose_half(8000, 3000);
    let told = rig.sync(LbaRange::ALL, Token(2));
    let is_told = matches!(told, Some(Err(DurableError::Failed(MediaError::NoSpace))));
    assert!(is_told, "{told:?}");
    let refused = rig.get(Lba(0), Intent::Write);
    assert!(matches!(refused, Err(GetError::Failed(_))), "{refused:?}");
}

/// Who syncs everything may do so to look after the volume, and not be who wrote: that says once what is lost, and leaves it to be said to who
/// syncs what he has written; also what became durable because everything was synced (I1).
#[test]
fn a_sync_of_everything_takes_nothing_away() {
    for synced in [false, true] {
        let mut rig = Rig::new(64);
        let (written, others) = (LbaRange::new(Lba(0), 400), LbaRange::new(Lba(1000), 200));
        rig.write(written, 1);
        rig.age();
        if synced {
            assert_eq!(rig.sync(LbaRange::ALL, Token(1)), Some(Ok(())));
        }
        // They take the place in memory.
        rig.write(others, 1);
        assert_eq!(rig.sync(others, Token(2)), Some(Ok(())));
        rig.lose(written);
        rig.drain();
        rig.events.clear();
        let told = rig.sync(LbaRange::ALL, Token(3));
        let is_told = matches!(told, Some(Err(DurableError::Lost { .. })));
        assert!(is_told, "{told:?}");
        assert_eq!(rig.sync(LbaRange::ALL, Token(4)), Some(Ok(())), "told once");
        let told = rig.sync(written, Token(5));
        let is_told =
            matches!(told, Some(Err(DurableError::Lost { lba })) if written.contains(lba));
        assert!(is_told, "everything was synced before: {synced}: {told:?}");
        assert_eq!(rig.sync(written, Token(6)), Some(Ok(())), "told once");
    }
}

/// A sync that comes after the loss does not vouch for what nobody was told of: writes that became durable because
/// something else was flushed, and went with the device (I1).
#[test]
fn durable_by_chance_and_lost() {
    let mut rig = Rig::new(64);
    let (written, others) = (LbaRange::new(Lba(0), 400), LbaRange::new(Lba(1000), 200));
    rig.write(written, 1);
    rig.age();
    assert_eq!(rig.sync(others, Token(1)), Some(Ok(())), "a flush");
    rig.write(others, 1);
    assert_eq!(rig.sync(others, Token(2)), Some(Ok(())));
    rig.lose(written);
    rig.drain();
    rig.events.clear();
    let told = rig.sync(written, Token(3));
    let is_told = matches!(told, Some(Err(DurableError::Lost { lba })) if written.contains(lba));
    assert!(is_told, "{told:?}");
    assert_eq!(rig.sync(written, Token(4)), Some(Ok(())), "told once");
}
