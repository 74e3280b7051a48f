//! The array over memory and over simulated devices.

use super::super::sim::{Effect, Fault, OpKind, SimDevice};
use super::super::testing::{TestBuf, run};
use super::super::{MediaOp, MemDevice};
use super::*;
use crate::{FormatOptions, Ftl, Geometry, LbaRange, OpenOptions, Volume};

const MIB: usize = 1 << 20;

fn named<D>(devices: Vec<D>) -> Vec<(String, D)> {
    let numbered = devices.into_iter().enumerate();
    numbered.map(|(n, d)| (format!("disk{n}"), d)).collect()
}

/// A formatted volume on devices of so many MiB, with a grain written, taken apart again.
fn made(sizes: &[usize]) -> Vec<(String, MemDevice)> {
    let devices = sizes
        .iter()
        .map(|m| MemDevice::new(m * MIB).expect("memory"));
    let mut array = ArrayDevice::blank(named(devices.collect()));
    Ftl::format(&mut array, &FormatOptions::default()).expect("format");
    let (volume, _) = Volume::open(array, OpenOptions::default()).expect("open");
    volume.write(5 * 4096, &[9; 4096]).expect("write");
    volume.sync(LbaRange::ALL).expect("sync");
    volume.shutdown().expect("shutdown");
    let (_, devices) = volume.into_device().into_parts();
    named(devices.into_iter().flatten().collect())
}

fn copy(device: &MemDevice) -> MemDevice {
    MemDevice::from_image(device.image()).expect("memory")
}

fn refusal(devices: Vec<(String, MemDevice)>) -> String {
    let error = ArrayDevice::assemble(devices, false).expect_err("refused");
    error.to_string()
}

/// Whatever order devices are named in, it is the same volume (I4).
#[test]
fn any_order() {
    let made = made(&[4, 9, 6]);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let devices = order.map(|n| (made[n].0.clone(), copy(&made[n].1)));
        let array = ArrayDevice::assemble(devices.into(), false).expect("assembly");
        let names: Vec<_> = array.members.list().iter().map(|m| m.name()).collect();
        assert_eq!(names, ["disk0", "disk1", "disk2"], "{order:?}");
        let (volume, report) = Volume::open(array, OpenOptions::default()).expect("open");
        assert!(report.clean && report.checkpoint.is_some());
        let mut got = [0; 4096];
        volume.read(5 * 4096, &mut got).expect("read");
        assert_eq!(got, [9; 4096]);
        volume.ftl().self_check();
    }
}

/// What does not belong together is refused, and the error names the device.
#[test]
fn refusals() {
    let mut made_here = made(&[4, 9, 6]);
    let all = |list: &[(String, MemDevice)], which: &[usize]| {
        let devices = which.iter().map(|&n| (list[n].0.clone(), copy(&list[n].1)));
        devices.collect::<Vec<_>>()
    };
    let said = refusal(all(&made_here, &[0, 2]));
    assert!(
        said.contains("device 1") && said.contains("disk1"),
        "{said}"
    );
    let uuid = Ftl::probe(&mut made_here[0].1).expect("probe").uuid;
    let said = refusal(all(&made_here, &[1]));
    assert!(said.contains("disk0") && said.contains("2 of 3"), "{said}");

    let mut twice = all(&made_here, &[0, 1, 2, 1]);
    twice[3].0 = "copy".to_owned();
    let said = refusal(twice);
    assert!(said.contains("copy") && said.contains("disk1"), "{said}");

    let other = made(&[4, 4]);
    let mut mixed = all(&made_here, &[0, 1]);
    mixed.push(("stranger".to_owned(), copy(&other[1].1)));
    let said = refusal(mixed);
    let uuid = uuid::Uuid::from_bytes(uuid).to_string();
    assert!(said.contains("stranger") && said.contains(&uuid), "{said}");

    let mut single = MemDevice::new(8 * MIB).expect("memory");
    Ftl::format(&mut single, &FormatOptions::default()).expect("format");
    let mut mixed = all(&made_here, &[0, 1]);
    mixed.push(("alone".to_owned(), copy(&single)));
    assert!(refusal(mixed).contains("alone is a volume by itself"));
    let alone = ArrayDevice::assemble(vec![("alone".to_owned(), single)], false);
    assert!(alone.expect("a volume").members().is_none());

    let mut blank = all(&made_here, &[0, 1]);
    blank.push(("blank".to_owned(), MemDevice::new(MIB).expect("memory")));
    assert!(refusal(blank).contains("blank: no superblock"));

    let mut shrunk = all(&made_here, &[0, 1, 2]);
    shrunk[1].1 = MemDevice::from_image(&made_here[1].1.image()[..8 * MIB]).expect("memory");
    let said = refusal(shrunk);
    assert!(said.contains("disk1 has 2048 grains"), "{said}");

    // An engine that is given one device of an array does not take it for a volume.
    let opened = Ftl::open(&mut made_here[1].1, OpenOptions::default());
    let error = opened.expect_err("refused").to_string();
    assert!(error.contains("one of 3"), "{error}");
}

