//! Where the two may differ, and why.

use super::call::Call;

/// Neither owner nor group, in a `chown`.
const NOBODY: (u32, u32) = (u32::MAX, u32::MAX);

/// Whether a call may come to something else here than on ext4.
pub fn may_differ(call: &Call) -> bool {
    match call {
        // Who must not end the privileges of a file may not do this on ext4; FUSE does not ask if there is nothing to change.
        Call::Chown { owner, .. } | Call::ChownOpen { owner, .. } => *owner == NOBODY,
        _ => false,
    }
}

/// Which of atime, mtime and ctime of a file of this mode a call may renew here and not on ext4, or the other way.
pub fn free_times(call: &Call, mode: u32) -> [bool; 3] {
    match (call, mode & libc::S_IFMT) {
        // The kernel has the targets of links in its cache, and follows links without asking anybody.
        (_, libc::S_IFLNK) => [true, false, false],
        // It renews no times of its own for FUSE: what goes through a pipe or to a device does not come to the file system.
        (call, libc::S_IFIFO | libc::S_IFCHR) if moves_data(call) => [true; 3],
        // Mapping a file renews no access time either, and what a mapping reads is in the cache, or comes later.
        (Call::Load { .. } | Call::Store { .. }, _) => [true, false, false],
        // As above: what is refused renews nothing.
        (call, _) if may_differ(call) => [false, false, true],
        // Where holes are is what is read here.
        (Call::Holes(_), _) => [true, false, false],
        // A copy that the file system makes renews none, whether it clones or reads.
        (Call::Copy { .. }, _) => [true, false, false],
        _ => [false; 3],
    }
}

fn moves_data(call: &Call) -> bool {
    match call {
        Call::Limited { call, .. } => moves_data(call),
        Call::Read { .. } | Call::ReadAt { .. } | Call::Write { .. } | Call::WriteAt { .. } => true,
        _ => false,
    }
}
