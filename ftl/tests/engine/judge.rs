//! The judge and volumes of which a header is damaged or says the impossible: what only a checkpoint knows is found by
//! comparing, written anew, and then a full scan finds the same; nobody counts on what a crafted header reserves.

use ftl::format::{Header, RecordKind};
use ftl::inspect::Inspector;
use ftl::{
    FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange, MemDevice, OpenOptions, Pba, SegmentId, Volume,
};

const GRAIN: u64 = GRAIN_BYTES as u64;

fn open(device: MemDevice, rebuild: bool) -> Volume<MemDevice> {
    let options = OpenOptions {
        pool_frames: 64,
        rebuild,
        ..OpenOptions::default()
    };
    Volume::open(device, options).expect("open").0
}

/// A volume with several write-outs in a segment, shut down, and its headers in order.
fn written() -> (MemDevice, Vec<(Pba, Header)>) {
    let mut device = MemDevice::new(6 << 20).unwrap();
    let format = FormatOptions {
        segment_bytes: Some(16 * GRAIN),
        checkpoint_grains: Some(96),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format).unwrap();
    let volume = open(device, false);
    for n in 0..10u8 {
        volume
            .write(u64::from(n) * GRAIN, &[n + 1; GRAIN_BYTES])
            .unwrap();
        volume.sync(LbaRange::ALL).unwrap();
    }
    volume.trim(LbaRange::new(Lba(0), 1)).unwrap();
    volume.zero(LbaRange::new(Lba(100), 3)).unwrap();
    volume.shutdown().unwrap();
    let mut device = volume.into_device();
    let all = headers(&mut device);
    (device, all)
}

/// All headers in order.
fn headers(device: &mut MemDevice) -> Vec<(Pba, Header)> {
    let mut all = Vec::new();
    let mut inspector = Inspector::new(device).unwrap();
    for segment in 0..inspector.superblock().geometry.segment_count {
        all.extend(inspector.headers(SegmentId(segment)));
    }
    all.sort_by_key(|(_, header)| header.no);
    all
}

fn check_content(volume: &Volume<MemDevice>) {
    for n in 1..10u8 {
        let mut grain = [0; GRAIN_BYTES];
        volume.read(u64::from(n) * GRAIN, &mut grain).unwrap();
        assert_eq!(grain, [n + 1; GRAIN_BYTES], "grain {n}");
    }
    assert_eq!(volume.next_mapped(LbaRange::new(Lba(0), 1)), None);
    assert_eq!(volume.mapped_count(LbaRange::new(Lba(100), 3)), 3);
}

/// Any one header is damaged. The judge still knows what those behind it say, and what it said itself is written anew:
/// then the log says what the map says, and a full scan finds every byte.
#[test]
fn a_damaged_header_is_made_good() {
    let (device, headers) = written();
    let whole = device.image().to_vec();
    let youngest = headers.last().expect("some").1.clone();
    for (at, header) in headers {
        let mut device = MemDevice::new(whole.len()).unwrap();
        device.image_mut().copy_from_slice(&whole);
        device.image_mut()[at.0 as usize * GRAIN_BYTES + 200] ^= 1;
        let log = ftl::check(&mut device).unwrap();
        let volume = open(device, false);
        check_content(&volume);
        let differing = volume.differing(&log).unwrap();
        // Its own grains, and not those of the headers behind it in the segment; but nothing points to the youngest.
        let hides_youngest = header.segment == youngest.segment && header.no < youngest.no;
        let hidden = [Some(&header), Some(&youngest).filter(|_| hides_youngest)];
        let records = hidden.into_iter().flatten().flat_map(|h| &h.records);
        let said: u64 = records.map(count).sum();
        assert!(differing.len() as u64 <= said, "{at}: {differing:?}");
        let is_moot = |record: &ftl::format::Record| {
            record.lba == Lba(0) && matches!(record.kind, RecordKind::Data { .. })
        };
        let says_something = header.records.iter().any(|record| !is_moot(record));
        assert_eq!(
            !differing.is_empty(),
            says_something || hides_youngest,
            "{at}"
        );
        assert_eq!(volume.write_anew(&differing), Ok(Vec::new()), "{at}");
        volume.shutdown().unwrap();
        let mut device = volume.into_device();
        let log = ftl::check(&mut device).unwrap();
        assert!(log.is_sound(), "{at}: {log:?}");
        let volume = open(device, false);
        assert_eq!(volume.differing(&log), Ok(Vec::new()), "{at}");
        check_content(&open(volume.into_device(), true));
    }
}

