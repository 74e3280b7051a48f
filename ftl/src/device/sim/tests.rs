//! The simulated device does what its fault model says: a crash test is worth what its device is worth.

use std::collections::HashSet;

use super::*;
use crate::device::testing::{TestBuf, run, start};

const G: u64 = 4096;

fn device(grains: usize) -> SimDevice {
    SimDevice::new(grains * 4096, 1)
}

fn write(device: &mut SimDevice, grain: u64, byte: u8) {
    let mut buf = TestBuf::filled(1, byte);
    assert_eq!(run(device, buf.write_op(grain * G)), Ok(()));
}

/// First byte of each grain, if the whole grain is that byte.
fn grains(image: &SimImage) -> Vec<Option<u8>> {
    let whole = |grain: &[u8]| {
        let first = grain[0];
        grain.iter().all(|byte| *byte == first).then_some(first)
    };
    image.grains().map(|grain| whole(grain)).collect()
}

/// Every subset of up to ten completed writes, each exactly once; nothing else without tears.
#[test]
fn all_subsets() {
    let mut device = device(4);
    for grain in 0..3 {
        write(&mut device, grain, grain as u8 + 1);
    }
    let plan = CrashPlan {
        tears: 0,
        ..CrashPlan::FULL
    };
    let images: Vec<_> = device.crash_point().images(plan, 7).collect();
    let contents: HashSet<_> = images.iter().map(|image| grains(&image.content)).collect();
    assert_eq!(images.len(), 8);
    assert_eq!(contents.len(), 8);
    for content in contents {
        for (n, byte) in content.iter().enumerate() {
            let byte = byte.expect("no tears asked for");
            assert!(byte == 0 || (n < 3 && byte == n as u8 + 1));
        }
    }
}

/// Twelve writes: two extremes, 11 prefixes, 12 one-missing, 12 one-only, then chance.
#[test]
fn many_changes() {
    let mut device = device(12);
    for grain in 0..12 {
        write(&mut device, grain, 1);
    }
    let point = device.crash_point();
    assert_eq!(point.changes(), 12);
    let plan = CrashPlan {
        tears: 0,
        ..CrashPlan::FULL
    };
    let images: Vec<_> = point.images(plan, 7).collect();
    assert_eq!(images.len(), 2 + 11 + 12 + 12 + 1024);
    let kept = |image: &CrashImage| {
        let is_kept = |fate: &&Fate| **fate == Fate::Kept;
        image.choice.0.iter().filter(is_kept).count()
    };
    assert_eq!((kept(&images[0]), kept(&images[1])), (12, 0));
    for (n, image) in images[2..13].iter().enumerate() {
        let mut want = vec![Some(0); 12];
        want[..=n].fill(Some(1));
        assert_eq!(grains(&image.content), want);
    }
    assert_eq!((kept(&images[13]), kept(&images[14])), (11, 1));
}

/// A flush makes durable what had completed before it was submitted, nothing else.
#[test]
fn flush_covers_completed() {
    let mut device = device(4);
    device.set_latency(1);
    write(&mut device, 0, 1);
    let mut late = TestBuf::filled(1, 2);
    start(&mut device, 5, late.write_op(G));
    start(&mut device, 6, MediaOp::Flush);
    assert_eq!(device.poll(true), Some((ActionId(5), Ok(()))));
    assert_eq!(device.poll(true), Some((ActionId(6), Ok(()))));
    write(&mut device, 2, 3);

    let images: Vec<_> = device.crash_point().images(CrashPlan::FULL, 7).collect();
    assert!(
        images
            .iter()
            .all(|image| grains(&image.content)[0] == Some(1))
    );
    for grain in [1, 2] {
        let seen: HashSet<_> = images.iter().map(|i| grains(&i.content)[grain]).collect();
        assert!(seen.contains(&Some(0)), "grain {grain} can be lost");
        assert!(seen.contains(&Some(grain as u8 + 1)), "or kept");
        assert!(seen.contains(&None), "or torn");
    }
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    assert_eq!(device.crash_point().changes(), 0);
    assert_eq!(
        grains(&device.crash_point().image(&CrashChoice(Vec::new()))),
        [Some(1), Some(2), Some(3), Some(0)]
    );
}

