//! The request of `flashnet quota`: limits of the project that a directory belongs to.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::QUOTA;
use crate::error::FsError;
use crate::fs::{Fs, NewLimits, Quota};
use crate::inode::{InodeNo, Limits, ProjectId};
use crate::store::BlockStore;

/// Bytes of the path in a request.
const PATH_BYTES: usize = 1984;
/// No limit.
const ENDLESS: u64 = u64::MAX;

const SHOW: u32 = 1;
const NEXT: u32 = 2;
const SET: u32 = 3;
const REMOVE: u32 = 4;

const KEEP_BYTES: u32 = 1;
const KEEP_INODES: u32 = 2;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaAction {
    /// Show the project that the directory belongs to.
    Show,
    /// Show the first project of the volume behind this one.
    Next(Option<ProjectId>),
    /// Make the directory the top of a project, and set its limits.
    Set(NewLimits, Option<ProjectId>),
    /// Undo that.
    Remove,
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaRefusal {
    /// The directory belongs to none, or there is no further one.
    #[error("no project")]
    NoProject,
    /// The directory is the top of another project, or the project that of another directory.
    #[error("the directory is that of another project, or the project that of another directory")]
    Taken,
    /// Limits are being changed already, or things are moved around in the tree all the time.
    #[error("limits are being changed already, or things moved around all the time: try again")]
    Busy,
    /// Anything else.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
}

/// What [`QUOTA`] takes and answers, in the byte order of the machine.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, Debug)]
#[repr(C)]
pub struct QuotaRequest {
    action: u32,
    /// Wanted, or the last one that was shown; 0: none. Answer: the project.
    project: u32,
    /// Limits that stay as they are.
    keep: u32,
    /// Answer: an errno.
    refused: u32,
    /// Limits, all ones: none.
    bytes: u64,
    inodes: u64,
    /// Answer: what it has.
    bytes_used: u64,
    inodes_used: u64,
    /// Answer: bytes of the path; 0: there is none.
    path_bytes: u32,
    reserved: [u32; 3],
    /// Answer: the directory that was made a project, from the root of the volume.
    path: [u8; PATH_BYTES],
}
const _: () = assert!(size_of::<QuotaRequest>() == 2048);
const _: () = assert!((QUOTA >> 16) & 0x3fff == size_of::<QuotaRequest>() as u32);

impl QuotaRequest {
    /// Asks for this.
    pub fn new(action: QuotaAction) -> Self {
        let mut request = Self::new_zeroed();
        let number = |project: Option<ProjectId>| project.map_or(0, ProjectId::get);
        match action {
            QuotaAction::Show => request.action = SHOW,
            QuotaAction::Next(last) => (request.action, request.project) = (NEXT, number(last)),
            QuotaAction::Remove => request.action = REMOVE,
            QuotaAction::Set(limits, project) => {
                (request.action, request.project) = (SET, number(project));
                match limits.bytes {
                    None => request.keep |= KEEP_BYTES,
                    Some(limit) => request.bytes = limit.unwrap_or(ENDLESS),
                }
                match limits.inodes {
                    None => request.keep |= KEEP_INODES,
                    Some(limit) => request.inodes = limit.unwrap_or(ENDLESS),
                }
            }
        }
        request
    }

    fn action(&self) -> Option<QuotaAction> {
        let project = ProjectId::new(self.project);
        let limit = |raw, keep| {
            let limit = (raw != ENDLESS).then_some(raw);
            (self.keep & keep == 0).then_some(limit)
        };
        Some(match self.action {
            SHOW => QuotaAction::Show,
            NEXT => QuotaAction::Next(project),
            REMOVE => QuotaAction::Remove,
            SET => {
                let limits = NewLimits {
                    bytes: limit(self.bytes, KEEP_BYTES),
                    inodes: limit(self.inodes, KEEP_INODES),
                };
                QuotaAction::Set(limits, project)
            }
            _ => return None,
        })
    }

    /// What came of it; nothing for a project that was removed.
    ///
    /// # Errors
    /// Why nothing was done.
    pub fn outcome(&self) -> Result<Option<Quota>, QuotaRefusal> {
        match self.refused as i32 {
            0 => {}
            libc::ENODATA => return Err(QuotaRefusal::NoProject),
            libc::EEXIST => return Err(QuotaRefusal::Taken),
            libc::EBUSY => return Err(QuotaRefusal::Busy),
            errno => return Err(QuotaRefusal::System(errno)),
        }
        let limit = |raw| (raw != ENDLESS).then_some(raw);
        let len = (self.path_bytes as usize).min(PATH_BYTES);
        let path = (len > 0).then(|| OsString::from_vec(self.path[..len].to_vec()));
        Ok(ProjectId::new(self.project).map(|project| Quota {
            project,
            limits: Limits {
                bytes: limit(self.bytes),
                inodes: limit(self.inodes),
            },
            grains: self.bytes_used / ftl::GRAIN_BYTES as u64,
            inodes: self.inodes_used,
            path,
        }))
    }

    fn answer(result: Result<Option<Quota>, i32>) -> Self {
        let mut answer = Self::new_zeroed();
        match result {
            Err(errno) => answer.refused = errno as u32,
            Ok(None) => {}
            Ok(Some(quota)) => {
                answer.project = quota.project.get();
                answer.bytes = quota.limits.bytes.unwrap_or(ENDLESS);
                answer.inodes = quota.limits.inodes.unwrap_or(ENDLESS);
                answer.bytes_used = quota.grains * ftl::GRAIN_BYTES as u64;
                answer.inodes_used = quota.inodes;
                let path = quota.path.unwrap_or_default();
                // One that is longer is shown without its end.
                let len = path.len().min(PATH_BYTES);
                answer.path_bytes = len as u32;
                answer.path[..len].copy_from_slice(&path.as_bytes()[..len]);
            }
        }
        answer
    }
}

/// Whether a request is to change a whole tree.
pub(in crate::fuse) fn takes_long(argument: &[u8]) -> bool {
    let request = QuotaRequest::read_from_bytes(argument).ok();
    let action = request.and_then(|request| request.action());
    matches!(action, Some(QuotaAction::Set(..) | QuotaAction::Remove))
}

/// Answers [`QUOTA`].
///
/// # Errors
/// Errno: `EPERM` for everybody but root and who runs the target, unless it is only about what the directory belongs to;
/// `EINVAL` for what is no request. What else is wrong is in the answer.
pub(in crate::fuse) fn serve<S: BlockStore>(
    fs: &Fs<S>,
    dir: InodeNo,
    uid: u32,
    argument: &[u8],
) -> Result<Vec<u8>, i32> {
    let request = QuotaRequest::read_from_bytes(argument).map_err(|_| libc::EINVAL)?;
    let action = request.action().ok_or(libc::EINVAL)?;
    let privileged = uid == 0 || uid == nix::unistd::geteuid().as_raw();
    if !privileged && action != QuotaAction::Show {
        return Err(libc::EPERM);
    }
    let result = match action {
        QuotaAction::Show => fs.project(dir).and_then(|project| {
            let quota = fs.quota_of(project.ok_or(FsError::NoXattr)?)?;
            Ok(Some(quota))
        }),
        QuotaAction::Next(last) => fs.quota_behind(last).map(Some).ok_or(FsError::NoXattr),
        QuotaAction::Set(limits, project) => fs.set_quota(dir, limits, project).map(Some),
        QuotaAction::Remove => match fs.remove_quota(dir) {
            Ok(()) => Ok(None),
            Err(FsError::NotFound) => Err(FsError::NoXattr),
            Err(error) => Err(error),
        },
    };
    let answer = QuotaRequest::answer(result.map_err(|error| error.errno()));
    Ok(answer.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout that the command relies on: what is asked is understood, and so is the answer.
    #[test]
    fn asked_and_answered() {
        let limits = NewLimits {
            bytes: Some(Some(7)),
            inodes: None,
        };
        let actions = [
            QuotaAction::Show,
            QuotaAction::Next(ProjectId::new(3)),
            QuotaAction::Set(limits, ProjectId::new(9)),
            QuotaAction::Set(NewLimits::default(), None),
            QuotaAction::Remove,
        ];
        for action in actions {
            assert_eq!(QuotaRequest::new(action).action(), Some(action));
        }
        let request = QuotaRequest::new(actions[2]);
        assert_eq!(
            request.as_bytes()[..17],
            *b"\x03\0\0\0\x09\0\0\0\x02\0\0\0\0\0\0\0\x07"
        );
        let quota = Quota {
            project: ProjectId::new(5).unwrap(),
            limits: Limits {
                bytes: Some(8192),
                inodes: None,
            },
            grains: 1,
            inodes: 2,
            path: Some("/a/b".into()),
        };
        let answer = QuotaRequest::answer(Ok(Some(quota.clone())));
        assert_eq!(answer.outcome(), Ok(Some(quota)));
        let refused = QuotaRequest::answer(Err(libc::EEXIST)).outcome();
        assert_eq!(refused, Err(QuotaRefusal::Taken));
    }
}
