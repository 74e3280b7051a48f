//! Looking after a device: `inspect` shows what lies where, `scrub` finds what has rotted and names it, and nothing else.
//!
//! Defends I4 and I7 for people: a grain that rotted is found and named with its place; its neighbours are not suspected.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use crate::common::{Image, bad, flashnet, good};
use contigfs::{Fs, InodeNo, NewNode, WriteOptions};
use ftl::{FileDevice, GRAIN_BYTES, LbaRange, OpenOptions, Volume};
use serde_json::Value;

const GRAINS: u64 = 500;

/// An image that holds [`GRAINS`] grains from LBA 2^30 on, beside what a file system has there.
fn written() -> Image {
    let image = Image::new("64MiB");
    let device = FileDevice::open(image.path()).unwrap();
    let (volume, _) = Volume::open(device, OpenOptions::default()).unwrap();
    for n in 0..GRAINS {
        let at = ((1 << 30) + n) * GRAIN_BYTES as u64;
        volume.write(at, &[n as u8 | 1; GRAIN_BYTES]).unwrap();
    }
    volume.sync(LbaRange::ALL).unwrap();
    volume.shutdown().unwrap();
    image
}

fn answer(arguments: &[&str]) -> Value {
    serde_json::from_str(&good(arguments)).unwrap()
}

#[test]
fn inspect_shows_what_lies_where() {
    let image = written();
    let path = image.path();
    let path = path.to_str().unwrap();
    let overview = answer(&["--json", "inspect", path]);
    assert_eq!(overview["clean"], true);
    assert_eq!(overview["device_grains"], (64 << 20) / GRAIN_BYTES as u64);
    let map = answer(&["--json", "inspect", path, "--map", "1073741824+1000"]);
    let map = map["map"].as_array().unwrap();
    assert_eq!(map.len() as u64, GRAINS);
    // What the map says is what the header of that segment says, and what lies there.
    let (lba, segment) = (map[7]["lba"].as_u64(), map[7]["segment"].as_u64().unwrap());
    let number = segment.to_string();
    let headers = answer(&["--json", "inspect", path, "--segment", &number]);
    let records = headers["headers"].as_array().unwrap().iter();
    let records = records.flat_map(|header| header["records"].as_array().unwrap());
    assert!(
        records
            .map(|record| record["lba"].as_u64())
            .any(|l| l == lba)
    );
    let file = std::fs::File::open(path).unwrap();
    let mut grain = [0; GRAIN_BYTES];
    let place = map[7]["place"].as_u64().unwrap();
    file.read_exact_at(&mut grain, place * GRAIN_BYTES as u64)
        .unwrap();
    assert_eq!(grain, [7; GRAIN_BYTES]);
    // Live grains of all segments are those of the map.
    let segments = answer(&["--json", "inspect", path, "--segments"]);
    let list = segments["segments"].as_array().unwrap();
    for used in list.iter().filter(|segment| segment["headers"] != 0) {
        assert!(used["stream"].is_u64() && used["carries"].is_string());
    }
    let live = list.iter();
    let live: u64 = live.map(|segment| segment["live"].as_u64().unwrap()).sum();
    let whole = answer(&["--json", "inspect", path, "--map", "0+4503599627370496"]);
    let data = whole["map"].as_array().unwrap().iter();
    assert_eq!(live, data.filter(|m| m["holds"] == "data").count() as u64);
    for view in [
        &["--segments"][..],
        &["--segment", &number],
        &["--map", "0+9"],
        &[],
    ] {
        assert!(!good(&[&["inspect", path], view].concat()).is_empty());
    }
    assert!(bad(&["inspect", path, "--segment", "99999"]).contains("99999"));
    assert!(bad(&["inspect", "/dev/null"]).contains("/dev/null"));
}

#[test]
fn scrub_names_what_rotted() {
    let image = written();
    let path = image.path();
    let path = path.to_str().unwrap();
    let whole = answer(&["--json", "scrub", path]);
    assert_eq!(whole["damaged"].as_array().unwrap().len(), 0);
    assert!(whole["grains"].as_u64().unwrap() >= GRAINS);
    let map = answer(&["--json", "inspect", path, "--map", "1073741824+1000"]);
    let victim = &map["map"][42];
    let place = victim["place"].as_u64().unwrap() * GRAIN_BYTES as u64;
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xee], place + 1234).unwrap();
    drop(file);
    let output = flashnet(&["--json", "scrub", path]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let damaged = found["damaged"].as_array().unwrap();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!(damaged[0]["lba"], victim["lba"]);
    assert_eq!(damaged[0]["grain"], victim["place"]);
    assert_eq!(damaged[0]["segment"], victim["segment"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("checksum") && said.contains(path), "{said}");
}

/// Who finds damaged data says which file they belong to and where, so that it can be had again; names do nothing to terminals.
#[test]
fn damaged_data_are_named_by_file() {
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let (volume, _) =
        Volume::open(FileDevice::open(path).unwrap(), OpenOptions::default()).unwrap();
    let volume = Arc::new(volume);
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    let directory = NewNode::directory();
    let dir = fs.create(InodeNo::ROOT, "d\u{fc}r".as_ref(), &directory);
    let dir = dir.unwrap().ino;
    let name = "a\u{1b}[31m";
    let file = fs.create(dir, name.as_ref(), &NewNode::file()).unwrap().ino;
    let grains = |n: u8| [n; GRAIN_BYTES];
    for n in 1..=5 {
        let at = u64::from(n - 1) * GRAIN_BYTES as u64;
        let options = WriteOptions::default();
        fs.write(file, at, &grains(0xa0 + n), options).unwrap();
    }
    fs.sync_all().unwrap();
    drop(fs);
    volume.shutdown().unwrap();
    drop(volume);

    let bytes = std::fs::read(path).unwrap();
    let mut all = bytes.chunks_exact(GRAIN_BYTES);
    let place = all.position(|grain| grain == grains(0xa4)).unwrap();
    let raw = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let at = (place * GRAIN_BYTES + 9) as u64;
    raw.write_all_at(&[1], at).unwrap();
    drop(raw);
    let offset = 3 * GRAIN_BYTES;
    let shown = format!(
        "/d\u{fc}r/a\\u{{1b}}[31m, inode {}, from byte {offset} on",
        file.0
    );
    for command in ["scrub", "fsck"] {
        let output = flashnet(&[command, path]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(&shown), "{command}: {said}");
    }
    let output = flashnet(&["--json", "scrub", path]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let damaged = found["damaged"].as_array().unwrap();
    assert_eq!(damaged.len(), 1);
    assert_eq!(damaged[0]["inode"], file.0);
    assert_eq!(damaged[0]["offset"], offset);
    assert_eq!(damaged[0]["path"], format!("/d\u{fc}r/{name}"));
}

/// A scrub that may read 1 MiB per second takes its time: a lower bound, so a slow machine can not fail it.
#[test]
fn scrub_keeps_to_its_rate() {
    let image = written();
    let path = image.path();
    let start = Instant::now();
    let read = answer(&["--json", "scrub", path.to_str().unwrap(), "--rate", "1MiB"]);
    let bytes = read["bytes"].as_u64().unwrap() as f64;
    let least = (bytes - (64 * GRAIN_BYTES) as f64) / f64::from(1 << 20);
    assert!(start.elapsed().as_secs_f64() >= least);
}
