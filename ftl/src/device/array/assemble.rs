//! Assembly: which device is which, whatever the order they are named in, and what is wrong when they do not fit.

use super::{ArrayDevice, Member, MemberState, Members};
use crate::addr::{GRAIN_BYTES, Pba};
use crate::device::{Device, MediaError};
use crate::format::{LABEL_GRAINS, Label, LabelledDevice, Superblock, SuperblockFlaw};
use crate::recover::io::MediaIo;

/// Why devices do not make a volume. Devices are named by path.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// Not formatted, or not for us.
    #[error("{name}: no superblock found: not a flashnet volume, or both copies are damaged")]
    NotFormatted {
        /// The device.
        name: String,
    },
    /// Neither copy of the superblock can be read.
    #[error("{name} can not be read: {cause}")]
    Unreadable {
        /// The device.
        name: String,
        /// What it answered.
        cause: MediaError,
    },
    /// Written by a version of the format this program does not know.
    #[error("{name}: format version {version} is not supported")]
    Version {
        /// The device.
        name: String,
        /// The version.
        version: u32,
    },
    /// Intact, but says something impossible.
    #[error("{name}: superblock makes no sense: {what}")]
    Nonsense {
        /// The device.
        name: String,
        /// What it says.
        what: &'static str,
    },
    /// Both copies of the label are damaged.
    #[error(
        "{name}: it belongs to a volume of {devices} devices, but does not say which of them it is: its label is damaged"
    )]
    NoLabel {
        /// The device.
        name: String,
        /// Devices of the volume.
        devices: usize,
    },
    /// A volume of one device among several.
    #[error("{name} is a volume by itself")]
    Single {
        /// The device.
        name: String,
    },
    /// Devices of different volumes.
    #[error("{name} belongs to another volume than {first}: volume {uuid}, not {wanted}")]
    Foreign {
        /// The device.
        name: String,
        /// Its volume.
        uuid: uuid::Uuid,
        /// The device named first.
        first: String,
        /// Its volume.
        wanted: uuid::Uuid,
    },
    /// One device twice, or a copy of it.
    #[error(
        "{name} and {other} are the same device {index} of the volume, or one is a copy of the other"
    )]
    Duplicate {
        /// One.
        name: String,
        /// The other.
        other: String,
        /// Which device.
        index: usize,
    },
    /// Smaller than when it was formatted.
    #[error("{name} has {actual} grains, the volume needs {expected}")]
    Shrunk {
        /// The device.
        name: String,
        /// What the label says.
        expected: u64,
        /// What there is.
        actual: u64,
    },
    /// A device of the volume has not been named.
    #[error(
        "device {index} of the volume is missing: it was {path} when the volume was formatted, UUID {uuid} \
         ({missing} of {devices} devices missing)"
    )]
    Missing {
        /// The first that is missing.
        index: usize,
        /// Its path at format.
        path: String,
        /// Its identity.
        uuid: uuid::Uuid,
        /// How many are missing.
        missing: usize,
        /// Devices of the volume.
        devices: usize,
    },
    /// A device that has failed before and is back.
    #[error(
        "{name}: this device has failed, and the volume went on without it: what is on it is out of date \
         (UUID {uuid})"
    )]
    Failed {
        /// The device.
        name: String,
        /// Its identity.
        uuid: uuid::Uuid,
    },
    /// A device as it was some time ago: restored from a copy, or taken out and put back behind the volume's back.
    #[error(
        "{name}: what is on it is older than what is on the other devices of the volume (UUID {uuid}): \
         is it a copy from before?"
    )]
    OutOfDate {
        /// The device.
        name: String,
        /// Its identity.
        uuid: uuid::Uuid,
    },
    /// The volume went on without each of two devices.
    #[error(
        "{name} and {other} each went on without the other, so they hold different volumes by now: \
         leave one of them out"
    )]
    Disagree {
        /// One.
        name: String,
        /// The other.
        other: String,
    },
    /// No memory.
    #[error("no memory: {0}")]
    Memory(std::io::Error),
}