fn count(record: &ftl::format::Record) -> u64 {
    match record.kind {
        RecordKind::Trim { count } | RecordKind::Zero { count } => u64::from(count),
        _ => 1,
    }
}

/// Garbage in a header behind the last checkpoint, with durable ones after it: the checkpoint does not count, and what the
/// header said is lost. That is reported (I2, I7), and the volume remembers it; of one that stood alone in its segment it is
/// reported that nobody knows. The last header is taken for one that the power was cut in, and is not.
#[test]
fn a_lost_header_is_said() {
    let (device, before) = written();
    let volume = open(device, false);
    let write = |from: u64, count: u64| {
        for n in from..from + count {
            volume.write(n * GRAIN, &[99; GRAIN_BYTES]).unwrap();
        }
        volume.sync(LbaRange::ALL).unwrap();
    };
    (1..6).for_each(|n| write(n, 1));
    write(20, 100);
    (6..14).for_each(|n| write(n, 1));
    let mut device = volume.into_device();
    let whole = device.image().to_vec();
    let all = headers(&mut device);
    let youngest = &all.last().expect("some").1;
    let (mut alone, mut among) = (0, 0);
    for (at, header) in &all[before.len()..] {
        // Of those that nothing outside of the segment points to, only the last is of interest.
        let is_lost = header.segment != youngest.segment;
        if !is_lost && header.no != youngest.no {
            continue;
        }
        let mut device = MemDevice::new(whole.len()).unwrap();
        device.image_mut().copy_from_slice(&whole);
        device.image_mut()[at.0 as usize * GRAIN_BYTES..][..GRAIN_BYTES].fill(0x5a);
        let options = OpenOptions {
            pool_frames: 64,
            ..OpenOptions::default()
        };
        let (_, report) = Ftl::open(&mut device, options).unwrap();
        let of_segment = all.iter().filter(|(_, h)| h.segment == header.segment);
        let is_alone = of_segment.count() == 1;
        let said = (report.headers_lost, report.headers_unsure);
        let expected = match (is_lost, is_alone) {
            (true, true) => (0, 1),
            (true, false) => (1, 0),
            (false, _) => (0, 0),
        };
        assert_eq!(said, expected, "{at}: {report:?}");
        let inspector = Inspector::new(&mut device).unwrap();
        assert_eq!(inspector.superblock().suspect, said.0 > 0, "{at}");
        alone += said.1;
        among += said.0;
    }
    assert!(alone >= 3 && among >= 8, "{alone}, {among}");
}

/// What is damaged under a damaged header is left as it is, and named.
#[test]
fn what_can_not_be_read_is_not_written_anew() {
    let (mut device, headers) = written();
    let data = |(_, header): &&(Pba, Header)| {
        let lba = header.records.first().map(|record| record.lba);
        lba == Some(Lba(4))
    };
    let at = headers.iter().find(data).expect("it was written").0;
    for byte in [200, GRAIN_BYTES + 7] {
        device.image_mut()[at.0 as usize * GRAIN_BYTES + byte] ^= 1;
    }
    let log = ftl::check(&mut device).unwrap();
    assert!(log.damaged.is_empty(), "the judge does not know of it");
    let volume = open(device, false);
    let differing = volume.differing(&log).unwrap();
    assert_eq!(differing, [Lba(4)]);
    assert_eq!(volume.write_anew(&differing), Ok(vec![Lba(4)]));
    let mut grain = [0; GRAIN_BYTES];
    assert!(volume.read(4 * GRAIN, &mut grain).is_err());
}

