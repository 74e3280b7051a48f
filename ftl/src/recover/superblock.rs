//! The copies of the superblock on all devices.

use super::io::MediaIo;
use crate::addr::Pba;
use crate::crash_point::crash_point;
use crate::device::MediaError;
use crate::error::OpenError;
use crate::format::{Superblock, SuperblockFlaw};

/// Reads the superblock copies of all devices and chooses the youngest.
pub(crate) fn read_superblock(io: &mut MediaIo<'_>) -> Result<(Superblock, u32), OpenError> {
    let mut best: Option<Superblock> = None;
    let mut damaged = 0;
    let mut version = None;
    let mut nonsense = None;
    let mut media = None;
    let fronts = io.fronts();
    let copies = fronts.iter().flat_map(|front| [*front, Pba(front.0 + 1)]);
    for at in copies {
        match io.read(at).map(|bytes| Superblock::parse(&bytes)) {
            Ok(Ok(found)) => {
                if best
                    .as_ref()
                    .is_none_or(|b| b.generation < found.generation)
                {
                    best = Some(found);
                }
                continue;
            }
            Ok(Err(SuperblockFlaw::Version(v))) => version = Some(v),
            Ok(Err(SuperblockFlaw::Nonsense(what))) => nonsense = Some(what),
            Ok(Err(_)) => {}
            Err(error) => media = Some(error),
        }
        damaged += 1;
    }
    match (best, version, nonsense, media) {
        (Some(found), ..) => Ok((found, damaged)),
        (None, Some(version), ..) => Err(OpenError::Version(version)),
        (None, None, Some(what), _) => Err(OpenError::Nonsense(what)),
        (None, None, None, Some(error)) => Err(OpenError::Media(error)),
        (None, None, None, None) => Err(OpenError::NotFormatted),
    }
}

/// Writes the superblock as the next generation, over the older copy and then over the other. The array does so on
/// each device.
pub(crate) fn write_superblock(
    io: &mut MediaIo<'_>,
    superblock: &mut Superblock,
) -> Result<(), MediaError> {
    for _ in 0..2 {
        superblock.generation += 1;
        io.write(Pba(superblock.generation % 2), &superblock.emit())?;
        crash_point!("superblock.copy");
        io.flush()?;
    }
    Ok(())
}