impl AssemblyError {
    /// Whether the volume could be assembled without the devices that are missing.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::Failed { .. } | Self::OutOfDate { .. }
        )
    }
}

/// Generations that the superblock of a device may be behind. Every cut while one is being written may leave it one more
/// behind, until one has been written to all; opening and shutting down are four.
const LAG_MAX: u64 = 16;

/// What one device says of itself.
struct Candidate<D> {
    name: String,
    device: D,
    superblock: Option<Superblock>,
    label: Option<Label>,
}

impl<D: Device> ArrayDevice<D> {
    /// Makes a volume of devices, each given with its name, in any order. With `degraded`, devices may be missing, and
    /// what is on them is lost; else they are asked for by name.
    ///
    /// # Errors
    /// See [`AssemblyError`]. Nothing is written.
    ///
    /// # Panics
    /// If there is no device.
    pub fn assemble(devices: Vec<(String, D)>, degraded: bool) -> Result<Self, AssemblyError> {
        assert!(!devices.is_empty(), "no device");
        let alone = devices.len() == 1;
        let mut candidates = Vec::new();
        for (name, device) in devices {
            candidates.push(look_at(name, device)?);
        }
        let is_single = |c: &Candidate<D>| {
            let known = c.superblock.as_ref();
            known.is_some_and(|s| s.geometry.places.count() == 1)
        };
        if let Some(single) = candidates.iter().position(is_single) {
            let Candidate { name, device, .. } = candidates.swap_remove(single);
            if !alone {
                return Err(AssemblyError::Single { name });
            }
            return Ok(Self::blank(vec![(name, device)]));
        }
        assemble(candidates, degraded)
    }
}

fn assemble<D: Device>(
    candidates: Vec<Candidate<D>>,
    degraded: bool,
) -> Result<ArrayDevice<D>, AssemblyError> {
    let uuid = uuid::Uuid::from_bytes;
    let (mut first, mut table): (Option<(String, [u8; 16])>, Vec<LabelledDevice>) =
        (None, Vec::new());
    let mut places: Vec<Option<Candidate<D>>> = Vec::new();
    for candidate in candidates {
        let name = candidate.name.clone();
        let Some(label) = candidate.label.clone() else {
            let known = candidate.superblock.as_ref();
            let devices = known.map_or(0, |s| s.geometry.places.count());
            return Err(AssemblyError::NoLabel { name, devices });
        };
        let (first, wanted) = first.get_or_insert_with(|| {
            places.extend(label.devices.iter().map(|_| None));
            table = label.devices.clone();
            (name.clone(), label.volume)
        });
        if *wanted != label.volume || table != label.devices {
            return Err(AssemblyError::Foreign {
                name,
                uuid: uuid(label.volume),
                first: first.clone(),
                wanted: uuid(*wanted),
            });
        }
        let actual = candidate.device.len_bytes() / GRAIN_BYTES as u64;
        let expected = table[label.index].grains;
        if actual < expected {
            return Err(AssemblyError::Shrunk {
                name,
                expected,
                actual,
            });
        }
        if let Some(other) = &places[label.index] {
            return Err(AssemblyError::Duplicate {
                name,
                other: other.name.clone(),
                index: label.index,
            });
        }
        places[label.index] = Some(candidate);
    }
    let (first, volume) = first.expect("at least one device");
    let present = || places.iter().flatten();
    let superblocks = present().filter_map(|c| c.superblock.as_ref());
    let sizes: Vec<u64> = table.iter().map(|d| d.grains).collect();
    let fits = |s: &&Superblock| {
        let known = &s.geometry.places;
        s.uuid == volume
            && known.count() == sizes.len()
            && (0..sizes.len()).all(|device| known.grains(device) == sizes[device])
    };
    let young = superblocks.filter(fits).max_by_key(|s| s.generation);
    let Some(young) = young.cloned() else {
        return Err(AssemblyError::NotFormatted { name: first });
    };
    refuse_quarrel(&places)?;
    let mut missing = None;
    for index in 0..places.len() {
        let failed = young.failed >> index & 1 == 1;
        let is_old = |s: &Superblock| s.generation + LAG_MAX < young.generation;
        let place = places[index].as_ref();
        let old = place
            .and_then(|c| c.superblock.as_ref())
            .is_some_and(is_old);
        let known = uuid(table[index].uuid);
        match &places[index] {
            Some(candidate) if failed && !degraded => {
                return Err(AssemblyError::Failed {
                    name: candidate.name.clone(),
                    uuid: known,
                });
            }
            Some(candidate) if old && !degraded => {
                return Err(AssemblyError::OutOfDate {
                    name: candidate.name.clone(),
                    uuid: known,
                });
            }
            Some(_) if failed || old => places[index] = None,
            None => missing = missing.or(Some((index, known))),
            Some(_) => {}
        }
    }
    if let Some((index, uuid)) = missing
        && !degraded
    {
        return Err(AssemblyError::Missing {
            index,
            path: table[index].path.clone(),
            uuid,
            missing: places.iter().filter(|p| p.is_none()).count(),
            devices: places.len(),
        });
    }
    let (mut members, mut devices) = (Vec::new(), Vec::new());
    for (place, known) in places.into_iter().zip(table) {
        let (name, device, state) = match place {
            Some(found) => (found.name, Some(found.device), MemberState::Live),
            None => (known.path, None, MemberState::Missing),
        };
        members.push(Member::new(name, known.uuid, known.grains, state));
        devices.push(device);
    }
    let array = ArrayDevice::new(Members::new(members), devices);
    array.members.lay_out(young.geometry);
    Ok(array)
}

