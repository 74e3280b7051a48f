//! The file system over the real translation layer: the same answers as in memory, and I1, I9 through its recovery.

mod support;

use std::sync::Arc;

use contigfs::{
    BlockStore, FormatOptions, Fs, FsError, InodeNo, NewNode, SetAttr, WriteOptions,
    check_with_data,
};
use ftl::{Device, MemDevice, OpenOptions, Volume};
use support::{Dice, content, name, names};

const ROOT: InodeNo = InodeNo::ROOT;
const DEVICE_BYTES: usize = 32 << 20;

fn formatted() -> MemDevice {
    let mut device = MemDevice::new(DEVICE_BYTES).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = open(device);
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    volume.into_device()
}

fn open<D: Device>(device: D) -> Volume<D> {
    Volume::open(
        device,
        OpenOptions {
            pool_frames: 1024,
            ..OpenOptions::default()
        },
    )
    .unwrap()
    .0
}

fn assert_clean(store: &impl BlockStore) {
    let report = check_with_data(store);
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Everything that was acknowledged is there after the process is gone without a word, over several lives.
#[test]
fn acknowledged_changes_survive() {
    let mut device = formatted();
    let mut dice = Dice::new(3);
    let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
    for life in 0..6 {
        let volume = Arc::new(open(device));
        let fs = Fs::mount(Arc::clone(&volume)).unwrap();
        assert_clean(&volume);
        let mut found: Vec<String> = names(&fs, ROOT)
            .unwrap()
            .into_iter()
            .map(|entry| entry.0)
            .collect();
        let mut wanted: Vec<String> = expected.iter().map(|entry| entry.0.clone()).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        for (label, bytes) in &expected {
            let ino = fs.lookup(ROOT, name(label)).unwrap().ino;
            assert!(
                content(&fs, ino).unwrap() == *bytes,
                "{label} in life {life}"
            );
        }
        for i in 0..60 {
            if !expected.is_empty() && dice.below(3) == 0 {
                let (label, _) = expected.swap_remove(dice.below(expected.len() as u64) as usize);
                fs.unlink(ROOT, name(&label)).unwrap();
                continue;
            }
            let label = format!("life{life}-{i}");
            let ino = fs.create(ROOT, name(&label), &NewNode::file()).unwrap().ino;
            let bytes: Vec<u8> = (0..dice.below(40_000)).map(|_| dice.next() as u8).collect();
            fs.write(
                ino,
                0,
                &bytes,
                WriteOptions {
                    durable: true,
                    ..WriteOptions::default()
                },
            )
            .unwrap();
            expected.push((label, bytes));
        }
        drop(fs);
        device = Arc::into_inner(volume).unwrap().into_device();
    }
}

/// Fill to the last grain, delete all, get all back: the count is the layer's own.
#[test]
fn space_is_exact() {
    let volume = open(formatted());
    let fs = Fs::mount(&volume).unwrap();
    let empty = fs.statfs().grains_free;
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let free = fs.statfs().grains_free;
    let mut written = 0;
    let error = loop {
        match fs.write(ino, written * 4096, &[3; 4096], WriteOptions::default()) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, written), (FsError::NoSpace, free));
    fs.sync_all().unwrap();
    assert_eq!(fs.attr(ino).unwrap().grains, free);
    assert_clean(&volume);
    fs.set_attr(
        ino,
        &SetAttr {
            size: Some(5),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(fs.statfs().grains_free, free - 1);
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(fs.statfs().grains_free, empty);
    assert_clean(&volume);
}

/// Many times the capacity is written, so grains are collected and moved; the file stays what it is.
#[test]
fn overwriting_for_long() {
    let mut device = formatted();
    let mut dice = Dice::new(9);
    let size = 8 << 20;
    let mut expected = vec![0; size];
    for life in 0..3 {
        let volume = open(device);
        let fs = Fs::mount(&volume).unwrap();
        let ino = match life {
            0 => fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino,
            _ => fs.lookup_path("/f").unwrap(),
        };
        for _ in 0..3000 {
            let len = 1 + dice.below(20_000) as usize;
            let at = dice.below((size - len) as u64) as usize;
            let byte = dice.next() as u8;
            expected[at..at + len].fill(byte);
            fs.write(ino, at as u64, &vec![byte; len], WriteOptions::default())
                .unwrap();
        }
        fs.set_attr(
            ino,
            &SetAttr {
                size: Some(size as u64),
                ..SetAttr::default()
            },
        )
        .unwrap();
        assert!(content(&fs, ino).unwrap() == expected, "life {life}");
        fs.sync_all().unwrap();
        assert_clean(&volume);
        drop(fs);
        device = volume.into_device();
    }
}