/// Tears lie at sector boundaries. Only a write in flight leaves garbage.
#[test]
fn tears() {
    let mut device = device(1);
    write(&mut device, 0, 7);
    let completed = device.crash_point();
    let mut buf = TestBuf::filled(1, 8);
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    start(&mut device, 1, buf.write_op(0));
    let in_flight = device.crash_point();

    let plan = CrashPlan {
        tears: 200,
        ..CrashPlan::FULL
    };
    let mut garbage = 0;
    let mut mixtures = HashSet::new();
    for (point, old, new) in [(&completed, 0, 7), (&in_flight, 7, 8)] {
        for image in point.images(plan, 3) {
            let mut mixture = Vec::new();
            for sector in image.content.to_vec().chunks(512) {
                let is = |byte: u8| sector.iter().all(|b| *b == byte);
                mixture.push(is(new));
                if !is(old) && !is(new) {
                    garbage += 1;
                    assert_eq!(new, 8, "a completed write leaves no garbage");
                }
            }
            mixtures.insert(mixture);
        }
    }
    assert!(garbage > 0);
    assert!(mixtures.len() > 100, "of 256: {}", mixtures.len());
    assert_eq!(device.poll(true), Some((ActionId(1), Ok(()))));
}

/// Two writes of one grain: old, first and second are all possible, by sector.
#[test]
fn overwrites() {
    let mut device = device(1);
    write(&mut device, 0, 1);
    write(&mut device, 0, 2);
    let point = device.crash_point();
    let seen: HashSet<_> = point
        .images(CrashPlan::FULL, 3)
        .map(|image| grains(&image.content)[0])
        .collect();
    assert_eq!(seen, [Some(0), Some(1), Some(2), None].into());
}

/// Discards are kept or lost, and a flush settles them.
#[test]
fn discards() {
    let mut device = device(2);
    write(&mut device, 0, 1);
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    let discard = MediaOp::Discard { offset: 0, len: G };
    assert_eq!(run(&mut device, discard), Ok(()));
    let point = device.crash_point();
    let seen: HashSet<_> = point
        .images(CrashPlan::FULL, 3)
        .map(|image| grains(&image.content)[0])
        .collect();
    assert!(seen.contains(&Some(0)) && seen.contains(&Some(1)));
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    assert_eq!(device.crash_point().changes(), 0);
}

/// After a failed flush its writes stay readable but are never durable again (the reason for I8); a newer durable
/// write of the same place supersedes them.
#[test]
fn failed_flush() {
    let mut device = device(2);
    write(&mut device, 0, 1);
    write(&mut device, 1, 1);
    device.inject(Fault::nth(
        Some(OpKind::Flush),
        0,
        Effect::Fail(MediaError::Io),
    ));
    assert_eq!(run(&mut device, MediaOp::Flush), Err(MediaError::Io));
    write(&mut device, 1, 2);
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    assert_eq!(grains(device.image()), [Some(1), Some(2)]);
    let lost = CrashChoice(vec![Fate::Lost; device.crash_point().changes()]);
    assert_eq!(
        grains(&device.crash_point().image(&lost)),
        [Some(0), Some(2)]
    );
    for image in device.crash_point().images(CrashPlan::FULL, 1) {
        assert_eq!(grains(&image.content)[1], Some(2));
    }
}

/// Errors hit the right operation and range; a failed write may leave anything in its own range only.
#[test]
fn failed_operations() {
    let mut device = device(4);
    write(&mut device, 0, 1);
    device.inject(Fault::every(OpKind::Write, Effect::Fail(MediaError::NoSpace)).within(G..2 * G));
    device.inject(Fault::every(OpKind::Read, Effect::Fail(MediaError::Io)).within(0..G));
    let mut buf = TestBuf::filled(1, 9);
    assert_eq!(run(&mut device, buf.write_op(G)), Err(MediaError::NoSpace));
    assert_eq!(run(&mut device, buf.write_op(2 * G)), Ok(()));
    assert_eq!(run(&mut device, buf.read_op(0)), Err(MediaError::Io));
    assert!(buf.bytes().iter().all(|byte| *byte == UNREAD));
    assert_eq!(run(&mut device, buf.read_op(2 * G)), Ok(()));
    assert_eq!(device.counts().faults, 2);
    device.clear_faults();
    assert_eq!(run(&mut device, buf.read_op(0)), Ok(()));
    let image = grains(device.image());
    assert_eq!((image[0], image[2], image[3]), (Some(1), Some(9), Some(0)));
}