/// A device that was put back from a copy is not believed (I1): the log of the others has gone on without it.
#[test]
fn old_copies() {
    let made_here = made(&[4, 9]);
    let old = copy(&made_here[1].1);
    let mut devices = made_here;
    for _ in 0..5 {
        let array = ArrayDevice::assemble(devices, false).expect("assembly");
        let (volume, _) = Volume::open(array, OpenOptions::default()).expect("open");
        volume.write(7 * 4096, &[3; 4096]).expect("write");
        volume.shutdown().expect("shutdown");
        let (_, left) = volume.into_device().into_parts();
        devices = named(left.into_iter().flatten().collect());
    }
    devices[1].1 = copy(&old);
    let all = |list: &[(String, MemDevice)]| {
        let copies = list
            .iter()
            .map(|(name, device)| (name.clone(), copy(device)));
        copies.collect::<Vec<_>>()
    };
    let said = refusal(all(&devices));
    assert!(said.contains("disk1") && said.contains("older"), "{said}");
    let array = ArrayDevice::assemble(all(&devices), true).expect("without it");
    assert_eq!(array.members.list()[1].state(), MemberState::Missing);
}

/// Of the superblock and of the label either copy of any device may be lost, and of the superblock both copies of all
/// devices but one (I7).
#[test]
fn damaged_fronts() {
    let made_here = made(&[4, 9]);
    for device in 0..2 {
        for grain in [0, 1, 6, 7] {
            let mut devices: Vec<_> = made_here
                .iter()
                .map(|(n, d)| (n.clone(), copy(d)))
                .collect();
            devices[device].1.image_mut()[grain * 4096 + 99] ^= 1;
            if grain < 2 {
                devices[device].1.image_mut()[(1 - grain) * 4096 + 99] ^= 1;
            }
            let array = ArrayDevice::assemble(devices, false).expect("assembly");
            let (volume, report) = Volume::open(array, OpenOptions::default()).expect("open");
            assert_eq!(report.superblocks_damaged, if grain < 2 { 2 } else { 0 });
            drop(volume);
        }
    }
    let mut devices = made(&[4, 9]);
    devices[1].1.image_mut()[6 * 4096] ^= 1;
    devices[1].1.image_mut()[7 * 4096] ^= 1;
    assert!(refusal(devices).contains("disk1: it belongs to a volume of 2 devices"));
}

fn laid_out(count: usize) -> (ArrayDevice<SimDevice>, Geometry) {
    let devices = (0..count).map(|n| SimDevice::new(4 * MIB, n as u64));
    let array = ArrayDevice::blank(named(devices.collect()));
    let sizes = array.members.sizes();
    let geometry = Geometry::derive(&sizes, None, 20, None, Some(32)).expect("geometry");
    array.members.lay_out(geometry);
    (array, geometry)
}

fn flushes(array: &ArrayDevice<SimDevice>) -> Vec<u64> {
    let devices = array.devices().flatten();
    devices.map(|d| d.counts().flushes).collect()
}

/// A flush goes to the devices written to since their last one, and to all at first; a write that was made durable
/// asks for none (I1).
#[test]
fn flushes_where_it_was_written() {
    let (mut array, geometry) = laid_out(3);
    let mut buf = TestBuf::filled(1, 7);
    assert_eq!(run(&mut array, MediaOp::Flush), Ok(()));
    assert_eq!(flushes(&array), [1, 1, 1]);
    assert_eq!(run(&mut array, MediaOp::Flush), Ok(()));
    assert_eq!(flushes(&array), [1, 1, 1]);
    let on = |device: usize| (geometry.places.start(device).0 + 20) * 4096;
    assert_eq!(run(&mut array, buf.write_op(on(1))), Ok(()));
    assert_eq!(run(&mut array, MediaOp::Flush), Ok(()));
    assert_eq!(flushes(&array), [1, 2, 1]);
    let MediaOp::Write { offset, buf, .. } = buf.write_op(on(2)) else {
        unreachable!("a write");
    };
    let durable = MediaOp::Write {
        offset,
        buf,
        durable: true,
    };
    assert_eq!(run(&mut array, durable), Ok(()));
    assert_eq!(run(&mut array, MediaOp::Flush), Ok(()));
    assert_eq!(flushes(&array), [1, 2, 1]);
}

/// A flush that begins while another is in flight covers what the other one covers too: it does not rely on it.
#[test]
fn overlapping_flushes() {
    let (mut array, _) = laid_out(2);
    for id in 0..2 {
        array.submit(Action {
            id: ActionId(id),
            op: MediaOp::Flush,
        });
    }
    assert_eq!(flushes(&array), [2, 2]);
}