/// Two devices, each of which says that the other has failed: nobody but the operator can tell who is right.
fn refuse_quarrel<D>(places: &[Option<Candidate<D>>]) -> Result<(), AssemblyError> {
    let says = |candidate: &Option<Candidate<D>>, other: usize| {
        let known = candidate.as_ref().and_then(|c| c.superblock.as_ref());
        known.is_some_and(|s| s.failed >> other & 1 == 1)
    };
    for (a, one) in places.iter().enumerate() {
        for (b, two) in places.iter().enumerate().skip(a + 1) {
            if let (Some(first), Some(second)) = (one, two)
                && says(one, b)
                && says(two, a)
            {
                return Err(AssemblyError::Disagree {
                    name: first.name.clone(),
                    other: second.name.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Reads what a device says of itself.
fn look_at<D: Device>(name: String, mut device: D) -> Result<Candidate<D>, AssemblyError> {
    let mut io = MediaIo::new(&mut device).map_err(AssemblyError::Memory)?;
    let (mut superblock, mut flaw, mut unreadable) = (None::<Superblock>, None, None);
    for at in 0..2 {
        match io.read(Pba(at)).map(|bytes| Superblock::parse(&bytes)) {
            Ok(Ok(found)) => {
                let old = superblock.as_ref().map_or(0, |s| s.generation);
                if found.generation > old {
                    superblock = Some(found);
                }
            }
            Ok(Err(SuperblockFlaw::Foreign | SuperblockFlaw::Checksum)) => {}
            Ok(Err(other)) => flaw = Some(other),
            Err(cause) => unreadable = Some(cause),
        }
    }
    let copies = LABEL_GRAINS.map(|at| io.read(at).ok().and_then(|b| Label::parse(&b)));
    let label = copies.into_iter().flatten().next();
    match (&superblock, &label, flaw) {
        // Of an array the superblock is on the other devices too.
        (Some(_), ..) | (None, Some(_), None) => Ok(Candidate {
            name,
            device,
            superblock,
            label,
        }),
        (None, _, Some(SuperblockFlaw::Version(version))) => {
            Err(AssemblyError::Version { name, version })
        }
        (None, _, Some(SuperblockFlaw::Nonsense(what))) => {
            Err(AssemblyError::Nonsense { name, what })
        }
        _ => Err(match unreadable {
            Some(cause) => AssemblyError::Unreadable { name, cause },
            None => AssemblyError::NotFormatted { name },
        }),
    }
}
