//! The label of a device of an array: which volume it belongs to, and which of its devices it is.
//!
//! Two copies lie in grains 6 and 7 of every device, written once, when the volume is formatted. Each knows all
//! devices by UUID, size and the path they had then, so that one that is missing can be named.

use super::{GrainBytes, crc_without};
use crate::addr::{GRAIN_BYTES, Pba};
use crate::places::DEVICES_MAX;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u64 = u64::from_le_bytes(*b"FLASHDEV");
const CRC_AT: usize = 8;
const VERSION: u32 = 1;
/// Bytes of a path that are kept: its end.
const PATH_MAX: usize = 222;

/// Where the copies lie on a device.
pub(crate) const LABEL_GRAINS: [Pba; 2] = [Pba(6), Pba(7)];

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawLabel {
    magic: U64,
    crc: U32,
    version: U32,
    volume: [u8; 16],
    device: [u8; 16],
    index: U16,
    count: U16,
    reserved: [u8; 12],
    devices: [RawDevice; DEVICES_MAX],
    tail: [u8; GRAIN_BYTES - 64 - DEVICES_MAX * 248],
}
const _: () = assert!(size_of::<RawLabel>() == GRAIN_BYTES);

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
struct RawDevice {
    uuid: [u8; 16],
    grains: U64,
    path_bytes: U16,
    path: [u8; PATH_MAX],
}
const _: () = assert!(size_of::<RawDevice>() == 248);

/// A device of an array as every label knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledDevice {
    /// Identity of the device.
    pub uuid: [u8; 16],
    /// Its size in grains.
    pub grains: u64,
    /// Where it was found when the volume was formatted; of a long path the end.
    pub path: String,
}

/// A label that is intact and possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Identity of the volume.
    pub volume: [u8; 16],
    /// Which of the devices this is.
    pub index: usize,
    /// All devices of the volume.
    pub devices: Vec<LabelledDevice>,
}

impl Label {
    /// Reads a grain; none if it is no intact label.
    pub fn parse(bytes: &GrainBytes) -> Option<Self> {
        let raw = RawLabel::ref_from_bytes(bytes).ok()?;
        let intact = raw.magic.get() == MAGIC
            && raw.crc.get() == crc_without(bytes, CRC_AT)
            && raw.version.get() == VERSION;
        let count = usize::from(raw.count.get());
        let index = usize::from(raw.index.get());
        if !intact || !(2..=DEVICES_MAX).contains(&count) || index >= count {
            return None;
        }
        let mut devices = Vec::with_capacity(count);
        for device in &raw.devices[..count] {
            let path = device.path.get(..usize::from(device.path_bytes.get()))?;
            devices.push(LabelledDevice {
                uuid: device.uuid,
                grains: device.grains.get(),
                path: String::from_utf8_lossy(path).into_owned(),
            });
        }
        if devices[index].uuid != raw.device {
            return None;
        }
        Some(Self {
            volume: raw.volume,
            index,
            devices,
        })
    }

    /// Writes the grain.
    pub fn emit(&self) -> Box<GrainBytes> {
        let none = RawDevice {
            uuid: [0; 16],
            grains: 0.into(),
            path_bytes: 0.into(),
            path: [0; PATH_MAX],
        };
        let mut devices = [none; DEVICES_MAX];
        for (to, device) in devices.iter_mut().zip(&self.devices) {
            let path = end_of(&device.path).as_bytes();
            to.uuid = device.uuid;
            to.grains = device.grains.into();
            to.path_bytes = (path.len() as u16).into();
            to.path[..path.len()].copy_from_slice(path);
        }
        let raw = RawLabel {
            magic: MAGIC.into(),
            crc: 0.into(),
            version: VERSION.into(),
            volume: self.volume,
            device: self.devices[self.index].uuid,
            index: (self.index as u16).into(),
            count: (self.devices.len() as u16).into(),
            reserved: [0; 12],
            devices,
            tail: [0; GRAIN_BYTES - 64 - DEVICES_MAX * 248],
        };
        let mut bytes = Box::new([0; GRAIN_BYTES]);
        bytes.copy_from_slice(raw.as_bytes());
        let crc = crc_without(&bytes, CRC_AT);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// The end of a path, in whole characters.
fn end_of(path: &str) -> &str {
    let mut from = path.len().saturating_sub(PATH_MAX);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    &path[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Label {
        let device = |n: u8| LabelledDevice {
            uuid: [n; 16],
            grains: 0x100 + u64::from(n),
            path: format!("/dev/disk{n}"),
        };
        Label {
            volume: *b"0123456789abcdef",
            index: 1,
            devices: (0..3).map(device).collect(),
        }
    }

    /// The layout on the media, byte by byte.
    #[test]
    fn golden_bytes() {
        let bytes = example().emit();
        assert_eq!(&bytes[0..8], b"FLASHDEV");
        assert_eq!(&bytes[12..16], [1, 0, 0, 0]);
        assert_eq!(&bytes[16..32], b"0123456789abcdef");
        assert_eq!(&bytes[32..48], [1; 16]);
        assert_eq!(&bytes[48..52], [1, 0, 3, 0]);
        assert_eq!(&bytes[52..64], [0; 12]);
        assert_eq!(&bytes[312..328], [1; 16]);
        assert_eq!(&bytes[328..336], [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[336..338], [10, 0]);
        assert_eq!(&bytes[338..348], b"/dev/disk1");
        assert_eq!(&bytes[64 + 3 * 248..], &[0; 4096 - 64 - 3 * 248][..]);
    }

    /// What is written is read back, and any single damaged byte is noticed (I7).
    #[test]
    fn round_trip_and_cover() {
        let good = example().emit();
        assert_eq!(Label::parse(&good), Some(example()));
        for at in 0..GRAIN_BYTES {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(Label::parse(&bad), None, "byte {at}");
        }
    }

    /// Of a path that is too long the end is kept: it says more than the beginning.
    #[test]
    fn long_paths() {
        let mut label = example();
        label.devices[2].path = format!("{}/é/volume.img", "ü".repeat(200));
        let read = Label::parse(&label.emit()).expect("intact");
        let path = &read.devices[2].path;
        assert!(path.len() <= PATH_MAX && path.ends_with("ü/é/volume.img"));
    }
}