/// Superblocks are on all devices, roots and the area for checkpoints on two; each is read elsewhere if it can not be
/// read here, and written as long as one device can (I7).
#[test]
fn copies() {
    let (mut array, geometry) = laid_out(3);
    let mut buf = TestBuf::filled(1, 7);
    let area = (geometry.area_start().0 + 3) * 4096;
    let writes = |array: &ArrayDevice<SimDevice>| {
        let devices = array.devices().flatten();
        devices.map(|d| d.counts().writes).collect::<Vec<_>>()
    };
    for (offset, want) in [(4096, [1, 1, 1]), (3 * 4096, [2, 2, 1]), (area, [3, 3, 1])] {
        assert_eq!(run(&mut array, buf.write_op(offset)), Ok(()));
        assert_eq!(writes(&array), want);
        let unreadable = Fault::nth(Some(OpKind::Read), 0, Effect::Fail(MediaError::Io));
        let first = array.devices_mut().flatten().next().expect("device 0");
        first.inject(unreadable);
        let mut read = TestBuf::filled(1, 0);
        assert_eq!(run(&mut array, read.read_op(offset)), Ok(()));
        assert_eq!(read.bytes(), [7; 4096], "from device 1");
    }
    assert!(array.members.list()[0].is_live(), "a sector is no device");
    let first = array.devices_mut().flatten().next().expect("device 0");
    first.inject(Fault::every(OpKind::Write, Effect::Fail(MediaError::Io)));
    buf.fill(8);
    assert_eq!(run(&mut array, buf.write_op(area)), Ok(()));
    assert_eq!(array.members.list()[0].state(), MemberState::Failed);
    let mut read = TestBuf::filled(1, 0);
    assert_eq!(run(&mut array, read.read_op(area)), Ok(()));
    assert_eq!(read.bytes(), [8; 4096]);
    let on_first = 20 * 4096;
    assert_eq!(
        run(&mut array, buf.write_op(on_first)),
        Err(MediaError::Gone)
    );
    assert_eq!(run(&mut array, MediaOp::Flush), Ok(()), "of those left");
}

/// A device that refuses a write of which another has a copy is out before the write is answered, as its copy is old (I1). A write that
/// all refuse makes no sense, and says nothing about them.
#[test]
fn refused_write() {
    let refuses = Fault::every(OpKind::Write, Effect::Fail(MediaError::Invalid));
    for refusing in 0..2 {
        let (mut array, geometry) = laid_out(2);
        let area = geometry.area_start().0 * 4096;
        let device = array.devices_mut().flatten().nth(refusing);
        device.expect("a device").inject(refuses.clone());
        let mut buf = TestBuf::filled(1, 8);
        assert_eq!(run(&mut array, buf.write_op(area)), Ok(()));
        let states = array.members.list().iter().map(Member::state);
        let failed: Vec<_> = states.map(|state| state == MemberState::Failed).collect();
        assert_eq!(failed, [refusing == 0, refusing == 1]);
        let mut read = TestBuf::filled(1, 0);
        assert_eq!(run(&mut array, read.read_op(area)), Ok(()));
        assert_eq!(read.bytes(), [8; 4096]);
    }
    let (mut array, geometry) = laid_out(2);
    let area = geometry.area_start().0 * 4096;
    for device in array.devices_mut().flatten() {
        device.inject(refuses.clone());
    }
    let mut buf = TestBuf::filled(1, 8);
    let refused = run(&mut array, buf.write_op(area));
    assert_eq!(refused, Err(MediaError::Invalid));
    assert!(array.members.list().iter().all(Member::is_live));
}

/// A device that fails to flush is out, before the flush is answered; those left have flushed (I8).
#[test]
fn failing_flush() {
    for error in [MediaError::Io, MediaError::Invalid] {
        fails_to_flush(error);
    }
}

fn fails_to_flush(error: MediaError) {
    let (mut array, _) = laid_out(2);
    let fail = Fault::every(OpKind::Flush, Effect::Fail(error));
    for device in [1, 0] {
        let devices = array.devices_mut().flatten();
        devices
            .skip(device)
            .take(1)
            .for_each(|d| d.inject(fail.clone()));
        let want = if device == 1 { Ok(()) } else { Err(error) };
        assert_eq!(run(&mut array, MediaOp::Flush), want);
        assert_eq!(array.members.list()[device].state(), MemberState::Failed);
        let mut buf = TestBuf::filled(1, 7);
        let _ = run(&mut array, buf.write_op(4096));
    }
}

/// Discards go where the range is, with its address there.
#[test]
fn discards() {
    let mut array = ArrayDevice::assemble(made(&[4, 9]), false).expect("assembly");
    let start = array.members.list()[0].grains() * 4096;
    let mut buf = TestBuf::filled(1, 7);
    let offset = start + 20 * 4096;
    assert_eq!(run(&mut array, buf.write_op(offset)), Ok(()));
    let second = |array: &ArrayDevice<MemDevice>| {
        let device = array.devices().flatten().nth(1).expect("device 1");
        device.image()[20 * 4096]
    };
    assert_eq!(second(&array), 7);
    let discard = MediaOp::Discard { offset, len: 4096 };
    assert_eq!(run(&mut array, discard), Ok(()));
    assert_eq!(second(&array), 0);
}
