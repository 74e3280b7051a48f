//! The ioctls that reach a FUSE file system and mean something here.
//!
//! The kernel handles `FICLONE` and `FICLONERANGE` itself and refuses them for every FUSE file system (`EOPNOTSUPP`),
//! because FUSE has no operation for them; `copy_file_range` clones instead. `FITRIM` does arrive, and so does what is our
//! own: [`GROW`] and [`QUOTA`]. Those for flags and project ids come by way of the kernel's own operation for them.

pub(super) mod project;
pub(super) mod quota;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::store::{BlockStore, GrowError, Grown};

/// `FITRIM` of `linux/fs.h`: `_IOWR('X', 121, struct fstrim_range)`.
pub(super) const FITRIM: u32 = 0xc018_5879;

/// `FS_IOC_GETFLAGS`; the kernel asks for an `int`.
pub(super) const GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`
pub(super) const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`
pub(super) const FSGETXATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`
pub(super) const FSSETXATTR: u32 = 0x401c_5820;

/// Shows, sets and removes limits of projects: `_IOWR('C', 2, struct quota_request)`.
pub const QUOTA: u32 = 0xc800_4302;

/// Makes the volume that is mounted here larger: `_IOWR('C', 1, struct grow_request)`.
pub const GROW: u32 = 0xc100_4301;

/// Bytes of the text in a [`GrowRequest`].
const TEXT_BYTES: usize = 208;

/// What [`GROW`] takes and answers, in the byte order of the machine.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, Debug)]
#[repr(C)]
pub struct GrowRequest {
    /// Bytes of the device that the volume is to have; 0: all.
    pub wanted: u64,
    /// Answer: bytes of the device that it had.
    pub device_before: u64,
    /// Answer: that it has.
    pub device: u64,
    /// Answer: bytes for files that it had.
    pub capacity_before: u64,
    /// Answer: that it has.
    pub capacity: u64,
    /// Answer: 0, or 1 if it has not grown; then the text says why.
    pub refused: u32,
    /// Answer: bytes of the text.
    pub text_bytes: u32,
    /// Answer: why not, for people.
    pub text: [u8; TEXT_BYTES],
}
const _: () = assert!(size_of::<GrowRequest>() == 256);
const _: () = assert!((GROW >> 16) & 0x3fff == size_of::<GrowRequest>() as u32);

impl GrowRequest {
    /// Asks for `wanted` bytes, or for all that the device has.
    pub fn new(wanted: Option<u64>) -> Self {
        Self {
            wanted: wanted.unwrap_or(0),
            ..Self::new_zeroed()
        }
    }

    /// What came of it.
    ///
    /// # Errors
    /// Why the volume has not grown.
    pub fn outcome(&self) -> Result<Grown, String> {
        if self.refused != 0 {
            let len = (self.text_bytes as usize).min(TEXT_BYTES);
            return Err(String::from_utf8_lossy(&self.text[..len]).into_owned());
        }
        Ok(Grown {
            device_before: self.device_before,
            device: self.device,
            capacity_before: self.capacity_before,
            capacity: self.capacity,
        })
    }

    fn answer(result: Result<Grown, GrowError>) -> Self {
        let mut answer = Self::new_zeroed();
        match result {
            Ok(grown) => {
                answer.device_before = grown.device_before;
                answer.device = grown.device;
                answer.capacity_before = grown.capacity_before;
                answer.capacity = grown.capacity;
            }
            Err(error) => {
                let text = error.to_string();
                let len = text.floor_char_boundary(TEXT_BYTES);
                answer.refused = 1;
                answer.text_bytes = len as u32;
                answer.text[..len].copy_from_slice(&text.as_bytes()[..len]);
            }
        }
        answer
    }
}

/// Answers [`GROW`].
///
/// # Errors
/// Errno: `EPERM` for everybody but root and who runs the target; `EINVAL` for what is no request. What else is wrong is in
/// the answer.
pub(super) fn grow<S: BlockStore>(store: &S, uid: u32, argument: &[u8]) -> Result<[u8; 256], i32> {
    if uid != 0 && uid != nix::unistd::geteuid().as_raw() {
        return Err(libc::EPERM);
    }
    let request = GrowRequest::read_from_bytes(argument).map_err(|_| libc::EINVAL)?;
    let result = store.grow((request.wanted > 0).then_some(request.wanted));
    let mut answer = [0; 256];
    answer.copy_from_slice(GrowRequest::answer(result).as_bytes());
    Ok(answer)
}

/// `struct fstrim_range`, in the byte order of the machine.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct TrimRange {
    start: u64,
    /// Bytes to look at; in the answer, bytes that were discarded.
    len: u64,
    minlen: u64,
}
const _: () = assert!(size_of::<TrimRange>() == 24);
const _: () = assert!((FITRIM >> 16) & 0x3fff == size_of::<TrimRange>() as u32);

/// Answers `FITRIM` for a volume of `bytes`, once `discard` has told the device what is free. Free space has no address in a log:
/// whatever range is asked for, it is all of it.
///
/// # Errors
/// Errno: `EPERM` for ordinary users; `EINVAL` for a range that begins behind the end of the volume (`bytes` long) or is
/// shorter than a grain; as ext4.
pub(super) fn trim(
    uid: u32,
    bytes: u64,
    argument: &[u8],
    discard: impl FnOnce() -> u64,
) -> Result<[u8; 24], i32> {
    if uid != 0 {
        return Err(libc::EPERM);
    }
    let mut range = TrimRange::read_from_bytes(argument).map_err(|_| libc::EINVAL)?;
    if range.start >= bytes || range.len < ftl::GRAIN_BYTES as u64 || range.minlen > bytes {
        return Err(libc::EINVAL);
    }
    range.len = discard();
    let mut answer = [0; 24];
    answer.copy_from_slice(range.as_bytes());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout that the command relies on, and that a refusal tells why; only root and the owner may ask.
    #[test]
    fn grow_is_asked_and_answered() {
        let store = crate::MemStore::new(100);
        let request = GrowRequest::new(Some(7));
        assert_eq!(request.as_bytes()[..9], [7, 0, 0, 0, 0, 0, 0, 0, 0]);
        let answer = grow(&store, 0, request.as_bytes()).expect("an answer");
        let answer = GrowRequest::read_from_bytes(&answer).expect("its layout");
        let why = answer.outcome().expect_err("a store in memory");
        assert_eq!(why, GrowError::NotSupported.to_string());
        let stranger = nix::unistd::geteuid().as_raw() + 1;
        assert!(matches!(
            grow(&store, stranger, request.as_bytes()),
            Err(libc::EPERM)
        ));
        assert!(grow(&store, 0, &[0; 255]).is_err());
        let grown = Grown {
            device_before: 1,
            device: 2,
            capacity_before: 3,
            capacity: 4,
        };
        assert_eq!(GrowRequest::answer(Ok(grown)).outcome(), Ok(grown));
    }

    #[test]
    fn trim_judges_its_range() {
        let ask = |uid, start, len| {
            let range = TrimRange {
                start,
                len,
                minlen: 0,
            };
            trim(uid, 1 << 20, range.as_bytes(), || 7)
        };
        let done = ask(0, 0, u64::MAX).map(|bytes| TrimRange::read_from_bytes(&bytes).unwrap().len);
        assert_eq!(done.ok(), Some(7));
        assert!(matches!(ask(1000, 0, u64::MAX), Err(libc::EPERM)));
        for (start, len) in [(1 << 20, 4096), (0, 4095)] {
            assert!(matches!(ask(0, start, len), Err(libc::EINVAL)));
        }
        assert!(trim(0, 1 << 20, &[0; 23], || 7).is_err());
    }
}
