//! Volumes that are in use while their map is still being read.

use crate::common::{at, grain, read, zeros_seen};
use ftl::{
    Device, DurableError, Event, FormatOptions, Ftl, GRAIN_BYTES, Get, GetError, GrainState,
    Intent, Lba, LbaRange, MemDevice, OpenOptions, Port, Time, Token, Volume,
};

/// Grains of a leaf of the map.
const LEAF: u64 = 256;
/// Clones that fill the map, and where what they clone lies.
const CLONES: u64 = 240;
const CLONED: u64 = 1000;
const SOURCE: Lba = Lba(1 << 40);

fn options() -> OpenOptions {
    OpenOptions {
        pool_frames: 1024,
        map_pages_eager: 0,
        ..OpenOptions::default()
    }
}

/// A volume in which everything from grain 0 on has data; its map is of many units, and cold when it is opened.
fn cold_volume() -> MemDevice {
    let mut device = MemDevice::new(400_000 * GRAIN_BYTES).expect("memory");
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let (live, _) = Volume::open(device, options()).expect("open");
    for n in 0..CLONED {
        let written = live.write(at(SOURCE.offset(n)), &grain(Lba(n), 1));
        written.expect("write");
    }
    live.sync(LbaRange::ALL).expect("sync");
    for n in 0..CLONES {
        let cloned = live.clone_range(SOURCE, Lba(n * CLONED), CLONED);
        cloned.expect("clone");
    }
    live.shutdown().expect("shutdown");
    live.into_device()
}

/// While the map is read in, leaf by leaf and entry by entry, whoever looks without the lock never finds zeros where
/// there are data (I2).
#[test]
fn readers_while_the_map_comes() {
    let mut device = cold_volume();
    for round in 0..4 {
        let (live, _) = Volume::open(device, options()).expect("open");
        assert!(!live.ftl().is_map_loaded(), "nothing is left to be read");
        // The last entry of a leaf is filled last.
        let grains = |n| Lba(n * LEAF + LEAF - 1);
        let zeros = zeros_seen(&live, &grains, CLONES * CLONED / LEAF, || {
            while !live.ftl().is_map_loaded() {
                assert!(read(&live, SOURCE) == grain(Lba(0), 1));
            }
        });
        assert_eq!(
            zeros, 0,
            "round {round}: grains that seemed to hold nothing"
        );
        assert_eq!(live.ftl().state(Lba(5)), GrainState::Data);
        live.shutdown().expect("shutdown");
        device = live.into_device();
    }
}

/// Who wants the map in memory, or a page, while the volume is shut down or after that is told that it will not come (I18).
#[test]
fn shut_down_while_the_map_comes() {
    const PORT: Port = Port(0);
    let mut device = cold_volume();
    let (ftl, _) = Ftl::open(&mut device, options()).expect("open");
    assert!(!ftl.is_map_loaded(), "nothing is left to be read");
    let drive = |device: &mut MemDevice| {
        let (mut durable, mut pages) = (Vec::new(), Vec::new());
        loop {
            while let Some(action) = ftl.poll_action(PORT) {
                device.submit(action);
            }
            while let Some(event) = ftl.poll_event(PORT) {
                match event {
                    Event::Durable { token, result } => durable.push((token.0, result)),
                    Event::Page { token, result } => pages.push((token.0, result.map(drop))),
                }
            }
            let Some((id, result)) = device.poll(true) else {
                durable.sort_by_key(|&(token, _)| token);
                return (durable, pages);
            };
            ftl.handle_done(PORT, Time(0), id, result);
        }
    };
    let late = Err(DurableError::Shutdown);
    ftl.load(PORT, LbaRange::ALL, Token(1));
    ftl.shutdown(PORT, Token(2));
    let (durable, _) = drive(&mut device);
    assert_eq!(durable, [(1, late), (2, Ok(()))]);
    assert!(!ftl.is_map_loaded(), "all of the map has come");
    ftl.load(PORT, LbaRange::ALL, Token(3));
    ftl.sync(PORT, LbaRange::ALL, Token(4));
    let last = Lba(CLONES * CLONED - 1);
    assert!(matches!(
        ftl.get(PORT, last, Intent::Read, Token(5)),
        Get::Pending
    ));
    let (durable, pages) = drive(&mut device);
    assert_eq!(durable, [(3, late), (4, Ok(()))]);
    assert_eq!(pages, [(5, Err(GetError::Shutdown))]);
}
