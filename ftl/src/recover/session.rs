//! The new session: from here on media are changed.

use super::decide::Decided;
use super::io::MediaIo;
use super::superblock::write_superblock;
use crate::addr::{GRAIN_BYTES, Pba};
use crate::crash_point::crash_point;
use crate::device::MediaError;
use crate::error::OpenError;
use crate::format::{SessionEnd, Superblock};

/// Makes durable what counts, before anything says so. The superblock is still that of the last session.
pub(super) fn make_durable(
    io: &mut MediaIo<'_>,
    superblock: &Superblock,
    lost: u16,
) -> Result<(), OpenError> {
    crash_point!("recover.decided");
    prove_writable(io, superblock)?;
    io.flush()?;
    refuse_failed(io, lost)
}

/// Says so in the superblock of the next session, and only then erases the cut tail.
pub(super) fn begin(
    io: &mut MediaIo<'_>,
    superblock: &mut Superblock,
    decided: &Decided,
    lost: u16,
) -> Result<(), OpenError> {
    let found = &decided.found;
    let ended = superblock.session;
    let known = superblock.sessions.ends.iter().any(|s| s.session == ended);
    if ended > 0 && !known {
        let this = SessionEnd {
            session: ended,
            first: superblock.sessions.last().next(),
            end: decided.end,
        };
        superblock
            .sessions
            .push(this, |s| found.sessions.contains(&s));
    }
    superblock.session += 1;
    superblock.clean = false;
    superblock.failed |= lost;
    write_superblock(io, superblock)?;
    crash_point!("recover.session");
    for &at in &found.cut {
        io.write(at, &[0; GRAIN_BYTES])?;
    }
    if !found.cut.is_empty() {
        crash_point!("recover.cut");
        io.flush()?;
    }
    refuse_failed(io, lost)
}

/// Writes what the superblock says over the older copy, on all devices of an array. One that does not take it would be a
/// generation behind the others for each time that somebody tries to open the volume, and soon out of date.
fn prove_writable(io: &mut MediaIo<'_>, superblock: &Superblock) -> Result<(), MediaError> {
    match superblock.geometry.places.count() {
        1 => Ok(()),
        _ => io.write(Pba((superblock.generation + 1) % 2), &superblock.emit()),
    }
}

/// Of an array, what others have done as well is no error of the operation: whether a device has failed since it was
/// assembled, beside those that were `lost` then.
pub(super) fn refuse_failed(io: &MediaIo<'_>, lost: u16) -> Result<(), OpenError> {
    let failed = io.lost_mask() & !lost;
    match io.members() {
        Some(members) if failed != 0 => {
            let member = &members.list()[failed.trailing_zeros() as usize];
            Err(OpenError::DeviceLost(member.name().to_owned()))
        }
        _ => Ok(()),
    }
}

/// Whether more could not be read than may be given up, or a device is away.
pub(super) fn refuse_unread(io: &mut MediaIo<'_>, unreadable_max: u64) -> Result<(), OpenError> {
    let unread = io.given_up();
    if unread > unreadable_max || (unread > 0 && !is_there(io)) {
        return Err(OpenError::Unreadable(unread));
    }
    if unread > 0 {
        tracing::warn!(
            grains = unread,
            "the device does not read some grains: they are taken for damaged, or for the end of the log"
        );
    }
    Ok(())
}

/// Whether each device still reads a superblock: one that does not is away, and what else it does not read no bad sectors.
fn is_there(io: &mut MediaIo<'_>) -> bool {
    let fronts = io.fronts();
    let mut each = fronts.into_iter();
    each.all(|front| (0..2).any(|copy| io.read(Pba(front.0 + copy)).is_ok()))
}