/// Lies: lost and misdirected writes, misdirected reads, flipped bits. All are reported as success.
#[test]
fn lies() {
    let mut device = device(4);
    let lie = |effect| Fault::nth(None, 0, effect);
    device.inject(lie(Effect::Lose));
    write(&mut device, 0, 1);
    assert_eq!(grains(device.image())[0], Some(0));

    device.inject(lie(Effect::Misdirect(3 * G)));
    write(&mut device, 0, 2);
    assert_eq!(grains(device.image())[0], Some(0));
    assert_eq!(grains(device.image())[3], Some(2));

    device.inject(lie(Effect::Misdirect(3 * G)));
    let mut buf = TestBuf::filled(1, 9);
    assert_eq!(run(&mut device, buf.read_op(0)), Ok(()));
    assert!(buf.bytes().iter().all(|byte| *byte == 2));

    device.inject(lie(Effect::FlipBit(8)));
    assert_eq!(run(&mut device, buf.read_op(3 * G)), Ok(()));
    assert_eq!(buf.bytes()[..3], [2, 3, 2]);

    device.inject(lie(Effect::FlipBit(0)));
    write(&mut device, 1, 4);
    assert_eq!(device.image().grain(1)[..3], [5, 4, 4]);

    device.rot(2 * G..2 * G + 1, |bytes| bytes[0] = 0xFF);
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    assert_eq!(device.image().grain(2)[0], 0xFF);
    let settled = device.crash_point().image(&CrashChoice(Vec::new()));
    assert_eq!(&settled, device.image());
}

/// Operations complete in orders that depend on the seed, each once, and the same seed repeats everything.
#[test]
fn order_by_seed() {
    let order = |seed| {
        let mut device = SimDevice::new(16 * 4096, seed);
        let mut bufs: Vec<_> = (0..16).map(|n| TestBuf::filled(1, n)).collect();
        for (n, buf) in bufs.iter_mut().enumerate() {
            start(&mut device, n as u64, buf.write_op(n as u64 * G));
        }
        assert_eq!(device.in_flight(), 16);
        let mut order = Vec::new();
        while device.in_flight() > 0 {
            order.extend(device.poll(false).map(|(id, _)| id.0));
        }
        order
    };
    let mut sorted = order(1);
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_ne!(sorted, (0..16).collect::<Vec<_>>());
    sorted.sort_unstable();
    assert_eq!(sorted, (0..16).collect::<Vec<_>>());
}

/// A delayed operation lets others pass.
#[test]
fn delay() {
    let mut device = device(2);
    device.inject(Fault::nth(None, 0, Effect::Delay(1000)));
    let mut bufs = [TestBuf::filled(1, 1), TestBuf::filled(1, 2)];
    start(&mut device, 0, bufs[0].write_op(0));
    start(&mut device, 1, bufs[1].write_op(G));
    assert_eq!(device.poll(true).map(|done| done.0), Some(ActionId(1)));
    assert_eq!(device.poll(true).map(|done| done.0), Some(ActionId(0)));
    assert_eq!(device.poll(true), None);
}

/// The user's mistakes are loud: overlapping writes in flight, and a buffer changed under the device.
#[test]
fn watches_its_user() {
    let overlap = std::panic::catch_unwind(|| {
        let mut device = device(4);
        let mut bufs = [TestBuf::filled(2, 1), TestBuf::filled(2, 2)];
        start(&mut device, 0, bufs[0].write_op(0));
        start(&mut device, 1, bufs[1].write_op(G));
    });
    assert!(overlap.is_err());
    let changed = std::panic::catch_unwind(|| {
        let mut device = device(4);
        let mut buf = TestBuf::filled(2, 1);
        start(&mut device, 0, buf.write_op(0));
        buf.fill(3);
        device.poll(true)
    });
    assert!(changed.is_err());
}

/// Crash points taken along the way are the ones a driver would have taken.
#[test]
fn recorder() {
    let mut device = device(4);
    device.record(2);
    for grain in 0..4 {
        write(&mut device, grain, 1);
    }
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    let points = device.recorded();
    let changes: Vec<_> = points.iter().map(|(no, p)| (*no, p.changes())).collect();
    assert_eq!(changes, [(1, 2), (3, 4)]);
    assert!(device.recorded().is_empty());
}

/// A selection keeps the extremes, has the size asked for, and no image twice.
#[test]
fn sampled() {
    let mut device = device(10);
    for grain in 0..10 {
        write(&mut device, grain, 1);
    }
    let point = device.crash_point();
    let pick = |seed| -> Vec<_> {
        let images = point.images(CrashPlan::sampled(40), seed);
        images.map(|image| image.choice).collect()
    };
    let choices = pick(1);
    assert_eq!(choices.len(), 40);
    assert_eq!(choices[0], CrashChoice(vec![Fate::Kept; 10]));
    assert_eq!(choices[1], CrashChoice(vec![Fate::Lost; 10]));
    assert_eq!(choices.iter().collect::<HashSet<_>>().len(), 40);
    assert_eq!(choices, pick(1));
    assert_ne!(choices, pick(2));
}