/// A crafted header that reserves four thousand million grains takes no memory for them, and no place.
#[test]
fn crafted_reservations_are_passed_over() {
    let (mut device, headers) = written();
    let reserves = |record: &ftl::format::Record| matches!(record.kind, RecordKind::Zero { .. });
    let (at, mut header) = headers
        .into_iter()
        .find(|(_, header)| header.records.iter().any(reserves))
        .expect("it was reserved");
    for record in header.records.iter_mut().filter(|record| reserves(record)) {
        record.kind = RecordKind::Zero { count: u32::MAX };
    }
    let place = at.0 as usize * GRAIN_BYTES;
    device.image_mut()[place..place + GRAIN_BYTES].copy_from_slice(&header.emit()[..]);
    let log = ftl::check(&mut device).unwrap();
    assert!(
        log.faults
            .iter()
            .any(|fault| fault.contains("reserves more")),
        "{log:?}"
    );
    assert!(log.map.len() < 100);
    let volume = open(device, true);
    assert!(volume.space().mapped < 100);
    let mut grain = [0; GRAIN_BYTES];
    volume.read(5 * GRAIN, &mut grain).unwrap();
    assert_eq!(grain, [6; GRAIN_BYTES]);
}

/// A crafted header whose grains would be those of the next segment is no header, for those who open the volume and for the
/// judge (I7).
#[test]
fn crafted_write_outs_do_not_leave_their_segment() {
    let (mut device, headers) = written();
    let (at, mut header) = headers.last().cloned().expect("some");
    // In its place, so that all but its length is right.
    let data = |lba| ftl::format::Record {
        lba: Lba(lba),
        version: header.records[0].version,
        kind: RecordKind::Data { crc: 1 },
    };
    header.records = (0..40).map(|n| data(2000 + n)).collect();
    let place = at.0 as usize * GRAIN_BYTES;
    device.image_mut()[place..place + GRAIN_BYTES].copy_from_slice(&header.emit()[..]);
    let log = ftl::check(&mut device).unwrap();
    assert!(log.map.iter().all(|entry| *entry.0 < Lba(2000)), "{log:?}");
    let volume = open(device, true);
    assert_eq!(volume.mapped_count(LbaRange::new(Lba(2000), 40)), 0);
    let mut grain = [0; GRAIN_BYTES];
    volume.read(5 * GRAIN, &mut grain).unwrap();
    assert_eq!(grain, [6; GRAIN_BYTES]);
}

/// Segments of which a crafted checkpoint says that nothing lives there are not reused: the checkpoint does not count.
#[test]
fn crafted_counts_are_noticed() {
    for pages_eager in [64, 0] {
        let (mut device, _) = written();
        let pages = device.image_mut().chunks_exact_mut(GRAIN_BYTES);
        let is_page = |bytes: &&mut [u8]| {
            let crc = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            bytes[4] == 3 && bytes[5] == 0 && crc == crc32fast::hash(&bytes[4..])
        };
        for page in pages.filter(is_page) {
            for entry in page[32..].chunks_exact_mut(24) {
                entry[12..16].fill(0);
            }
            let crc = crc32fast::hash(&page[4..]);
            page[..4].copy_from_slice(&crc.to_le_bytes());
        }
        let options = || OpenOptions {
            pool_frames: 64,
            map_pages_eager: pages_eager,
            ..OpenOptions::default()
        };
        let (volume, report) = Volume::open(device, options()).unwrap();
        assert_eq!(
            report.checkpoint.is_none(),
            pages_eager > 0,
            "small maps are counted"
        );
        let rewrite = || {
            for n in 0..10u8 {
                volume.write(u64::from(n) * GRAIN, &[n + 1; GRAIN_BYTES])?;
            }
            volume.sync(LbaRange::ALL)
        };
        let done = rewrite();
        assert_eq!(done.is_ok(), pages_eager > 0, "{done:?}");
        // Read from the log, all is there.
        let (volume, _) = Volume::open(volume.into_device(), options()).unwrap();
        volume.trim(LbaRange::new(Lba(0), 1)).unwrap();
        check_content(&volume);
    }
}
