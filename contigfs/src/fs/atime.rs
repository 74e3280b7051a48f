//! Access times: when reading renews them.
//!
//! They change in memory and are written with the next `fsync` or orderly shutdown.

use std::sync::atomic::Ordering;

use super::{Fs, Inode};
use crate::inode::FileKind;
use crate::store::BlockStore;
use crate::time::Timestamp;

/// An access time is renewed when it is this old, even if nothing changed since.
const STALE_SECONDS: i64 = 24 * 60 * 60;

/// When reading renews the access time, mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AtimePolicy {
    /// When it is not newer than the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// Each time (`strictatime`).
    Strict,
    /// Never (`noatime`).
    Never,
}

impl AtimePolicy {
    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Strict,
            2 => Self::Never,
            _ => Self::Relative,
        }
    }
}

impl<S: BlockStore> Fs<S> {
    /// When reading renews access times, from now on.
    pub fn set_atime_policy(&self, policy: AtimePolicy) {
        self.atime_policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Whether reading directories renews theirs; `false` is `nodiratime`, mount(8).
    pub fn set_directory_atimes(&self, renewed: bool) {
        self.directory_atimes.store(renewed, Ordering::Relaxed);
    }

    /// Renews the access time in memory after a read; true if the record was clean before.
    pub(super) fn touch_atime(&self, inode: &Inode) -> bool {
        let policy = AtimePolicy::from_code(self.atime_policy.load(Ordering::Relaxed));
        if policy == AtimePolicy::Never {
            return false;
        }
        let mut state = inode.state();
        // Read while the times are held: no reader puts back what a later one has renewed.
        let now = self.now();
        let clean = !state.times_dirty;
        let record = &mut state.record;
        let of_directory = record.kind == FileKind::Directory;
        if of_directory && !self.directory_atimes.load(Ordering::Relaxed) {
            return false;
        }
        if !renews(policy, now, record.atime, record.mtime.max(record.ctime)) {
            return false;
        }
        record.atime = now;
        state.times_dirty = true;
        clean
    }
}

/// As Linux has it (`relatime_need_update`): a time that somebody has set, and that is still to come, is renewed as any other.
fn renews(policy: AtimePolicy, now: Timestamp, atime: Timestamp, changed: Timestamp) -> bool {
    let stale = atime.secs.saturating_add(STALE_SECONDS) <= now.secs;
    let is_wanted = match policy {
        AtimePolicy::Never => false,
        AtimePolicy::Strict => true,
        AtimePolicy::Relative => atime <= changed || stale,
    };
    is_wanted && atime != now
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mount(8), relatime: "earlier than or equal to the current modify or change time", or older than a day.
    #[test]
    fn policies() {
        let at = |secs| Timestamp { secs, nanos: 0 };
        let day = STALE_SECONDS;
        let relative =
            |now, atime, changed| renews(AtimePolicy::Relative, at(now), at(atime), at(changed));
        assert!(relative(20, 10, 10) && relative(20, 5, 10));
        assert!(!relative(20, 15, 10) && !relative(15, 15, 15));
        assert!(relative(15 + day, 15, 10) && !relative(14 + day, 15, 10));
        // Times that are still to come.
        assert!(relative(20, 30, 30) && relative(20, 30, 40) && !relative(20, 30, 10));
        assert!(!relative(20, 30 + day, 10));
        assert!(renews(AtimePolicy::Strict, at(20), at(15), at(10)));
        assert!(renews(AtimePolicy::Strict, at(20), at(30), at(10)));
        assert!(!renews(AtimePolicy::Strict, at(20), at(20), at(10)));
        assert!(!renews(AtimePolicy::Never, at(20 + day), at(5), at(10)));
        for policy in [
            AtimePolicy::Relative,
            AtimePolicy::Strict,
            AtimePolicy::Never,
        ] {
            assert_eq!(AtimePolicy::from_code(policy as u8), policy);
        }
    }
}
